"""How much memory a process and all that it started hold, read from /proc."""

from __future__ import annotations

from pathlib import Path


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


def held(root: int) -> int:
    """Bytes that a process and its descendants hold.

    Their own memory and what they share among them, divided among who shares it; and of files, programs and
    libraries, which others may map too, as much as the one that maps most.
    """
    own, files = 0, [0]
    for one in tree(root):
        try:
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            status = Path(f"/proc/{one}/status").read_text().splitlines()
        except OSError:
            continue
        own += sum(int(line.split()[1]) for line in rollup if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
        files += [int(line.split()[1]) for line in status if line.startswith("RssFile:")]
    return 1024 * (own + max(files))
