"""What this machine has room for: what would not fit is refused in one sentence, before it is made."""

from __future__ import annotations

import sys
from pathlib import Path

from coterie.errors import BadInput

KIB = 1024


def available_bytes() -> int | None:
    """Return the bytes that this process may still take without swapping; None where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("ascii").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * KIB
    except (OSError, KeyError):
        return None
    return min(left for left in (free, _container_bytes(), _process_bytes()) if left is not None)


def require(needed: int, what: str, instead: str) -> None:
    """Let `what` pass where this machine has memory for it.

    Args:
        needed: bytes that it takes at least.
        what: the subject of the sentence that refuses it, as in `network.hidden = [50000, 50000]`.
        instead: what would be right.

    Raises:
        BadInput: there is less memory.
    """
    free = available_bytes()
    if free is not None and needed > free:
        raise BadInput(
            f"{what} would take {needed / 1e9:,.1f} GB of memory, and there are {free / 1e9:,.1f} GB free here; "
            f"{instead}"
        )


def _container_bytes() -> int | None:
    """Return the bytes that a container's limit leaves; None where there is no limit."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text("ascii").strip()
        used = int((group / "memory.current").read_text("ascii"))
        numbers = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
    except (OSError, ValueError):
        return None
    # The kernel gives up cached pages of files when memory runs short.
    return None if limit == "max" else int(limit) - used + int(numbers.get("inactive_file", 0))


def _process_bytes() -> int | None:
    """Return the bytes that a limit on this process (`ulimit -v`) leaves; None where there is no limit.

    It limits addresses, of which allocators take about twice as many as they fill.
    """
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    return max(0, limit - pages * resource.getpagesize()) // 2
