"""What several runs of a comparison say alike, said once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coterie.studies.compare.spec import Cell

MOST_NOTES = 10
"""Notes that are listed behind a table; of more the rest is counted."""

_NUMBERS = re.compile(r"(?<![\w.-])-?\d+([.,]\d+)*(e[+-]?\d+)?(?![\w-]|[.,]\d)")
"""Numbers that stand alone: not those of names such as x1."""

_LISTS = re.compile(r"\([^()]*\)")
"""Lists in brackets, as of the clients for whom training diverged."""


@dataclass(frozen=True)
class Note:
    """A note with the runs that say it. Others of the same methods may say it with other numbers."""

    text: str
    cells: Sequence[Cell]
    """Those that say it to the letter."""
    others: int = 0
    """How many notes of these methods are alike but for numbers, and for lists in brackets."""
    differs_in: str = "the numbers"
    """In what the others differ."""

    @property
    def kinds(self) -> set[tuple[str, str]]:
        """Its methods, each with the note without what differs between runs that say the same."""
        return {(cell.method, kind_of(self.text)) for cell in self.cells}

    def describe(self, runs: int) -> str:
        """Write the note with who says it.

        `fedavg, seed 0: …` of one run, `fedavg: … (2 of 6 runs)` of several, and `fedavg: … (seed 0; 2 others
        differ only in the numbers)` where other runs of the method have other numbers.
        """
        if len(self.cells) == 1 and not self.others:
            return f"{self.cells[0].label}: {self.text}"
        if len(self.cells) == runs and not self.others:
            return f"{self.text} (all {runs} runs)"
        methods = ", ".join(dict.fromkeys(cell.method for cell in self.cells))
        return f"{methods}: {self.text} ({self._describe_runs(runs)}{self._describe_others()})"

    def _describe_runs(self, runs: int) -> str:
        if len(self.cells) > 1:
            return f"{len(self.cells)} of {runs} runs"
        cell = self.cells[0]
        return ", ".join([*filter(None, [cell.setting]), f"seed {cell.seed}"])

    def _describe_others(self) -> str:
        if not self.others:
            return ""
        several = "1 other differs" if self.others == 1 else f"{self.others} others differ"
        return f"; {several} only in {self.differs_in}"


def kind_of(text: str) -> str:
    """Return a note without what differs between runs that say the same: numbers, and lists in brackets."""
    return _NUMBERS.sub("", _LISTS.sub("", text))


def gather_notes(notes: Iterable[tuple[Cell, str]]) -> list[Note]:
    """Return each note once, in the order of the first that say it.

    Notes that are equal to the letter are one, whoever says them. Notes that differ in numbers or lists in brackets
    are one where the same method says them: a number that is advised to one method is no advice to another.
    """
    rows: dict[tuple[str, str], dict[tuple[str, str], Cell]] = {}
    for cell, text in notes:
        rows.setdefault((cell.method, kind_of(text)), {}).setdefault((cell.key, text), cell)
    found: dict[str, list[dict[tuple[str, str], Cell]]] = {}
    for said in rows.values():
        (_, text), *_ = said
        found.setdefault(text, []).append(said)
    return [_merge(text, of_methods) for text, of_methods in found.items()]


def describe_notes(notes: Iterable[tuple[Cell, str]], runs: int) -> list[str]:
    """Write each note once, with who of so many runs says it: `MOST_NOTES` of them, and how many more there are."""
    gathered = gather_notes(notes)
    left = len(gathered) - MOST_NOTES
    several = "1 more note is" if left == 1 else f"{left:,} more notes are"
    more = [f"{several} in the runs' own folders, in warnings.json"] if left > 0 else []
    return [*(note.describe(runs) for note in gathered[:MOST_NOTES]), *more]


def _merge(text: str, of_methods: Sequence[dict[tuple[str, str], Cell]]) -> Note:
    """Return the note of several methods that begin with the same text; keys are the run's and what it says."""
    said = {key: cell for own in of_methods for key, cell in own.items()}
    cells = {run: cell for (run, own), cell in said.items() if own == text}
    others = [own for _, own in said if own != text]
    lists_alike = all(_NUMBERS.sub("", own) == _NUMBERS.sub("", text) for own in others)
    return Note(text, [*cells.values()], len(others), "the numbers" if lists_alike else "numbers and lists")
