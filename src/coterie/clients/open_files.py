"""Write files whole, put them into place and remove them, also where somebody has them open.

POSIX does so at once. Windows refuses as long as anybody has the file open or mapped: a reader, a virus scanner, a
worker process. What will pass is waited for; what this run has mapped itself is removed when it no longer is.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import BinaryIO

PATIENCE_SECONDS = 5.0
"""For so long a file may be kept open by somebody who only reads it."""
_STEP_SECONDS = 0.02

_lock = Lock()
_unremoved: set[Path] = set()
"""Files that were to be removed and are still mapped."""


@contextmanager
def replace_whole(path: Path, *, lasting: bool = True, private: bool = False) -> Iterator[BinaryIO]:
    """Open a file that has the name `path` when the block ends: it appears whole or not at all.

    No link is followed: one of that name is itself replaced. A kill may leave `.NAME.PID.new` beside it.

    Args:
        path: of the file, whose folder is there.
        lasting: wait until file and name are on the disk; after a power cut another may be empty, or as before.
        private: for its owner alone.

    Raises:
        OSError: the system refuses.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    fresh.unlink(missing_ok=True)  # of a former process with this number
    mode = 0o600 if private else 0o666
    try:
        with open(fresh, "xb", opener=lambda name, how: os.open(name, how, mode)) as file:
            yield file
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        put_in_place(fresh, path, lasting=lasting)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def put_in_place(fresh: Path, path: Path, *, lasting: bool = True) -> None:
    """Give a file that is written the name `path`, in the place of what has it; `lasting`: also after a power cut.

    Raises:
        OSError: the system refuses.
    """
    _insist(lambda: fresh.replace(path))
    if (
        lasting and os.name == "posix"
    ):  # elsewhere no folder can be opened, and its journal is the system's business
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def is_there(name: str) -> bool:
    """Return whether there is a file or folder of a name that a person gave; no file can have some of these."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def remove(path: Path) -> None:
    """Remove a file, if it is there.

    Raises:
        OSError: the system refuses.
    """
    _insist(lambda: path.unlink(missing_ok=True))


def remove_when_unmapped(path: Path) -> None:
    """Remove a file, if it is there: at once, or where Windows refuses, with a later call or at the process's end.

    A file that is mapped to the very end stays.

    Raises:
        OSError: the system refuses for another reason.
    """
    with _lock:
        _unremoved.add(path)
    _remove_rest()


@atexit.register
def _remove_rest() -> None:
    with _lock:
        for path in list(_unremoved):
            try:
                path.unlink(missing_ok=True)
            except PermissionError:
                if os.name == "posix":
                    _unremoved.discard(path)
                    raise
            else:
                _unremoved.discard(path)


def _insist(act: Callable[[], object]) -> None:
    """Do something to a file; on Windows again and again, as long as somebody has it open, within patience."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            act()
            return
        except PermissionError:
            if os.name == "posix" or time.monotonic() > deadline:
                raise
            time.sleep(_STEP_SECONDS)
