"""Who is asked together.

Where a kernel's last digits may depend on who shares it, that goes by who takes part alone, never by the number of
workers or the runtime.
"""

from __future__ import annotations


def chunks(count: int, together: int, parts: int = 8) -> list[range]:
    """The orders of an exchange, divided among those who carry them out.

    Args:
        count: how many orders there are.
        together: how many clients the engine is best asked for at once.
        parts: how many chunks there are, unless they get too small. Eight or so keep the usual cores busy.
    """
    size = min(together, max(8, -(-count // parts)))
    return [range(a, min(a + size, count)) for a in range(0, count, size)]


def ranges(count: int, together: int) -> list[tuple[int, int]]:
    """`count` models divided evenly into runs of at most `together`."""
    runs = -(-count // together)
    return [(i * count // runs, (i + 1) * count // runs) for i in range(runs)]
