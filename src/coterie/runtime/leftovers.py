"""What killed processes leave behind: files that were half written, and the parts of a Ray of their own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_HALF_WRITTEN = re.compile(r"\..+\.(\d{1,9})\.new|\.coterie-(\d{1,9})-\w+")
"""The name of a file that the process of that number writes, before it takes its place; or of the clients' states,
which on Linux has lost its name a moment later."""

_SYNCHRONIZE = 0x00100000
"""The right to wait for a process of Windows, which is all that is asked of it."""

OWNER = "owner"
"""In the folder of a Ray of its own, the number of the process that began it."""


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


def remove_rays(place: Path) -> None:
    """End the agents of every Ray in `place` whose owner was killed, and remove its folder.

    Ray's servers end with their owner. Its agents go on for minutes: they tell a server of its end that has ended.
    Which processes belong to a folder is known on Linux alone; elsewhere they end by themselves.
    """
    if sys.platform == "win32":
        return
    for folder in place.glob("ray-*"):
        if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
            continue
        with suppress(OSError, ValueError):  # there is no owner, or another process removes it too
            if _has_ended(int((folder / OWNER).read_text("ascii"))):
                for pid in _agents(folder):
                    os.kill(pid, signal.SIGKILL)
                shutil.rmtree(folder, ignore_errors=True)


def _has_ended(pid: int) -> bool:
    """Whether a process that wrote its number has ended; in a container the same number is given again."""
    return pid == os.getpid() or not is_alive(pid)


def _agents(folder: Path) -> Iterator[int]:
    """The processes of Ray that have a file in a folder open."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is somebody else's
            if (process / "cmdline").read_bytes().startswith(b"ray::") and any(
                str(handle.readlink()).startswith(f"{folder}/") for handle in (process / "fd").iterdir()
            ):
                yield int(process.name)
