"""Folders into which one process writes at a time."""

from __future__ import annotations

import errno
import os
import platform
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.errors import BadInput
from coterie.runs.folder.files import refuse_links
from coterie.runs.folder.run_folder import RunFolder
from coterie.runtime.leftovers import remove_half_written

LOCK = ".lock"
"""The file whose lock is held; it stays where it is."""

_PLAINLY: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Follow no link and wait for no pipe, where the system has such."""

_locked_here: set[Path] = set()
"""Run folders that this process is writing into."""


@contextmanager
def lock_folder(place: Path, busy: str) -> Iterator[None]:
    """Be the only process that writes into a folder, which is made where it does not exist.

    The system takes the lock back from a process that ends, however it ends. Child processes do not inherit it.
    What a killed process left half written in the folder is removed. A folder into which nothing was written goes.

    Raises:
        BadInput: another process has the lock, and the sentence is `busy`; or there is a link in the folder that
            leads out of it (`refuse_links`).
    """
    place.mkdir(parents=True, exist_ok=True)
    is_mine = False
    try:
        with _open_lock(place) as handle:
            try:
                _take(handle)
            except OSError:
                raise BadInput(busy) from None
            is_mine = True
            try:
                refuse_links(place)
                remove_half_written(place)
                yield
            finally:
                _give_back(handle)
    finally:
        with suppress(OSError):  # a folder with anything else in it stays
            file = place / LOCK
            if is_mine and list(place.iterdir()) == [file] and not file.stat().st_size:
                file.unlink()
            place.rmdir()


@contextmanager
def _open_lock(place: Path) -> Iterator[int]:
    """Open the file of a folder's lock, and close it.

    Raises:
        BadInput: it is a link, which would be made or opened wherever it leads, or otherwise no plain file.
    """
    strange = BadInput(f"{place / LOCK} is not a plain file, and nothing was written into it; remove it")
    try:
        handle = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | _PLAINLY, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise strange from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise strange
        yield handle
    finally:
        os.close(handle)


def _take(handle: int) -> None:
    """Lock a file for this process alone; OSError where another one has it."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _give_back(handle: int) -> None:
    """Unlock a file that is about to be closed; Windows would do so some time later."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)


@contextmanager
def lock_run(folder: RunFolder) -> Iterator[None]:
    """Be the only one who writes into a run folder, without what a kill left half written in it.

    Raises:
        BadInput: the run goes on in another process or in this one or, as far as can be known, on another machine.
    """
    busy = f"run {folder.name} is still running; wait for it, or stop it first"
    progress = folder.progress()
    place = folder.path.resolve()
    if place in _locked_here:
        raise BadInput(busy)  # the lock keeps out other processes only
    if progress is not None and progress.state == "running" and progress.host != platform.node():
        raise BadInput(
            f"run {folder.name} says that it is running on {progress.host}; wait for it, or if it was killed, "
            f"remove {folder.path / 'status.json'}"
        )
    with lock_folder(folder.path, busy):
        for part in place.iterdir():
            if part.is_dir():
                remove_half_written(part)
        try:
            _locked_here.add(place)
            yield
        finally:
            _locked_here.discard(place)


def find_writer(folder: Path) -> int | None:
    """Return the process that holds the lock of a folder; None where nobody does, or the system does not say who.

    A process that asks for its own lock is not told.
    """
    if sys.platform != "linux":
        return None
    import fcntl

    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | _PLAINLY)
    except OSError:
        return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(handle)
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


_FLOCK = "hhqqi4x"
"""Linux's `struct flock`: kind, whence, first byte, length, process."""
