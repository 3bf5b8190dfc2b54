"""The processes of a Linux machine, as /proc shows them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def command(pid: int) -> list[str]:
    """Return the command line of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").split("\0")
    except OSError:
        return []


def family(root: int) -> list[int]:
    """Return every process below `root`, parents before their children."""
    parents = {pid: parent for pid in _ids() if (parent := _parent(pid)) is not None}
    found = [root]
    for above in found:
        found += [pid for pid, parent in parents.items() if parent == above]
    return found[1:]


def about(word: str) -> list[int]:
    """Return the processes, without this one, whose command lines have a word."""
    return [pid for pid in _ids() if pid != os.getpid() and word in " ".join(command(pid))]


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; nobody may have asked for its code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until a condition holds; return whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(0.005)
    return True


def _ids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    except OSError:
        return None
