"""What killed processes leave behind: files that were half written."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path

_HALF_WRITTEN = re.compile(r"\..+\.(\d{1,9})\.new|\.coterie-(\d{1,9})-\w+")
"""The name of a file that the process of that number writes, before it takes its place; or of the clients' states,
which on Linux has lost its name a moment later."""

_SYNCHRONIZE = 0x00100000
"""The right to wait for a process of Windows, which is all that is asked of it."""


def is_alive(pid: int) -> bool:
    """Whether there is a process with that number."""
    if sys.platform == "win32":
        return _is_alive_on_windows(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_alive_on_windows(pid: int) -> bool:
    """Look through Python's own binding to the system; `os.kill(pid, 0)` would send Ctrl-C there."""
    if sys.platform != "win32":
        raise OSError("this is not Windows")
    import _winapi

    try:
        handle = _winapi.OpenProcess(_SYNCHRONIZE, False, pid)
    except PermissionError:
        return True
    except OSError:
        return False
    try:
        return _winapi.WaitForSingleObject(handle, 0) == _winapi.WAIT_TIMEOUT
    finally:
        _winapi.CloseHandle(handle)


def remove_half_written(folder: Path, *, may_be_mine: bool = False) -> None:
    """Remove the files that killed processes left right in a folder: half written, `.NAME.PID.new`, or with states.

    Those of another process that is alive stay. Those with this process's own number go as well, as in a container,
    where a former process had it; unless they `may_be_mine`.
    """
    for path in folder.glob(".*"):
        name = _HALF_WRITTEN.fullmatch(path.name)
        if name is not None and not path.is_dir() and _has_ended(int(name[1] or name[2])):
            if may_be_mine and int(name[1] or name[2]) == os.getpid():
                continue
            with suppress(PermissionError):  # somebody else's, in a folder for everybody
                path.unlink(missing_ok=True)


def _has_ended(pid: int) -> bool:
    """Whether a process that wrote its number has ended; in a container the same number is given again."""
    return pid == os.getpid() or not is_alive(pid)
