"""One row a setting and method: means over seeds, and paired differences to the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.special import stdtrit

from coterie.runs.folder.metrics import CLASSIFICATION, RunMetrics
from coterie.studies.compare.measures import LABELS, NEWCOMERS, Frames

if TYPE_CHECKING:
    from coterie.studies.compare.spec import Comparison

CONFIDENCE = 0.95
"""The level of an interval, where no other is said."""

COSTS = (
    *("ari", "groups", "rounds", "up_bytes", "down_bytes", "passes", "simulated_seconds"),
    *("rounds_to_target", "bytes_to_target", "passes_to_target"),
    *NEWCOMERS,
)
"""The columns of the table of cells that are averaged over the seeds beside the measures."""

MEDIANS = ("rounds_to_target", "bytes_to_target", "passes_to_target")
"""Columns whose median over the seeds is kept, too: single late seeds would decide the mean."""


def summary_schema(metrics: RunMetrics) -> pl.Schema:
    """Return the columns of the summary of a comparison by these metrics.

    One row a setting and method, in the comparison's order, also where no seed is finished.

    `adapted_from` is the method whose runs a row shows after adaptation; null for a method itself.
    `adapted_<m>_mean` is what a method's measure is after adaptation, where its runs have one. `measure`,
    `baseline`, `target` (null: the baseline's own last value, seed by seed) and `seeds` (how many are asked for)
    are the comparison's. `n` is the number of seeds with a value of the measure, `finished` that of all finished
    ones, and `diverged` that of those in which training did. `<m>_mean`, `<m>_sd` (n - 1 below; null for one value)
    and `<m>_median` are over the seeds that have one, for the way to the target those that reached it. `reached`
    counts these, of the `aimed` ones that had a target.

    `difference` is the mean over the `pairs` seeds in which both the method and the baseline have a value of the
    measure, method minus baseline, between `difference_low` and `difference_high` (see `interval`; null for one
    pair). `wins` are the pairs in which the method is the better one. `rank` is the mean over seeds of its place
    among the methods with a value, 1 the best, equal ones sharing the mean of their places. `best` says whether
    no other method of the setting has a better mean. Differences, wins and pairs are null for the baseline
    itself.
    """
    over_seeds = (*metrics.measures, *COSTS)
    return pl.Schema(
        {
            "setting": pl.String(),
            "method": pl.String(),
            "adapted_from": pl.String(),
            "measure": pl.String(),
            "baseline": pl.String(),
            "target": pl.Float64(),
            "seeds": pl.Int32(),
            "finished": pl.Int32(),
            "n": pl.Int32(),
            "diverged": pl.Int32(),
            **{f"{column}_{of}": pl.Float64() for column in over_seeds for of in ("mean", "sd")},
            **{f"{column}_median": pl.Float64() for column in MEDIANS},
            "aimed": pl.Int32(),
            "reached": pl.Int32(),
            "pairs": pl.Int32(),
            "difference": pl.Float64(),
            "difference_low": pl.Float64(),
            "difference_high": pl.Float64(),
            "wins": pl.Int32(),
            "rank": pl.Float64(),
            "best": pl.Boolean(),
        }
    )


SUMMARY = summary_schema(CLASSIFICATION)
"""That of a comparison of classifications that name no metrics."""


def interval(values: npt.ArrayLike, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return mean and confidence interval by Student's t, over values `[seeds]`; NaN is a missing value.

    Returns:
        `(mean, low, high)`; the bounds are NaN for fewer than two values, the mean for none.
    """
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    if not known.size:
        return float("nan"), float("nan"), float("nan")
    mean = float(known.mean())
    if known.size == 1 or not np.isfinite(known).all():
        return mean, float("nan"), float("nan")
    half = float(stdtrit(known.size - 1, (1 + confidence) / 2) * known.std(ddof=1) / np.sqrt(known.size))
    return mean, mean - half, mean + half


def summarise(comparison: Comparison, frames: Frames) -> pl.DataFrame:
    """Summarise a comparison in one row per setting and method, columns `summary_schema`; cells may be missing."""
    measure, falls = comparison.measure, comparison.measure in frames.metrics.falling
    averaged, schema = (*frames.metrics.measures, *COSTS), summary_schema(frames.metrics)
    rows = [(s.name, row, comparison.adapted.get(row)) for s in comparison.settings for row in comparison.rows]
    names = ("setting", "method", "adapted_from")
    asked = pl.DataFrame(rows, {name: schema[name] for name in names}, orient="row").with_columns(
        measure=pl.lit(measure),
        baseline=pl.lit(comparison.baseline),
        target=pl.lit(comparison.target, pl.Float64()),
        seeds=pl.lit(len(comparison.seeds)),
    )
    ranked = frames.cells.with_columns(
        pl.col(measure).rank("average", descending=not falls).over("setting", "seed").alias("rank")
    )
    over_seeds = ranked.group_by("setting", "method").agg(
        pl.len().alias("finished"),
        pl.col(measure).count().alias("n"),
        pl.col("diverged").sum(),
        *(pl.col(c).mean().alias(f"{c}_mean") for c in averaged),
        *(pl.col(c).std().fill_nan(None).alias(f"{c}_sd") for c in averaged),
        *(pl.col(c).median().alias(f"{c}_median") for c in MEDIANS),
        pl.col("target").count().alias("aimed"),
        pl.col("rounds_to_target").count().alias("reached"),
        pl.col("rank").mean(),
    )
    whole = asked.join(over_seeds, on=["setting", "method"], how="left", maintain_order="left")
    whole = whole.join(
        _compare_with_baseline(frames.cells, comparison, falls),
        on=["setting", "method"],
        how="left",
        maintain_order="left",
    )
    mean = pl.col(f"{measure}_mean")
    first = (mean.min() if falls else mean.max()).over("setting")
    whole = whole.with_columns(
        pl.col("finished", "n", "diverged", "aimed", "reached").fill_null(0), best=(mean == first).fill_null(False)
    )
    return whole.select(pl.col(name).cast(kind) for name, kind in schema.items())


def _compare_with_baseline(cells: pl.DataFrame, comparison: Comparison, falls: bool) -> pl.DataFrame:
    """Compare each method with the baseline, seed by seed: a row per setting and method but the baseline."""
    measure = comparison.measure
    known = cells.select(*LABELS, pl.col(measure).alias("value")).drop_nulls("value")
    isbaseline = pl.col("method") == comparison.baseline
    other = known.filter(isbaseline).select("setting", "seed", pl.col("value").alias("other"))
    pairs = known.filter(~isbaseline).join(other, on=["setting", "seed"]).sort("seed")
    rows = []
    for (setting, method), group in pairs.group_by("setting", "method", maintain_order=True):
        d = (group["value"] - group["other"]).to_numpy()
        rows.append((setting, method, d.size, *interval(d), int((d < 0).sum() if falls else (d > 0).sum())))
    names = ("setting", "method", "pairs", "difference", "difference_low", "difference_high", "wins")
    return pl.DataFrame(rows, {name: SUMMARY[name] for name in names}, orient="row").fill_nan(None)
