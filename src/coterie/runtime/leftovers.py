"""What killed processes leave behind: files that were half written, and the parts of a Ray of their own."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_HALF_WRITTEN = re.compile(r"\..+\.(\d{1,9})\.new|\.coterie-(\d{1,9})-\w+")
"""The name of a file that the process of that number writes, before it takes its place; or of the clients' states,
which on Linux has lost its name a moment later."""

OWNER = "owner"
"""In the folder of a Ray of its own, the number of the process that began it."""


def is_alive(pid: int) -> bool:
    """Whether there is a process with that number; where the system is not POSIX nobody knows, and there is one."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_half_written(folder: Path) -> None:
    """Remove the files that killed processes left right in a folder: half written, `.NAME.PID.new`, or with states.

    Those of another process that is alive stay. Whoever calls this writes nothing there meanwhile.
    """
    for path in folder.glob(".*"):
        name = _HALF_WRITTEN.fullmatch(path.name)
        if name is not None and not path.is_dir() and _has_ended(int(name[1] or name[2])):
            path.unlink(missing_ok=True)


def remove_rays(place: Path) -> None:
    """End the agents of every Ray in `place` whose owner was killed, and remove its folder.

    Ray's servers end with their owner. Its agents go on for minutes: they tell a server of its end that has ended.
    Which processes belong to a folder is known on Linux alone; elsewhere they end by themselves.
    """
    if os.name != "posix":
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
