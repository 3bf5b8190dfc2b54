"""Who is asked together.

It depends on who takes part alone, never on the number of workers or the runtime: a kernel's last digits may depend
on who shares it.
"""

from __future__ import annotations


def chunks(count: int, together: int) -> list[range]:
    """The orders of an exchange, divided among those who carry them out.

    Args:
        count: how many orders there are.
        together: how many clients the engine is best asked for at once. Eight chunks or so keep the usual number of
            cores busy.
    """
    size = min(together, max(8, -(-count // 8)))
    return [range(a, min(a + size, count)) for a in range(0, count, size)]


def ranges(count: int, together: int) -> list[tuple[int, int]]:
    """`count` models divided evenly into runs of at most `together`."""
    runs = -(-count // together)
    return [(i * count // runs, (i + 1) * count // runs) for i in range(runs)]
