"""One setting of a comparison as its page reads it: the finished cells, and how each method looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import polars as pl

from coterie.report.drawing.colours import NO_GROUP, PALETTE, of_groups
from coterie.report.drawing.marks import line_looks
from coterie.report.gains import bound_scores, bound_worst_tenth, floats
from coterie.report.numbers import alike, change, signed
from coterie.report.uncertainty import DRAWS
from coterie.runs.folder.metrics import Metric, RunMetrics

if TYPE_CHECKING:
    from coterie.studies.compare.measures import Frames
    from coterie.studies.compare.spec import Comparison

LEAST_DRAWS = 100
"""Draws of a bootstrap for each seed at least: of fewer, the ends of an interval of 95 % are not known."""


@dataclass(frozen=True)
class View:
    """One setting of a comparison. Methods without a finished cell in it are left out."""

    setting: str
    mark: str
    """The end of its figures' names, so that no two on a page are alike."""
    every: tuple[str, ...]
    """All methods of the comparison."""
    baseline: str
    measure: str
    cells: pl.DataFrame
    curves: pl.DataFrame
    clients: pl.DataFrame
    summary: pl.DataFrame
    metrics: RunMetrics
    """Of all the runs."""

    @cached_property
    def methods(self) -> list[str]:
        """The methods with a finished cell, in the comparison's order."""
        there = set(self.cells["method"])
        return [method for method in self.every if method in there]

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds with a finished cell, ascending."""
        return sorted(set(self.cells["seed"]))

    @cached_property
    def best_methods(self) -> list[str]:
        """The methods with the best mean of the measure, mostly one; none where there is no value."""
        return self.summary.filter(pl.col("best"))["method"].to_list()

    @property
    def best(self) -> str | None:
        """The first of the best methods; the baseline, if it is among them."""
        return self.baseline if self.baseline in self.best_methods else next(iter(self.best_methods), None)

    @property
    def of_measure(self) -> Metric:
        """What is known of the comparison's measure: its title, its unit and its direction."""
        return self.metrics.measures[self.measure]

    @property
    def drawn_measure(self) -> str:
        """The measure that is drawn over rounds: the comparison's own, where it is kept round by round."""
        return self.measure if self.measure in self.curves.columns else self.metrics.headline

    @property
    def drawn(self) -> Metric:
        """What is known of the drawn measure."""
        return self.metrics.measures[self.drawn_measure]

    @cached_property
    def scored(self) -> pl.DataFrame:
        """The clients with a `score` by the first metric, between `low` and `high`, which may be null."""
        metric = self.metrics.deciding
        known = self.clients.with_columns(pl.col(metric.name).alias("score")).drop_nulls("score")
        samples = known["test_samples"].fill_null(0).to_numpy().astype(np.int64)
        ends = bound_scores(metric, floats(known["score"]), samples, floats(known["low"]), floats(known["high"]))
        if ends is None:
            return known
        return known.with_columns(low=pl.Series(ends[0]).fill_nan(None), high=pl.Series(ends[1]).fill_nan(None))

    @cached_property
    def worst_tenth(self) -> dict[str, tuple[float, float]]:
        """Between what each method's `worst10` lies by the clients' own test samples, where that is known.

        Over several seeds that is the mean of their intervals: as wide as that of one, for they may have tested the
        same clients on the same samples.
        """
        counted = self.cells.drop_nulls("worst10").select("method", "seed")
        tested = self.clients.filter(pl.col("test_samples") > 0).drop_nulls(self.metrics.deciding.name)
        draws = max(DRAWS // len(self.seeds), LEAST_DRAWS)
        found: dict[str, list[tuple[float, float]]] = {}
        for (method, _), clients in tested.join(counted, on=["method", "seed"], maintain_order="left").group_by(
            "method", "seed", maintain_order=True
        ):
            scores, low, high = (floats(clients[name]) for name in (self.metrics.deciding.name, "low", "high"))
            samples = clients["test_samples"].to_numpy().astype(np.int64)
            ends = bound_worst_tenth(self.metrics.deciding, scores, samples, low, high, draws)
            found.setdefault(str(method), []).append(ends)
        means = {method: np.mean(ends, axis=0) for method, ends in found.items()}
        return {method: (float(low), float(high)) for method, (low, high) in means.items() if low == low}

    def row(self, method: str) -> dict[str, Any]:
        """Return the method's row of the summary."""
        return self.summary.row(by_predicate=pl.col("method") == method, named=True)

    def label_of(self, method: str) -> str:
        """Name the method as legends do."""
        return f"{method} (baseline)" if method == self.baseline else method

    def colours_and_dashes(self, methods: Sequence[str]) -> tuple[alt.Color, alt.StrokeDash]:
        """Return colours and dashes by the field `method`, the same for a method in every chart of the page."""
        labels = [self.label_of(method) for method in methods]
        others = [method for method in self.every if method != self.baseline]
        colours = {self.baseline: NO_GROUP, **dict(zip(others, of_groups(range(len(others))), strict=True))}
        turns = {method: number // len(PALETTE) for number, method in enumerate(others)}
        dashes = [turns.get(method, 0) for method in methods]
        return line_looks("method", labels, [colours[method] for method in methods], dashes)

    def with_labels(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the frame with its methods named as legends name them."""
        return frame.with_columns(pl.col("method").replace({self.baseline: self.label_of(self.baseline)}))


def views(comparison: Comparison, frames: Frames, summary: pl.DataFrame) -> list[View]:
    """Return the settings of a comparison in its order; a setting without a finished cell is left out."""
    there = set(frames.cells["setting"])
    own = pl.col("setting")
    return [
        View(
            setting.name,
            f"-{number}" if len(comparison.settings) > 1 else "",
            comparison.rows,
            comparison.baseline,
            comparison.measure,
            frames.cells.filter(own == setting.name),
            frames.curves.filter(own == setting.name),
            frames.clients.filter(own == setting.name),
            summary.filter(own == setting.name),
            frames.metrics,
        )
        for number, setting in enumerate(comparison.settings, 1)
        if setting.name in there
    ]


def value(measure: Metric, number: float) -> str:
    """Write a value of a measure as tables do: shares in per cent, a loss with three decimals, or three digits."""
    if measure.is_share:
        return f"{number:.2%}"
    return alike(number)[0] if measure.decimals is None else f"{number:.{measure.decimals}f}"


def difference(measure: Metric, number: float) -> str:
    """Write a difference of two values with its sign: of shares in percentage points, as `value` does otherwise."""
    if measure.is_share:
        return f"{round(100 * number, 2) + 0.0:+.2f}"
    return signed(number) if measure.decimals is None else f"{number:+.{measure.decimals}f}"


def relative(measure: Metric, number: float, other: float) -> str:
    """Write by which share a value of a size, such as an error, is below or above another: `12% lower`.

    Empty where a share says nothing: of a measure that may be negative, and of one that is itself a share.
    """
    return change(number / other) if measure.is_size and other > 0 and number >= 0 else ""
