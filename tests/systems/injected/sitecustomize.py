"""Python as the package finds it on Windows or macOS, here: what is not there is not there.

Every Python process that has this folder on its path begins with it, and `COTERIE_SYSTEM` says which system it is:
`win32` or `darwin`. Modules of the package alone get another `os`, `sys`, `signal`, `multiprocessing` and so on;
the standard library and other packages go on as on this system. There is no /proc and no /dev/shm for
the package. On Windows nobody may remove, replace or rename what any of these processes has open or mapped, or
write a file of a name that Windows does not allow.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import importlib
import multiprocessing
import os
import re
import sys
import threading
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

SYSTEM = os.environ.get("COTERIE_SYSTEM")
TOGETHER = "COTERIE_TOGETHER"
"""In the environment of the processes of one call, by which they find each other."""

ABSENT: dict[str | None, dict[str, str]] = {
    "darwin": {
        "os": """
            eventfd memfd_create O_TMPFILE pidfd_open posix_fadvise posix_fallocate sched_getaffinity
            sched_getscheduler sched_param sched_setscheduler SCHED_BATCH SCHED_OTHER
        """,
    },
    "win32": {
        "os": """
            chown chroot eventfd fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg getpgid
            getpgrp getsid getuid killpg memfd_create mkfifo mknod nice O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK
            O_SYNC O_TMPFILE pidfd_open posix_fadvise posix_fallocate posix_spawn pread pwrite sched_getaffinity
            sched_getscheduler sched_param sched_setscheduler SCHED_BATCH SCHED_OTHER sendfile setsid statvfs sync
            sysconf ttyname uname wait wait3 wait4 waitid WNOHANG WUNTRACED
        """,
        "signal": """
            alarm getitimer ITIMER_REAL pause pthread_kill pthread_sigmask setitimer SIGALRM SIGCHLD SIGCONT SIGHUP
            SIGKILL sigpending SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 sigwait SIG_BLOCK SIG_SETMASK SIG_UNBLOCK
        """,
        "socket": "AF_UNIX",
        "time": "CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID CLOCK_REALTIME clock_gettime tzset",
    },
}
ABSENT_MODULES = {"win32": {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}}

PARENT = os.getppid()
O_BINARY = 0x8000
BAD_NAME = re.compile(r'(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?|.*[<>:"|?*\\\x00-\x1f].*|.*[. ]')
text_files: set[int] = set()
"""Files that were opened to have line feeds translated, as is the default of `os.open` there."""


class Replaced(types.ModuleType):
    """A module without some of its names, and with others in their place."""

    def __init__(self, real: types.ModuleType, absent: set[str], instead: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        vars(self).update(instead, real_module=real, absent_names=absent)

    def __getattr__(self, name: str) -> Any:
        if name in self.absent_names:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on Windows")
        return getattr(self.real_module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.real_module, name, value)


def open_file(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
    handle = os.open(path, flags & ~O_BINARY, mode, **more)
    (text_files.discard if flags & O_BINARY else text_files.add)(handle)
    return handle


def write_file(handle: int, data: Any) -> int:
    if handle not in text_files:
        return os.write(handle, data)
    os.write(handle, bytes(data).replace(b"\n", b"\r\n"))
    return len(data)


def send_signal(pid: int, number: int) -> None:
    raise AssertionError("on Windows this ends a process, whatever the number")


def get_context(method: str | None = None) -> Any:
    if method == "fork":
        raise ValueError("cannot find context for 'fork'")
    return multiprocessing.get_context(method or "spawn")


def lock(handle: int, mode: int, length: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_UN if mode == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise PermissionError(errno.EACCES, "Permission denied") from None


def open_process(access: int, inherit: bool, pid: int) -> int:
    if not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110
        raise OSError(errno.EINVAL, "The parameter is incorrect")
    return pid


def wait_for(handle: int, milliseconds: int) -> int:
    with suppress(OSError):
        os.kill(handle, 0)
        return 258
    return 0


WINDOWS: dict[str, dict[str, Any]] = {
    "os": {
        "name": "nt",
        "O_BINARY": O_BINARY,
        "open": open_file,
        "write": write_file,
        "kill": send_signal,
        "getppid": lambda: PARENT,
    },
    "sys": {"platform": "win32"},
    "multiprocessing": {"get_context": get_context},
    "msvcrt": {"LK_UNLCK": 0, "LK_NBLCK": 2, "locking": lock},
    "_winapi": {
        "WAIT_TIMEOUT": 258,
        "OpenProcess": open_process,
        "WaitForSingleObject": wait_for,
        "CloseHandle": lambda handle: None,
    },
}

INSTEAD = WINDOWS if SYSTEM == "win32" else {"sys": {"platform": SYSTEM}}

plain_import = builtins.__import__
replaced: dict[str, types.ModuleType] = {}


def replace_module(name: str) -> types.ModuleType:
    if name not in replaced:
        real = types.ModuleType(name) if name in ("msvcrt", "_winapi") else importlib.import_module(name)
        replaced[name] = Replaced(real, set(ABSENT[SYSTEM].get(name, "").split()), INSTEAD.get(name, {}))
    return replaced[name]


def import_module(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    if level == 0 and str((globals or {}).get("__name__")).startswith("coterie"):
        if name in ABSENT_MODULES.get(str(SYSTEM), ()):
            raise ModuleNotFoundError(f"No module named {name!r} on Windows", name=name)
        if name in ABSENT[SYSTEM] or name in INSTEAD:
            return replace_module(name)
    return plain_import(name, globals, locals, fromlist, level)


EVENTS = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}
strangers: set[str] = set()
"""Processes of others: whoever looks again need not read what they were started with."""
looking = threading.local()
"""Has `there` where this file itself reads /proc, which nobody else has."""


def holders(path: str) -> list[str]:
    """Who of these processes has a file open or mapped."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if process.name in strangers:
            continue
        with suppress(OSError):
            if f"{TOGETHER}={os.environ[TOGETHER]}".encode() not in (process / "environ").read_bytes():
                strangers.add(process.name)
                continue
            maps = (process / "maps").read_text("utf-8", "replace")
            if any(line.endswith(f" {path}") for line in maps.splitlines()):
                found.append(f"{process.name} maps it")
            for handle in (process / "fd").iterdir():
                with suppress(OSError):
                    if str(handle.readlink()) == path:
                        found.append(f"{process.name} has it open")
    return found


def is_asked_by_the_package() -> bool:
    """Whether a module of the package, and no library, does what is going on, by paths or temporary files."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "pathlib",
        "tempfile",
        "os",
    ):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ("coterie", "__main__")


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what the system does not do; called by Python before it does it."""
    if event not in EVENTS or hasattr(looking, "there"):
        return
    is_written = event == "open" and bool(
        set(str(arguments[1] or "")) & set("wxa+") or (arguments[2] or 0) & os.O_CREAT
    )
    if event == "open" and not is_written and not str(arguments[0]).startswith(("/proc", "/dev/shm")):
        return  # thousands of modules
    named = arguments[: 2 if event == "os.rename" else 1]
    for path in [os.path.realpath(os.fsdecode(n)) for n in named if isinstance(n, str | bytes | os.PathLike)]:
        if path.startswith(("/proc", "/dev/shm")) and is_asked_by_the_package():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if SYSTEM != "win32" or path.startswith("/dev/"):
            continue
        is_moved = event in ("os.remove", "os.rename", "os.rmdir")
        looking.there = True
        try:
            who = holders(path) if is_moved else []
        finally:
            del looking.there
        if who:
            raise PermissionError(errno.EACCES, f"it is used by another process: {', '.join(who)}", path)
        if (is_moved or is_written or event == "os.mkdir") and BAD_NAME.fullmatch(path.rpartition("/")[2]):
            said = "The filename, directory name, or volume label syntax is incorrect"
            raise OSError(errno.EINVAL, said, path)


if SYSTEM is not None:
    assert "coterie" not in sys.modules
    builtins.__import__ = import_module
    sys.addaudithook(refuse)
