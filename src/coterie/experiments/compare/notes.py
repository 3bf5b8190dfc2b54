"""What several runs of a comparison say alike, said once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from coterie.experiments.compare.spec import Cell

_OWN = re.compile(r"\([^()]*\)|(?<![\w.-])-?\d+([.,]\d+)*(e[+-]?\d+)?(?![\w-]|[.,]\d)")
"""What differs between runs that say the same: numbers that stand alone, and lists in brackets."""


def kind_of(text: str) -> str:
    """Return a note without what differs between runs that say the same."""
    return _OWN.sub("", text)


def gather_notes(notes: Iterable[tuple[Cell, str]]) -> list[tuple[str, list[Cell]]]:
    """Return each note once, with the runs that say it; notes that differ in numbers or brackets alone are one."""
    found: dict[str, tuple[str, dict[str, Cell]]] = {}
    for cell, text in notes:
        found.setdefault(kind_of(text), (text, {}))[1].setdefault(cell.key, cell)
    return [(text, list(cells.values())) for text, cells in found.values()]


def describe_note(text: str, cells: Sequence[Cell], runs: int) -> str:
    """Return a note with who says it: `fedavg, seed 0: …` of one run, `fedavg: … (2 of 6 runs)` of several."""
    if len(cells) == 1:
        return f"{cells[0].label}: {text}"
    methods = ", ".join(dict.fromkeys(cell.method for cell in cells))
    return f"{text} (all {runs} runs)" if len(cells) == runs else f"{methods}: {text} ({len(cells)} of {runs} runs)"
