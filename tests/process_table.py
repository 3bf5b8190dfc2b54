"""The processes of a Linux machine, as /proc shows them."""

from __future__ import annotations

import os
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


def _ids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    except OSError:
        return None
