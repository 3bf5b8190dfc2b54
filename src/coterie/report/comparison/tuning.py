"""What tuning searched and picked for the methods of a comparison, as a table and in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from coterie.report.comparison.view import value
from coterie.report.tables import Table
from coterie.runs.folder.metrics import Metric


def tabulate_tuning(tuning: pl.DataFrame, measure: Metric) -> Table:
    """Tabulate what was searched for each method in each setting, and what was picked."""
    has_settings = tuning["setting"].n_unique() > 1
    lines = []
    for (setting, method), own in tuning.group_by("setting", "method", maintain_order=True):
        picked = own.filter("picked")
        changes, found = ("–", None) if picked.is_empty() else picked.select("changes", "value").row(0)
        line = [str(method), *([str(setting)] if has_settings else []), own["sampler"][0], own["space"][0] or "–"]
        line += [changes or "as it was", str(own.height), str(own["pruned"].sum()), str(own["rounds"].sum())]
        lines.append([*line, "–" if found is None else value(measure, found)])
    header = ["Method", *(["Setting"] if has_settings else []), "Sampler", "Searched", "Picked"]
    return Table([*header, "Trials", "Pruned", "Rounds", "On validation"], lines, texts=len(header))


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
