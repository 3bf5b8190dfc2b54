"""Supervises the processes of a federation: starts them, restarts them, and ends them all when its owner has gone.

A program of its own that needs the standard library alone (`python -I supervisor.py`). It reads one JSON object a
line and answers each with one line. When its input ends, however its owner ended, it ends every process that it
started and every process that these started, and then itself.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

assert sys.platform != "win32", "Windows has no signals by which processes take leave, and none is adopted there"

RESTART_SECONDS = 5.0
"""After which a process that ended is started again."""

END_SECONDS = 5.0
"""For a process that was asked to end; after that it is killed."""

_PARENT_DEATH, _ADOPT = 1, 36
"""Numbers of Linux's prctl: the signal that a process gets when its parent dies; who adopts orphans."""


@dataclass
class Supervised:
    """A process as it was asked for and as it is now."""

    request: dict[str, Any]
    process: subprocess.Popen[bytes]
    ended: float = 0.0

    @property
    def running(self) -> bool:
        """Whether it is not known to have ended; `Supervisor.update` finds out."""
        return self.process.returncode is None


class Supervisor:
    """The processes by name, in the order in which they were started."""

    def __init__(self) -> None:
        self._processes: dict[str, Supervised] = {}
        self._restarts = True

    def answer(self, request: dict[str, Any]) -> Any:
        """Carry out a request.

        `start` (name, command, folder, environment, log) starts a process and answers with its id. `find` (name,
        program) answers with the ids of the processes that run a program, among the named one and all below it.
        `running` answers with the names that run.
        """
        if request["do"] == "running":
            return [name for name, process in self._processes.items() if process.running]
        name = request["name"]
        if request["do"] == "start":
            self._processes[name] = Supervised(request, _start(request))
            return self._processes[name].process.pid
        if not self._processes[name].running:
            return []
        pid = self._processes[name].process.pid
        return [each for each in (pid, *family(pid)) if is_running(request["program"], each)]

    def update(self) -> None:
        """Note which processes have ended, and restart those whose time has come."""
        ended = dict(_reap())
        for each in self._processes.values():
            process = each.process
            if each.running and process.pid in ended:
                process.returncode, each.ended = ended[process.pid], time.monotonic()
            if not each.running and self._restarts and time.monotonic() > each.ended + RESTART_SECONDS:
                each.process = _start(each.request)

    def end(self) -> None:
        """End everything: the first that was started last, because nodes take leave of a server that is there."""
        self._restarts = False
        processes = [each.process for each in self._processes.values()]
        self._terminate(processes[1:])
        self._terminate(processes[:1])
        # A killed process may leave others behind. This process adopts them, so that they can be found here.
        while left := family(os.getpid()):
            _kill(left)
            time.sleep(0.02)
            self.update()
        self.update()  # an ended process stays listed until its parent has noted its end

    def _terminate(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Ask processes to end and wait for them; those that do not are killed with all below them."""
        for process in processes:
            if process.returncode is None:
                os.kill(process.pid, signal.SIGTERM)
        if not self._wait_for(processes, END_SECONDS):
            for process in processes:
                if process.returncode is None:
                    _kill([process.pid, *family(process.pid)])
            self._wait_for(processes)

    def _wait_for(self, processes: list[subprocess.Popen[bytes]], seconds: float = math.inf) -> bool:
        """Return whether processes have all ended after so many seconds."""
        deadline = time.monotonic() + seconds
        while any(process.returncode is None for process in processes):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
            self.update()
        return True


def _start(request: dict[str, Any]) -> subprocess.Popen[bytes]:
    with Path(request["log"]).open("ab") as log:
        return subprocess.Popen(
            request["command"],
            cwd=request["folder"],
            env=request["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent if _LIBC else None,
        )


def _reap() -> Iterator[tuple[int, int]]:
    """Yield every child that has ended, adopted orphans included, with its exit code."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def family(root: int) -> list[int]:
    """Return every process below `root`, parents before their children."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def parents() -> Iterator[tuple[int, int]]:
    """Yield each process and its parent, without those that have ended and are still listed."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.Popen(["ps", "-axo", "pid=,ppid=,state="], stdout=subprocess.PIPE, text=True)
        for pid, parent, state in map(str.split, listing.communicate()[0].splitlines()):
            if state[0] != "Z" and int(pid) != listing.pid:
                yield int(pid), int(parent)
        return
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:2]
            except OSError:
                continue  # it has ended since
            if state not in "ZX":
                yield int(entry.name), int(parent)


def command(pid: int) -> list[str]:
    """Return the command line of a process; empty where it has ended."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").split("\0")
        except OSError:
            return []
    return subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True).stdout.split()


def is_running(program: str, pid: int) -> bool:
    """Return whether a process runs a program, itself or as a script that an interpreter reads."""
    return program in [Path(word).name for word in command(pid)[:2]]


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    assert _LIBC is not None
    _LIBC.prctl(_PARENT_DEATH, signal.SIGKILL)


def main() -> None:
    """Answer requests until the input ends."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _LIBC is not None:
        _LIBC.prctl(_ADOPT, 1)
    supervisor, text = Supervisor(), b""
    try:
        while True:
            supervisor.update()
            if not select.select([0], [], [], 0.1)[0]:
                continue
            read = os.read(0, 1 << 16)
            if not read:
                return
            *lines, text = (text + read).split(b"\n")
            for line in lines:
                print(json.dumps(supervisor.answer(json.loads(line))), flush=True)
    finally:
        supervisor.end()


if __name__ == "__main__":
    main()
