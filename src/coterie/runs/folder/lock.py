"""Folders into which one process writes at a time."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from coterie.errors import BadInput
from coterie.runs.folder.files import refuse_links
from coterie.runs.folder.run_folder import RunFolder
from coterie.runtime.leftovers import remove_half_written

LOCK = ".lock"
"""The file whose lock is held; it stays where it is."""


@contextmanager
def lock_folder(place: Path, busy: str) -> Iterator[None]:
    """Be the only process that writes into a folder, which is made where it does not exist.

    The system takes the lock back from a process that ends, however it ends. Child processes do not inherit it.
    What a killed process left half written in the folder is removed. A folder into which nothing was written goes.

    Raises:
        BadInput: another process has the lock, and the sentence is `busy`; or there is a link in the folder that
            leads out of it (`refuse_links`), or the lock is no plain file.
    """
    place.mkdir(parents=True, exist_ok=True)
    file, is_mine = place / LOCK, False
    try:
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise BadInput(f"{file} is not a plain file, and nothing was written into it; remove it")
        try:
            held = FileLock(file, timeout=0, mode=0o666).acquire()
        except Timeout:
            raise BadInput(busy) from None
        with held:
            is_mine = True
            refuse_links(place)
            remove_half_written(place)
            yield
    finally:
        with suppress(OSError):  # a folder with anything else in it stays
            if is_mine and list(place.iterdir()) == [file]:
                file.unlink()
            place.rmdir()


@contextmanager
def lock_run(folder: RunFolder) -> Iterator[None]:
    """Be the only one who writes into a run folder, without what a kill left half written in it.

    Raises:
        BadInput: the run goes on in another process or in this one or, as far as can be known, on another machine.
    """
    busy = f"run {folder.name} is still running; wait for it, or stop it first"
    progress = folder.progress()
    if progress is not None and progress.state == "running" and progress.host != platform.node():
        raise BadInput(
            f"run {folder.name} says that it is running on {progress.host}; wait for it, or if it was killed, "
            f"remove {folder.path / 'status.json'}"
        )
    with lock_folder(folder.path, busy):
        for part in folder.path.iterdir():
            if part.is_dir():
                remove_half_written(part)
        yield


def find_writer(folder: Path) -> int | None:
    """Return the process that holds a folder's lock; None where nobody does, or the system does not say who."""
    try:
        file = str((folder / LOCK).stat().st_ino)
        held = [line.split() for line in Path("/proc/locks").read_text("ascii").splitlines()]
    except OSError:
        return None
    return next((int(words[4]) for words in held if words[1] == "FLOCK" and words[5].split(":")[2] == file), None)
