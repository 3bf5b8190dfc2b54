"""How much memory a process and all that it started hold, read from /proc."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [root]
    for one in found:
        found += children.get(one, [])
    return found


def require_proc() -> None:
    """Refuse to begin where memory cannot be measured, for it would be given as 0."""
    if not Path("/proc/self/smaps_rollup").exists():
        raise SystemExit("this benchmark reads memory from /proc, which this system lacks; it must be Linux")


class Held(NamedTuple):
    """Bytes that a process and its descendants hold at a moment."""

    files: int
    """Of files, programs and libraries, which others may map too: as much as the one that maps most."""
    shared: int
    """What they share among them."""
    own: tuple[int, ...]
    """What each has for itself; the first is the process that was asked about."""

    @property
    def total(self) -> int:
        """All of it, what is shared counted once."""
        return self.files + self.shared + sum(self.own)


def held(root: int) -> Held:
    """What a process and its descendants hold."""
    shared, own, files = 0, list[int](), [0]
    for one in tree(root):
        try:
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            status = Path(f"/proc/{one}/status").read_text().splitlines()
        except OSError:
            continue
        kib = {line.split()[0]: int(line.split()[1]) for line in rollup[1:]}
        own.append(1024 * kib["Private_Dirty:"])  # files are only read
        shared += 1024 * (kib["Pss_Anon:"] + kib["Pss_Shmem:"]) - own[-1]
        files += [1024 * int(line.split()[1]) for line in status if line.startswith("RssFile:")]
    return Held(max(files), shared, tuple(own))
