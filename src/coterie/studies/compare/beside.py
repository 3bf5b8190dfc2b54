"""Baselines beside a comparison: FedAvg, FedAvg after fine-tuning and local-only, where no method is one of them.

They are runs like the others, in every setting and from every seed, and stand below them as rows. The comparison
that is kept does not name them: who wants them for good writes them among the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from coterie.errors import BadInput
from coterie.runs.folder.baselines import FEDAVG, LOCAL, TITLES
from coterie.studies.compare.cells import CellOutcome
from coterie.studies.compare.folder import ComparisonFolder
from coterie.studies.compare.spec import Cell, Comparison, Variant

CHEAP_SECONDS = 60.0
"""Baselines are run beside a comparison where all their rounds should take at most so many seconds together."""

Which = Literal["none", "done", "cheap", "all"]
"""Which baselines are shown: none, those that have been run before, also those that are cheap, or all."""

RunCells = Callable[[Sequence[Cell]], dict[str, CellOutcome]]


@dataclass(frozen=True)
class Beside:
    """A comparison with the baselines that are finished, as further rows."""

    comparison: Comparison
    notes: Sequence[str]
    """Which baselines were not run, and why."""
    left: Comparison | None = None
    """The comparison with those that were interrupted; None where nobody interrupted them."""


def add_baselines(
    comparison: Comparison, which: Which, where: ComparisonFolder, parent: Path | str, run: RunCells
) -> Beside:
    """Run the baselines that no method of a comparison is and that are cheap, and add them as rows.

    Args:
        comparison: whose own runs have ended.
        which: of them.
        where: the comparison's folder.
        parent: the folder in which that is.
        run: runs cells that are not finished.
    """
    found, notes = comparison, list[str]()
    for name in [] if which == "none" else find_missing(comparison):
        wider = with_baseline(found, name)
        own = [cell for cell in wider.cells() if cell.method not in found.rows]
        todo = {cell.key for cell in own} - where.done(own).keys()
        if todo and which == "done":
            continue
        if todo and (why := _refuse(comparison, name, len(todo), which, where, parent)):
            notes.append(f"{_title(name)} not run: {why}")
            continue
        outcomes = run([cell for cell in own if cell.key in todo]) if todo else {}
        if any(outcome.status == "interrupted" for outcome in outcomes.values()):
            return Beside(found, notes, wider)
        if failed := [outcome.sentence for outcome in outcomes.values() if outcome.status != "finished"]:
            notes.append(f"{_title(name)} left out: {failed[0]}")
        else:
            found = wider
    return Beside(found, notes)


def find_missing(comparison: Comparison) -> list[str]:
    """Return the methods that are baselines and that the comparison lacks.

    Raises:
        BadInput: an experiment is not possible.
    """
    setting, seed = comparison.settings[0], comparison.seeds[0]
    there = {comparison.experiment_of(setting, method, seed).method.name for method in comparison.methods}
    return [name for name in (FEDAVG, LOCAL) if name not in there]


def with_baseline(comparison: Comparison, name: str) -> Comparison:
    """Return the comparison with a method as one more row, and FedAvg after fine-tuning as another."""
    label = name if name not in comparison.rows else f"{name} (beside)"
    adapted = {f"{label}+FT": label} if name == FEDAVG and f"{label}+FT" not in comparison.rows else {}
    return replace(
        comparison,
        methods=(*comparison.methods, Variant(label, {"method": {"name": name}})),
        adapted={**comparison.adapted, **adapted},
    )


def _title(name: str) -> str:
    return f"{TITLES[name]} and {TITLES[name]}+FT were" if name == FEDAVG else f"{TITLES[name]} was"


def _refuse(
    comparison: Comparison, name: str, count: int, which: Which, where: ComparisonFolder, parent: Path | str
) -> str:
    """Return why so many runs of a baseline are not begun; empty where they are."""
    if comparison.tuned:
        return "the other methods are tuned; name it among the methods to tune it, too"
    cells = [cell for cell in comparison.cells() if not cell.is_adapted]
    if any(cell.experiment.data.is_remote for cell in cells):
        return "clients who hold their own data train only for the comparison itself"
    if any(cell.experiment.privacy.kind for cell in cells):
        return "each further run would spend a privacy budget of its own"
    try:
        with_baseline(comparison, name).check(parent)
    except BadInput as problem:
        return problem.problems[0]
    done = where.done(cells)
    each = [float(folder.rounds()["seconds"].sum()) for folder in done.values()]
    seconds = count * sum(each) / max(len(each), 1)
    if seconds > CHEAP_SECONDS and which != "all":
        return (
            f"its runs should take about {seconds:,.0f} s, more than {CHEAP_SECONDS:.0f} s; coterie compare "
            "--baselines all runs it whatever it costs"
        )
    return ""
