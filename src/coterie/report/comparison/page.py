"""The page of a comparison: what was found, in words, then tables and charts, in one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from coterie.errors import BadInput, count_of
from coterie.report.comparison.charts import draw_setting
from coterie.report.comparison.client_gains import gains_table
from coterie.report.comparison.each_client import describe_clients
from coterie.report.comparison.findings import conclude, finding, headline
from coterie.report.comparison.table import (
    columns_of,
    explain_worst_tenth,
    mean_and_sd,
    note,
    tabulate,
    with_worst_tenth,
)
from coterie.report.comparison.tuning import describe_picks
from coterie.report.comparison.view import View, views
from coterie.report.drawing.figure import Figure
from coterie.report.gains import MOST_CLIENTS
from coterie.report.numbers import capital, decimals, join_words
from coterie.report.rendering import render_page
from coterie.report.tables import Table, capitalise, flatten
from coterie.runs.folder.files import write_whole
from coterie.runs.folder.metrics import Metric
from coterie.runs.folder.run_folder import RunFolder

if TYPE_CHECKING:
    from coterie.studies.compare.measures import Frames
    from coterie.studies.compare.spec import Comparison

MOST_MISSING = 20
"""At most so many missing runs are named."""


class Published(NamedTuple):
    """What a paper's table or figure shows, of our runs and as printed, for the page of the comparison that ran
    it."""

    finding: str
    """What became of the paper's claims."""
    figures: Sequence[Figure]
    tables: Sequence[tuple[str, Table]]
    """Each with what it shows."""


LEAST_CLIENTS = 100
"""Clients that each of many settings may list; of few settings, each has its part of `MOST_CLIENTS`."""


def build(
    folder_path: Path | str,
    comparison: Comparison,
    frames: Frames,
    summary: pl.DataFrame,
    notes: Sequence[str],
    pool: Path | str | None = None,
    tuning: pl.DataFrame | None = None,
    published: Published | None = None,
) -> Path:
    """Write `report.html` into the comparison's folder and return its path.

    Args:
        folder_path: the comparison's folder.
        comparison: what was to be done.
        frames: what the finished cells measured; some may be missing.
        summary: `coterie.studies.compare.table.summarise` of them.
        notes: what went wrong with others, one sentence each.
        pool: where the cells are; without it, the folder `cells` in the comparison's.
        tuning: the trials by which settings were picked (`coterie.studies.compare.tuning.TUNING`), if any.
        published: what is shown first, where the comparison is a published table or figure.

    Raises:
        BadInput: the folder cannot be written to.
    """
    folder = Path(folder_path)
    pool = Path(pool) if pool is not None else folder / "cells"
    parts = views(comparison, frames, summary)
    most = max(MOST_CLIENTS // max(len(parts), 1), LEAST_CLIENTS)
    settings = [_setting(view, summary, most) for view in parts]
    page = render_page(
        "comparison.html",
        comparison.name,
        _lead(comparison, frames),
        [*(published.figures if published else ()), *(figure for s in settings for figure in s["figures"])],
        finding=" ".join([*([published.finding] if published else []), conclude(parts)]),
        notes=[sentence.rstrip(".") for sentence in [*notes, *_missing(comparison, frames)]],
        reading=_reading(comparison, frames.metrics.measures[comparison.measure]),
        overview=_overview(comparison, parts) if len(parts) > 1 else None,
        measure=capital(frames.metrics.measures[comparison.measure].title),
        settings=settings,
        tuning=[] if tuning is None else [*describe_picks(tuning, frames.metrics.measures[comparison.measure])],
        table_note=f"{note(summary, metrics=frames.metrics)}{explain_worst_tenth(parts)}",
        published=published,
        comparison=comparison.to_toml(),
        seeds=join_words(comparison.seeds, 20),
        environment=_versions(frames, pool),
    )
    path = folder / "report.html"
    try:
        write_whole(path, page.encode())
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}); make its folder writable") from None
    return path


def _lead(comparison: Comparison, frames: Frames) -> str:
    methods, settings, seeds = (len(x) for x in (comparison.methods, comparison.settings, comparison.seeds))
    wanted = methods * settings * seeds
    where = f" in {count_of(settings, 'setting')}" if settings > 1 else ""
    each = f", each from {count_of(seeds, 'seed')}"
    runs = frames.cells.filter(
        ~pl.col("method").is_in(list(comparison.adapted))
    )  # a row after adaptation is no run
    done = f"{runs.height} of {count_of(wanted, 'run')} finished"
    return f"{count_of(methods, 'method')}{where}{each}; {done}. The baseline is {comparison.baseline}."


def _reading(comparison: Comparison, measure: Metric) -> str:
    """Explain how to read the page, to a reader who is new to such numbers."""
    said = f"{capital(measure.title)} is {measure.explanation}."
    if len(comparison.seeds) > 1 and len(comparison.rows) > 1:
        said += (
            " A difference is beyond chance if its 95 % interval, over the seeds that both methods share, leaves"
            " out zero; of twenty pairs of equally good methods, about one will seem to differ."
        )
    return said + " A click on a method in a chart's legend brings it out."


def _missing(comparison: Comparison, frames: Frames) -> list[str]:
    """Name the runs that are missing in one sentence, if any are."""
    there = set(frames.cells.select("setting", "method", "seed").iter_rows())
    missing = [
        ", ".join([*filter(None, [setting.name]), method, f"seed {seed}"])
        for setting in comparison.settings
        for method in comparison.rows
        for seed in comparison.seeds
        if (setting.name, method, seed) not in there
    ]
    if not missing:
        return []
    more = f"; and {len(missing) - MOST_MISSING} more" if len(missing) > MOST_MISSING else ""
    return [f"{count_of(len(missing), 'run')} not finished: {'; '.join(missing[:MOST_MISSING])}{more}"]


def _overview(comparison: Comparison, parts: Sequence[View]) -> Table:
    """Tabulate the measure of every method in every setting."""
    lines, strong = [], set()
    for number, method in enumerate(comparison.rows):
        texts, ranks = [method], []
        for column, view in enumerate(parts, 1):
            row = view.row(method)
            texts.append(mean_and_sd(row, view.of_measure))
            ranks += [] if row["rank"] is None else [row["rank"]]
            if row["best"]:
                strong.add((number, column))
        texts.append(decimals(sum(ranks) / len(ranks), 1) if len(ranks) == len(parts) else "–")
        lines.append(texts)
    return Table(["Method", *(view.setting for view in parts), "Mean rank"], lines, strong=strong)


def _setting(view: View, summary: pl.DataFrame, most: int) -> dict[str, Any]:
    """Collect what the page shows of one setting, of at most so many clients."""
    return {
        "name": view.setting,
        "headline": headline(view),
        "finding": " ".join(finding(view)),
        "table": capitalise(tabulate(with_worst_tenth(view), columns_of(summary, view.metrics), view.metrics)),
        "figures": draw_setting(view),
        "gains": gains_table(view),
        "gains_below": f"clients{view.mark}",
        "each": describe_clients(view, most),
    }


def _versions(frames: Frames, pool: Path) -> Table:
    """Tabulate the versions of what the runs were made with; where runs differ, all of them."""
    versions: dict[str, set[str]] = {}
    for key in dict.fromkeys(frames.cells["key"]):
        environment = RunFolder(pool / key).environment()
        kept = ("python", "packages", "engine")
        for name, text in flatten({name: environment[name] for name in kept if name in environment}):
            versions.setdefault(name, set()).add(text)
    lines = [[name, ", ".join(sorted(texts))] for name, texts in versions.items()]
    return Table(["Environment", ""], lines, texts=2)
