"""How an item stands at a scale: run, outdated or still to be run, and how long its runs take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coterie.studies.papers import result
from coterie.studies.papers.item import Item
from coterie.studies.papers.result import Result

State = Literal["up to date", "incomplete", "outdated", "to be run"]


@dataclass(frozen=True)
class Standing:
    """An item at a scale."""

    state: State
    seconds: float | None
    """The time of its runs added up; None where nothing like it has been run."""
    measured: bool
    """Whether all of these have been run, in the same number; else it is an estimate."""


Results = Mapping[tuple[str, str], Result]
"""Results by item and scale."""


def read_last_results(items: Iterable[Item], folder: Path | None, keep: Path | None) -> Results:
    """Read the results of items by name and scale: those kept, else those in the folder of runs.

    A result in the folder of runs that is up to date goes before a kept one that is not.

    Raises:
        BadInput: a file is damaged.
    """
    found: dict[tuple[str, str], Result] = {}
    for item in items:
        for scale in item.scales:
            own = None if folder is None else folder / f"{item.id}-{scale}" / "result.json"
            kept = None if keep is None else keep / f"{item.id}-{scale}.json"
            there = [result.read(path) for path in (kept, own) if path is not None and path.is_file()]
            if there:
                found[item.id, scale] = min(there, key=lambda one: _state(item, one) != "up to date")
    return found


def assess(item: Item, scale: str, results: Results, items: Sequence[Item]) -> Standing:
    """Say how an item stands at a scale.

    The time is that of its result. Runs that the result lacks take as long a round as those that it has. Without
    any, a round takes as long as on average in the results of its paper at that scale, or in those of all papers.

    Args:
        item: which one.
        scale: one that it has.
        results: by item and scale; see `read_last_results`.
        items: those that the results are of.
    """
    found = results.get((item.id, scale))
    state = _state(item, found) if found else "to be run"
    if found and _is_complete(item, found):
        return Standing(state, found.seconds, measured=True)
    for alike in ([item], [o for o in items if o.paper == item.paper], items):
        known = [(o, results[o.id, scale]) for o in alike if (o.id, scale) in results]
        rounds = sum(_count_rounds(o, scale, one) for o, one in known)
        if rounds:
            spent = sum(one.seconds for _, one in known)
            return Standing(state, spent / rounds * _count_rounds(item, scale), measured=False)
    return Standing(state, None, measured=False)


def _state(item: Item, found: Result) -> State:
    if found.is_stale(item):
        return "outdated"
    return "up to date" if _is_complete(item, found) else "incomplete"


def _is_complete(item: Item, found: Result) -> bool:
    """Whether every run that the item has now was finished, be it with other settings."""
    return not found.missing(item) and found.finished == found.runs


def _count_rounds(item: Item, scale: str, found: Result | None = None) -> int:
    """Return the rounds of all runs of an item at a scale; with a result, of those that it has numbers of."""
    comparison = item.comparison(scale)
    seeds: dict[tuple[str, str], int] = {}
    for reference, numbers in found.values.items() if found else ():
        row = reference.method, reference.setting
        seeds[row] = max(seeds.get(row, 0), sum(number is not None for number in numbers))
    return sum(
        comparison.experiment_of(s, m, comparison.seeds[0]).run.rounds
        * (seeds.get((m.name, s.name), 0) if found else len(comparison.seeds))
        for s in comparison.settings
        for m in comparison.methods
    )
