"""What several runs of a comparison say alike, said once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coterie.errors import count_of
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

    @property
    def kinds(self) -> set[tuple[str, str]]:
        """Its methods, each with the note without what differs between runs that say the same."""
        return {(cell.method, kind_of(self.text)) for cell in self.cells}

    def describe(self, runs: int) -> str:
        """Write the note with who says it.

        `fedavg, seed 0: …` of one run, `fedavg: … (2 of 6 runs)` of several, and `fedavg: … (seed 0; 2 others
        differ only in numbers)` where other runs of the method have other numbers.
        """
        first, *more = self.cells
        if not self.others and not more:
            return f"{first.label}: {self.text}"
        if not self.others and len(self.cells) == runs:
            return f"{self.text} (all {runs} runs)"
        methods = ", ".join(dict.fromkeys(cell.method for cell in self.cells))
        who = ", ".join([*filter(None, [first.setting]), f"seed {first.seed}"])
        who = f"{len(self.cells)} of {runs} runs" if more else who
        others = f"; {count_of(self.others, 'other')} differ{'s' * (self.others == 1)} only in numbers"
        return f"{methods}: {self.text} ({who}{others if self.others else ''})"


def kind_of(text: str) -> str:
    """Return a note without what differs between runs that say the same: numbers, and lists in brackets."""
    return _NUMBERS.sub("", _LISTS.sub("", text))


def gather_notes(notes: Iterable[tuple[Cell, str]]) -> list[Note]:
    """Return each note once, in the order of the first that say it.

    Notes that are equal to the letter are one, whoever says them. Notes that differ in numbers or lists in brackets
    are one where the same method says them: a number that is advised to one method is no advice to another.
    """
    of_methods: dict[tuple[str, str], dict[tuple[str, str], Cell]] = {}
    for cell, text in notes:
        of_methods.setdefault((cell.method, kind_of(text)), {}).setdefault((cell.key, text), cell)
    found: dict[str, dict[tuple[str, str], Cell]] = {}
    for said in of_methods.values():
        (_, text), *_ = said
        found.setdefault(text, {}).update(said)
    return [
        Note(
            text,
            [cell for (_, own), cell in said.items() if own == text],
            sum(own != text for _, own in said),
        )
        for text, said in found.items()
    ]


def describe_notes(notes: Iterable[tuple[Cell, str]], runs: int) -> list[str]:
    """Write each note once, with who of so many runs says it: `MOST_NOTES` of them, and how many more there are."""
    gathered = gather_notes(notes)
    left = len(gathered) - MOST_NOTES
    several = "1 more note is" if left == 1 else f"{left:,} more notes are"
    more = [f"{several} in the runs' own folders, in warnings.json"] if left > 0 else []
    return [*(note.describe(runs) for note in gathered[:MOST_NOTES]), *more]
