"""How an item stands at a scale: run, outdated or without a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from coterie.studies.papers import result
from coterie.studies.papers.item import Item
from coterie.studies.papers.result import Result

State = Literal["up to date", "incomplete", "outdated", "no result"]

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
                found[item.id, scale] = min(there, key=lambda one: assess(item, one) != "up to date")
    return found


def assess(item: Item, found: Result | None) -> State:
    """Say how an item stands by its result at a scale."""
    if found is None:
        return "no result"
    if found.is_stale(item):
        return "outdated"
    # Every run that the item has now was finished, be it with other settings.
    return "up to date" if not found.missing(item) and found.finished == found.runs else "incomplete"
