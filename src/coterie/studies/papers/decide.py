"""Decide a claim by adding seeds to the methods that it compares, and to no other.

The claim is judged after 4, 6, 8, 11, 14, 18, 24 and 32 seeds, at a level of 1 % each time. Over all looks
together an interval then misses the true difference in 5 % of the cases, for differences that are normally
distributed: a group-sequential test (Pocock, Biometrika 64, 1977) by Student's t, whose level per look was found
by simulation. So whatever ends the search may be read off at the same level: that the claim holds, that it does
not, that accuracies are equal within a point, or that the published difference is excluded, after which it would
be futile to go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from coterie.errors import BadInput
from coterie.studies.compare import measures
from coterie.studies.compare.folder import find_finished
from coterie.studies.compare.spec import Cell, Comparison
from coterie.studies.papers import result
from coterie.studies.papers.claims import (
    DECIDED,
    JudgedClaim,
    PublishedSize,
    Reference,
    find_published_size,
    references,
)
from coterie.studies.papers.item import Claim, Item
from coterie.studies.papers.result import Result

LOOKS = (4, 6, 8, 11, 14, 18, 24, 32)
"""After how many seeds a claim is judged."""

LEVEL_OF_A_LOOK = 0.01
"""Two-sided error of one look, so that it is 5 % over all of them."""


class Look(NamedTuple):
    """A claim after so many seeds."""

    claim: Claim
    judged: JudgedClaim
    size: PublishedSize

    @property
    def end(self) -> Literal["", "decided", "futile"]:
        """Why no seed is added for it; "" where more may decide it.

        With a margin a claim is on the size of the difference itself, and is decided by it.
        """
        if self.judged.verdict in (*DECIDED, "equal within a point"):
            return "decided"
        margin = self.claim.links[self.judged.deciding].has_margin
        return "futile" if self.size.startswith("excluded") and not margin else ""


@dataclass(frozen=True)
class Decision:
    """Claims of an item that are decided at a scale."""

    item: Item
    scale: str
    claims: Sequence[int]
    """Which of the item's."""

    @classmethod
    def of(cls, item: Item, scale: str) -> Decision:
        """Return that of the item's main claims, or of all where it has none, as far as the scale has their
        numbers.

        Raises:
            BadInput: none of them can be decided at this scale.
        """
        item.require_scale(scale)
        there = {*item.wanted_numbers(scale)}
        main = [i for i, claim in enumerate(item.claims) if claim.headline] or range(len(item.claims))
        open_ = [i for i in main if item.claims[i].verdict is None]
        chosen = [i for i in open_ if _numbers_of(item, item.claims[i]) <= there]
        if not chosen:
            why = "the scale leaves out what they compare" if open_ else "no number decides them; see its page"
            raise BadInput(f"seeds cannot decide the claims of {item.id} at scale {scale}: {why}")
        return cls(item, scale, tuple(chosen))

    @cached_property
    def _comparison(self) -> Comparison:
        return self.item.comparison(self.scale)

    def comparison(self, seeds: int) -> Comparison:
        """Return the item at the scale from so many seeds, of which `cells` are run."""
        return replace(self._comparison, seeds=tuple(range(seeds)))

    def cells(self, claims: Sequence[int], seeds: int) -> list[Cell]:
        """Return the runs of the methods that claims compare, seed after seed."""
        numbers = {number for i in claims for number in _numbers_of(self.item, self.item.claims[i])}
        places = {(number.setting, number.method) for number in numbers}
        if any(number.quantity.endswith("_to_target") for number in numbers):
            # The target may be what the baseline has in the end.
            places |= {(setting, self._comparison.baseline) for setting, _ in places}
        cells = [cell for cell in self.comparison(seeds).cells() if (cell.setting, cell.method) in places]
        return sorted(cells, key=lambda cell: cell.seed)

    def measure(self, seeds: int, pool: Path, failed: Mapping[str, str]) -> Result:
        """Read the numbers of the claims from the runs that are finished.

        Args:
            seeds: how many.
            pool: where the runs are.
            failed: a sentence for each run that failed, by key.
        """
        cells = self.cells(self.claims, seeds)
        finished, comparison = find_finished(cells, pool), self.comparison(seeds)
        frames = measures.measure_cells(comparison, finished)
        those = {key: sentence for key, sentence in failed.items() if key in {cell.key for cell in cells}}
        whole = result.measure_item(self.item, self.scale, comparison, frames, finished, those.values())
        wanted = {number for i in self.claims for number in _numbers_of(self.item, self.item.claims[i])}
        values = {number: found for number, found in whole.values.items() if number in wanted}
        rows = {number.method for number in wanted}
        return replace(
            whole,
            digest=self.item.digest(self.scale, values),
            values=values,
            runs=len({cell.key for cell in cells}),
            notes=(),
            methods={name: settings for name, settings in whole.methods.items() if name in rows},
            level=LEVEL_OF_A_LOOK,
        )

    def look(self, found: Result) -> list[Look]:
        """Judge the claims by the numbers of a look."""
        judged, printed = result.judge_claims(self.item, found), result.judge_published(self.item)
        return [
            Look(self.item.claims[i], judged[i], find_published_size(judged[i], printed[i])) for i in self.claims
        ]


def _numbers_of(item: Item, claim: Claim) -> set[Reference]:
    """The numbers that a claim compares, with their settings."""
    return {item.with_setting(r, pooled) for r in references(claim.links) for pooled in claim.pool or [""]}
