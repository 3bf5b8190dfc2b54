"""Run a comparison: check it, tune it if asked for, run its cells, measure them and write the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from coterie.errors import BadInput, count_of
from coterie.runs.events import Status
from coterie.runs.folder.files import write_whole
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import encode
from coterie.runtime.local.processes import refuse_unguarded
from coterie.studies.compare import effort, public, table, tuning
from coterie.studies.compare.beside import Which, add_baselines
from coterie.studies.compare.cells import CellOutcome, Watcher, end_processes, keep_processes, run_cells
from coterie.studies.compare.folder import ComparisonFolder, choose_free_name
from coterie.studies.compare.measures import Frames, measure_cells, shared_metrics
from coterie.studies.compare.notes import describe_notes
from coterie.studies.compare.samplers import GRID
from coterie.studies.compare.spec import Cell, Comparison


@dataclass(frozen=True, eq=False, repr=False)
class Compared:
    """A comparison as far as it was run."""

    comparison: Comparison
    """With the settings that tuning has picked."""
    folder: ComparisonFolder
    outcomes: Mapping[str, CellOutcome]
    """What became of each cell, by key; where tuning was interrupted, none."""
    frames: Frames | None
    """What the finished cells measured; None where none is finished."""
    summary: pl.DataFrame | None
    """One row a setting and method; None where no cell is finished."""
    status: Status
    notes: Sequence[str] = ()
    """What is to be known of the tables: methods that had fewer trials than asked for, training that diverged."""
    diverged: Sequence[str] = ()
    """The runs whose training diverged for every client."""
    left: str = ""
    """After an interruption, what is finished and what is left in all."""
    warnings: Sequence[str] = ()
    """What the runs' folders warn of: that training diverged, as in the notes, and what did not come about."""

    def __repr__(self) -> str:
        done = sum(outcome.status == "finished" for outcome in self.outcomes.values())
        return f"<Compared {str(self.folder.path)!r}: {self.status}, {done} of {len(self.outcomes)} cells finished>"

    def unmet(self) -> list[str]:
        """Return the warnings that are not among the notes: what did not come about."""
        return [sentence for sentence in self.warnings if sentence not in self.notes]

    def failures(self) -> list[tuple[Cell, str]]:
        """Each cell that failed, and why."""
        outcomes = [(cell, self.outcomes.get(cell.key)) for cell in self.comparison.cells()]
        return [(cell, o.sentence) for cell, o in outcomes if o is not None and o.status == "failed"]


def run_comparison(
    comparison: Comparison | Mapping[str, Any],
    *,
    folder: Path | str,
    jobs: int | None,
    tune: int | None,
    sampler: str,
    prune: bool,
    observer: Watcher | None,
    baselines: Which,
    write_report: Callable[[Compared], None],
) -> Compared:
    """Run every cell of a comparison that is not finished, and write its tables.

    Arguments, result and errors are those of `coterie.compare`, which passes `write_report`: it is called with the
    comparison while its folder is still held, also where it was interrupted and some cells are finished.
    """
    refuse_unguarded()
    if not isinstance(comparison, Comparison):
        comparison = Comparison.from_tables(comparison)
    if jobs is not None and jobs < 1:
        raise BadInput(f"jobs = {jobs} is not possible; it must be at least 1")
    if tune is None and (sampler != GRID or prune):
        what = "prune = true" if prune else f"sampler = {sampler!r}"
        raise BadInput(f"{what} has no effect without tuning; give the number of trials, as in tune = 8")
    if prune and comparison.equal == "passes":
        raise BadInput(
            "prune = true is not possible with equal = 'passes': pruning compares trials after equal rounds; leave "
            "one out"
        )
    if tune is not None:
        comparison = replace(comparison, tuned={})
    comparison.check(folder)
    if tune is not None:
        tuning.check(comparison, tune, Path(folder), sampler)
    comparison = choose_free_name(comparison, folder)
    notes: list[str] = []
    with ComparisonFolder.hold(folder, comparison.name, comparison) as where, keep_processes() as kept:
        ended: dict[str, CellOutcome] = {}

        def run(cells: Sequence[Cell]) -> dict[str, CellOutcome]:
            outcomes = run_cells(cells, where.pool, jobs, observer, kept)
            ended.update(outcomes)
            return outcomes

        watcher, is_staged = observer or Watcher(), tune is not None and (prune or sampler != GRID)
        if tune is not None:
            try:
                comparison, trials = tuning.tune(
                    comparison, tune, run, where.pool, sampler, prune, watcher.later if is_staged else None
                )
            except KeyboardInterrupt:
                tried, planned = _count_finished(ended), tune * len(comparison.settings) * len(comparison.methods)
                runs = len({cell.key for cell in comparison.cells()})
                follow = f"{count_of(runs, 'run')} {'follows' if runs == 1 else 'follow'}"
                left = f"{tried} of at most {count_of(planned, 'trial')} are finished; {follow}"
                return Compared(comparison, where, {}, None, None, "interrupted", left=left)
            notes += tuning.describe_shortfalls(comparison, trials, tune)
            write_whole(where.path / "tuning.parquet", encode(trials, tuning.TUNING))
            where.write_comparison(comparison)
        elif (before := where.tuning()) is None or not tuning.is_of(before, comparison):  # of what was here before
            (where.path / "tuning.parquet").unlink(missing_ok=True)
        watcher.later(0 if is_staged else None)
        outcomes = run(comparison.cells())
        watcher.later(None)
        interrupted = any(outcome.status == "interrupted" for outcome in outcomes.values())
        left = _describe_left(comparison, where, outcomes) if interrupted else ""
        if not interrupted and where.done(comparison.cells()):
            beside = add_baselines(comparison, baselines, where, folder, run)
            comparison, notes = beside.comparison, [*notes, *beside.notes]
            if beside.left is not None:
                interrupted, left = True, _describe_left(beside.left, where, ended)
        done = where.done(comparison.cells())
        if interrupted and not done:
            return Compared(comparison, where, outcomes, None, None, "interrupted", notes, left=left)
        if not done:
            sentences = dict.fromkeys(outcome.sentence for outcome in outcomes.values())
            raise BadInput([f"no cell is finished: {sentence}" for sentence in sentences])
        end_processes(kept)
        watcher.phase("reading the runs, and writing tables and a page")
        comparison = comparison.measured_by(shared_metrics(done.values()))
        frames = measure_cells(comparison, done)
        summary = table.summarise(comparison, frames)
        where.write_frames(frames, summary)
        own = [cell for cell in comparison.cells() if cell.key in done and not cell.is_adapted]
        notes += public.describe(comparison)
        notes += effort.describe(comparison, summary)
        diverged, unmet = _describe_warnings(own, done)
        notes += diverged
        lost = [cell.label for cell in own if done[cell.key].diverged_for_all()]
        status: Status = "interrupted" if interrupted else "finished"
        warnings = [*diverged, *unmet]
        compared = Compared(comparison, where, outcomes, frames, summary, status, notes, lost, left, warnings)
        write_report(compared)
    return compared


def _describe_warnings(cells: Sequence[Cell], done: Mapping[str, RunFolder]) -> tuple[list[str], list[str]]:
    """Return how training diverged in the runs of these cells, and what did not come about, such as groups."""
    diverged, unmet = list[tuple[Cell, str]](), list[tuple[Cell, str]]()
    for cell in cells:
        warnings, first = done[cell.key].warnings(), len(done[cell.key].divergences())
        diverged += [(cell, sentence) for sentence in warnings[:first]]
        unmet += [(cell, sentence) for sentence in warnings[first:]]
    return describe_notes(diverged, len(cells)), describe_notes(unmet, len(cells))


def _count_finished(outcomes: Mapping[str, CellOutcome]) -> int:
    return sum(outcome.status == "finished" for outcome in outcomes.values())


def _describe_left(comparison: Comparison, where: ComparisonFolder, outcomes: Mapping[str, CellOutcome]) -> str:
    """Say how many runs are finished, and how many runs and rounds are left in all."""
    left = {cell.key: cell for cell in comparison.cells() if outcomes[cell.key].status == "interrupted"}
    rounds = 0
    for key, cell in left.items():
        progress = where.cell(key).progress()
        rounds += max(0, cell.experiment.expected_rounds - (0 if progress is None else progress.round))
    said = f"{_count_finished(outcomes)} of {count_of(len(outcomes), 'run')} are finished"
    return f"{said}; {len(left)} {'is' if len(left) == 1 else 'are'} left, with {count_of(rounds, 'round')}"
