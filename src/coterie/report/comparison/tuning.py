"""What tuning picked for the methods of a comparison, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from coterie.report.comparison.view import value
from coterie.runs.folder.metrics import Metric


def describe_picks(tuning: pl.DataFrame, measure: Metric) -> Iterator[str]:
    """Yield for each method in each setting what was picked, of how many trials, and how it scored."""
    for (setting, method), own in tuning.group_by("setting", "method", maintain_order=True):
        name = ", ".join(filter(None, [str(setting), str(method)]))
        for changes, score, trial, edge in own.filter("picked").select("changes", "value", "trial", "edge").rows():
            first = own["value"][0]
            before = "" if trial == 1 or first is None else f"; {value(measure, first)} as it was"
            scored = f"{measure.title} {value(measure, score)} on validation samples{before}"
            said = f"{name}: {changes or 'as it was'} (trial {trial} of {own.height}, {scored})"
            yield f"{said}; {edge}" if edge else said
