"""What the runs of a comparison measured, as three tables: one row a cell, a round, a client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from coterie.errors import BadInput
from coterie.runs.folder.metrics import CLASSIFICATION, MACRO, RunMetrics
from coterie.runs.folder.reading import AdaptedRun, RunResults
from coterie.runs.folder.run_folder import RunFolder

if TYPE_CHECKING:
    from coterie.studies.compare.spec import Comparison

LABELS: dict[str, pl.DataType] = {"setting": pl.String(), "method": pl.String(), "seed": pl.Int64()}
"""The first columns of every table; `setting` is empty if a comparison has only one."""


NEWCOMERS = ("newcomers", "newcomers_adapted")
"""The columns of the tables of cells that say how well newcomers are received."""


def cells_schema(metrics: RunMetrics) -> pl.Schema:
    """Return the columns of the table of cells of a comparison by these metrics.

    One row a finished cell: scores over the last evaluated rounds, then the last round, then totals. The target is
    what the comparison's measure is to reach. `diverged` says whether training did, for some client. `newcomers`
    and `newcomers_adapted` are the first metric's mean over clients who were held out of training, on arrival
    and adapted; null without such clients. `rounds_to_target` is the first evaluated round that reached the
    target, with the bytes up and down, the local passes and the simulated seconds until its end, all four null
    where none did. A warm-up is a part of the round it belongs to.
    """
    return pl.Schema(
        {
            **LABELS,
            "key": pl.String(),
            "rounds": pl.Int32(),
            **dict.fromkeys(metrics.measures, pl.Float64()),
            "groups": pl.Int32(),
            "ari": pl.Float64(),
            "nmi": pl.Float64(),
            "up_bytes": pl.Int64(),
            "down_bytes": pl.Int64(),
            "passes": pl.Float64(),
            "simulated_seconds": pl.Float64(),
            "seconds": pl.Float64(),
            "failed": pl.Int64(),
            "diverged": pl.Boolean(),
            **dict.fromkeys(NEWCOMERS, pl.Float64()),
            "target": pl.Float64(),
            "rounds_to_target": pl.Int32(),
            "bytes_to_target": pl.Int64(),
            "passes_to_target": pl.Float64(),
            "seconds_to_target": pl.Float64(),
        }
    )


def curves_schema(metrics: RunMetrics) -> pl.Schema:
    """Return the columns of the table of rounds of a comparison by these metrics.

    One row a finished cell and round; bytes (up and down), passes and seconds are summed from the first round on.
    """
    return pl.Schema(
        {
            **LABELS,
            "round": pl.Int32(),
            **dict.fromkeys(drawn_columns(metrics), pl.Float64()),
            "groups": pl.Int32(),
            "ari": pl.Float64(),
            "bytes": pl.Int64(),
            "passes": pl.Float64(),
            "simulated_seconds": pl.Float64(),
        }
    )


def drawn_columns(metrics: RunMetrics) -> tuple[str, ...]:
    """Return the scores that a comparison keeps round by round."""
    further = (f"{MACRO}{metric.name}" for metric in metrics.further)
    return (metrics.headline, metrics.deciding.name, "worst10", *further)


def clients_schema(metrics: RunMetrics) -> pl.Schema:
    """Return the columns of the table of clients of a comparison by these metrics.

    One row a finished cell and client, of the last evaluated round. The first metric lies between `low` and `high`,
    by the client's own test samples; null where their number says it (a share of right answers), or nobody knows.
    """
    return pl.Schema(
        {
            **LABELS,
            "client": pl.Int32(),
            "name": pl.String(),
            "true_group": pl.Int32(),
            "group": pl.Int32(),
            "test_samples": pl.Int32(),
            metrics.deciding.name: pl.Float64(),
            "low": pl.Float64(),
            "high": pl.Float64(),
        }
    )


CELLS, CURVES, CLIENTS = (make(CLASSIFICATION) for make in (cells_schema, curves_schema, clients_schema))
"""The tables of a comparison of classifications that name no metrics."""


@dataclass(frozen=True, eq=False)
class Frames:
    """What the finished cells measured, in the order of the comparison's cells. A NaN is null."""

    cells: pl.DataFrame
    """Columns `cells_schema`."""
    curves: pl.DataFrame
    """Columns `curves_schema`."""
    clients: pl.DataFrame
    """Columns `clients_schema`."""
    metrics: RunMetrics = CLASSIFICATION
    """Of all the runs."""


def measure_cells(comparison: Comparison, finished: Mapping[str, RunFolder]) -> Frames:
    """Read from the runs everything that the tables, the page and the claims need.

    Args:
        comparison: what was to be done.
        finished: the run folders of the finished cells, by key; the others are left out.

    Raises:
        BadInput: a folder is no run, holds no finished round, or a file in it is damaged; or the runs do not have
            the same metrics, or not the comparison's measure.
    """
    metrics = shared_metrics(finished.values())
    comparison = comparison.measured_by(metrics)
    cells = [cell for cell in comparison.cells() if cell.key in finished]
    of_cells, of_rounds, of_clients = (make(metrics) for make in (cells_schema, curves_schema, clients_schema))
    runs: dict[tuple[str, bool], RunResults] = {}
    for cell in cells:  # several methods may be the same run
        kind = AdaptedRun if cell.is_adapted else RunResults
        runs.setdefault((cell.key, cell.is_adapted), kind(finished[cell.key], cell.key))
    ends = {place: _read_last_values(run, of_cells) for place, run in runs.items()}
    places = [(cell.key, cell.is_adapted) for cell in cells]
    labels: list[dict[str, Any]] = [
        {"setting": cell.setting, "method": cell.method, "seed": cell.seed} for cell in cells
    ]
    baselines = {
        (cell.setting, cell.seed): ends[place].get(comparison.measure)
        for cell, place in zip(cells, places, strict=True)
        if cell.method == comparison.baseline
    }
    rows, falls = [], comparison.measure in metrics.falling
    for own, place in zip(labels, places, strict=True):
        target = comparison.target
        if target is None:
            target = baselines.get((own["setting"], own["seed"]))
        reached = _find_target(runs[place].rounds, comparison.measure, target, falls)
        rows.append({**own, "key": place[0], **ends[place], "target": target, **reached})
    return Frames(
        pl.DataFrame(rows, schema=of_cells),
        _stack(labels, of_rounds, [_read_curve(runs[place]) for place in places]),
        _stack(labels, of_clients, [_read_clients(runs[place]) for place in places]),
        metrics,
    )


def shared_metrics(folders: Iterable[RunFolder]) -> RunMetrics:
    """Return the metrics that all of the runs have.

    Raises:
        BadInput: they have different ones.
    """
    found = dict.fromkeys(folder.metrics for folder in folders)
    if len(found) > 1:
        said = " and ".join(", ".join(metric.name for metric in metrics.of) for metrics in found)
        raise BadInput(
            f"runs that are measured by {said} cannot be compared; set experiment.task.metrics, the same for all"
        )
    return next(iter(found), CLASSIFICATION)


def _stack(labels: list[dict[str, Any]], schema: pl.Schema, tables: list[pl.DataFrame]) -> pl.DataFrame:
    """Put the cells' tables below each other, each with the cell's labels."""
    labelled = [
        table.with_columns(pl.lit(value, LABELS[name]).alias(name) for name, value in own.items())
        for own, table in zip(labels, tables, strict=True)
    ]
    cast = [pl.col(name).cast(kind) for name, kind in schema.items()]
    return pl.concat([pl.DataFrame(schema=schema), *(table.select(cast) for table in labelled)])


def _read_last_values(run: RunResults, schema: pl.Schema) -> dict[str, Any]:
    """Return the columns of the table of cells that depend on one run alone."""
    own = {name: run.summary[name] for name in schema if name in run.summary}
    own["diverged"] = bool(run.folder.divergences())
    if run.newcomers is not None:
        own["newcomers_adapted"] = run.newcomers["adapted"].mean()
        if not isinstance(run, AdaptedRun):  # a row after adaptation is about nothing before it
            own["newcomers"] = run.newcomers["arrival"].mean()
    return {name: None if value != value else value for name, value in own.items()}


def _find_target(rounds: pl.DataFrame, measure: str, target: float | None, falls: bool) -> dict[str, Any]:
    """Return the columns of the table of cells that say when the measure first reached the target."""
    value = pl.col(measure).fill_nan(None) if measure in rounds.columns else pl.lit(None, pl.Float64)
    met = pl.lit(False) if target is None else value <= target if falls else value >= target
    first = rounds.filter(met)["round"].min()
    if first is None:
        return {f"{what}_to_target": None for what in ("rounds", "bytes", "passes", "seconds")}
    until = rounds.filter(pl.col("round") <= first)
    return {
        "rounds_to_target": first,
        "bytes_to_target": (until["up_bytes"] + until["down_bytes"]).sum(),
        "passes_to_target": until["passes"].sum() if not until["passes"].null_count() else None,
        "seconds_to_target": until["simulated_seconds"].sum(),
    }


def _read_curve(run: RunResults) -> pl.DataFrame:
    return run.rounds.with_columns(
        pl.col(drawn_columns(run.metrics)).fill_nan(None),
        (pl.col("up_bytes") + pl.col("down_bytes")).cum_sum().alias("bytes"),
        pl.col("passes", "simulated_seconds").cum_sum(),
    )


def _read_clients(run: RunResults) -> pl.DataFrame:
    named = run.last.join(run.federation.select("client", "name", "true_group"), on="client", how="left")
    named = named.join(run.intervals.select("client", "low", "high"), on="client", how="left")
    return named.with_columns(
        pl.col("name").fill_null(pl.format("client {}", "client")), pl.col("low", "high").fill_nan(None)
    ).sort("client")
