"""Run a comparison: check it, tune it if asked for, run its cells, measure them and write the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from coterie.errors import BadInput
from coterie.experiments.compare import table, tuning
from coterie.experiments.compare.cells import Outcome, Watcher, refuse_unguarded, run_cells
from coterie.experiments.compare.folder import ComparisonFolder
from coterie.experiments.compare.measures import Frames, measure_cells, shared_metrics
from coterie.experiments.compare.spec import Cell, Comparison
from coterie.experiments.folder.files import write_whole
from coterie.experiments.folder.tables import encode
from coterie.experiments.run.events import Status


@dataclass(frozen=True, eq=False, repr=False)
class Compared:
    """A comparison as far as it was run."""

    comparison: Comparison
    """With the settings that tuning has picked."""
    folder: ComparisonFolder
    outcomes: Mapping[str, Outcome]
    """What became of each cell, by key; where tuning was interrupted, none."""
    frames: Frames | None
    """What the finished cells measured; None after an interruption."""
    summary: pl.DataFrame | None
    """One row a setting and method; None after an interruption."""
    status: Status
    notes: Sequence[str] = ()
    """What is to be known of the tables: methods that had fewer trials than asked for."""
    diverged: Sequence[str] = ()
    """The runs whose training diverged for every client."""

    def __repr__(self) -> str:
        done = sum(outcome.status == "finished" for outcome in self.outcomes.values())
        return f"<Compared {str(self.folder.path)!r}: {self.status}, {done} of {len(self.outcomes)} cells finished>"

    def failures(self) -> list[tuple[Cell, str]]:
        """Each cell that failed, and why."""
        outcomes = [(cell, self.outcomes.get(cell.key)) for cell in self.comparison.cells()]
        return [(cell, o.sentence) for cell, o in outcomes if o is not None and o.status == "failed"]


def run_comparison(
    comparison: Comparison | Mapping[str, Any],
    *,
    folder: Path | str = "comparisons",
    jobs: int | None = None,
    tune: int | None = None,
    observer: Watcher | None = None,
    write_report: Callable[[Compared], None] | None = None,
) -> Compared:
    """Run every cell of a comparison that is not finished, and write its tables.

    Arguments, result and errors are those of `coterie.compare`, which passes `write_report`: it is called with the
    finished comparison while its folder is still held.
    """
    refuse_unguarded()
    if not isinstance(comparison, Comparison):
        comparison = Comparison.from_tables(comparison)
    if jobs is not None and jobs < 1:
        raise BadInput(f"jobs = {jobs} is not possible; it must be at least 1")
    if tune is not None:
        comparison = replace(comparison, tuned={})
    comparison.check(folder)
    if tune is not None:
        tuning.check(comparison, tune, Path(folder))
    notes: list[str] = []
    with ComparisonFolder.hold(folder, comparison.name, comparison) as where:

        def run(cells: Sequence[Cell]) -> dict[str, Outcome]:
            return run_cells(cells, where.pool, jobs, observer)

        if tune is not None:
            try:
                comparison, trials = tuning.tune(comparison, tune, run, where.pool)
            except KeyboardInterrupt:
                return Compared(comparison, where, {}, None, None, "interrupted")
            notes += tuning.describe_shortfalls(comparison, trials, tune)
            write_whole(where.path / "tuning.parquet", encode(trials, tuning.TUNING))
            where.write_comparison(comparison)
        elif not comparison.tuned:  # remove the trials of a comparison that was here before
            (where.path / "tuning.parquet").unlink(missing_ok=True)
        outcomes = run(comparison.cells())
        if any(outcome.status == "interrupted" for outcome in outcomes.values()):
            return Compared(comparison, where, outcomes, None, None, "interrupted", notes)
        done = where.done(comparison.cells())
        if not done:
            sentences = dict.fromkeys(outcome.sentence for outcome in outcomes.values())
            raise BadInput([f"no cell is finished: {sentence}" for sentence in sentences])
        comparison = comparison.measured_by(shared_metrics(done.values()))
        frames = measure_cells(comparison, done)
        summary = table.summarise(comparison, frames)
        where.write_frames(frames, summary)
        own = [cell for cell in comparison.cells() if cell.key in done and not cell.is_adapted]
        notes += [f"{cell.label}: {said}" for cell in own for said in done[cell.key].divergences()]
        lost = [cell.label for cell in own if done[cell.key].diverged_for_all()]
        compared = Compared(comparison, where, outcomes, frames, summary, "finished", notes, lost)
        if write_report is not None:
            write_report(compared)
    return compared
