"""Runs side by side, and one run round by round, as tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl
from rich.table import Table as RichTable
from rich.text import Text

from coterie.errors import count_of
from coterie.report.drawing.figure import thin
from coterie.report.numbers import MISSING, decimals, measured, volume
from coterie.report.tables import Table, fit, to_rich
from coterie.runs.folder.metrics import ACCURACY, ADAPTED, MACRO, RunMetric
from coterie.runs.folder.reading import MEGABYTE, RunResults, method_name, read_runs
from coterie.runs.folder.run_folder import RunFolder

MOST_ROUNDS = 20
"""`show` prints at most so many rounds, and the last one."""


def columns_of(metrics: Sequence[RunMetric]) -> pl.Schema:
    """Return the columns of `last_rounds`: each metric's mean over clients in the last round, and totals."""
    return pl.Schema(
        {
            "run": pl.String(),
            "method": pl.String(),
            "rounds": pl.Int64(),
            **{metric.name: pl.Float64() for metric in metrics},
            "worst10": pl.Float64(),
            "groups": pl.Int64(),
            "ari": pl.Float64(),
            "epsilon": pl.Float64(),
            "up_mb": pl.Float64(),
            "down_mb": pl.Float64(),
            "seconds": pl.Float64(),
        }
    )


def shown_metrics(folders: Sequence[RunFolder]) -> tuple[RunMetric, ...]:
    """Return the metrics that a table of these runs shows, each once: what decides of each comes first."""
    each = [folder.metrics for folder in folders]
    return tuple(dict.fromkeys([*(m.deciding for m in each), *(metric for m in each for metric in m.further)]))


Columns = Mapping[str, tuple[str, Callable[[Any], str]]]
"""For each column its title, and how its text follows from a value."""

LEAST_OF_RUNS = ("rounds", "seconds", "down", "method", "up", "groups", "ARI")
LEAST_OF_ROUNDS = ("seconds", "moved", "failed", "loss", "down", "up", "ARI", "groups")
"""Titles of the columns that a narrow terminal goes without, the least important one first."""


def last_rounds(folders: Sequence[RunFolder]) -> pl.DataFrame:
    """Read the last round of each run, in the order given; a run without one has no numbers.

    The columns are those of `columns_of`, of the metrics that are shown. `worst10` is null where another metric
    than the first one decides.

    Raises:
        BadInput: a folder is no run, or a file in it is damaged.
    """
    lines, metrics = [], shown_metrics(folders)
    for run in read_runs(folders):
        line: dict[str, Any] = {"run": run.label, "method": method_name(run.folder.experiment()), "rounds": 0}
        if run.rounds.height:
            end = run.summary
            line |= {
                "rounds": end["rounds"],
                **{metric.name: end.get(f"{MACRO}{metric.name}") for metric in metrics},
                "worst10": end["worst10"] if run.metrics.deciding == metrics[0] else None,
                "groups": end["groups"],
                "ari": end["ari"],
                "epsilon": run.epsilon,
                "up_mb": end["up_bytes"] / MEGABYTE,
                "down_mb": end["down_bytes"] / MEGABYTE,
                "seconds": end["seconds"],
            }
        lines.append(line)
    return pl.DataFrame(lines, schema=columns_of(metrics))


def tabulate(frame: pl.DataFrame, metrics: Sequence[RunMetric] = (ACCURACY,)) -> Table:
    """Tabulate the frame of `last_rounds` with `shown_metrics`; the best of each metric and worst tenth are bold.

    Worst tenths are those of the first metric: where they are not those of every run, the column names it.
    """
    worst = metrics[0]
    scored = pl.any_horizontal(pl.col(metric.name).is_not_null() for metric in metrics)
    others = frame.select((scored & pl.col("worst10").is_null()).any()).item()
    columns: dict[str, tuple[str, Callable[[Any], str]]] = {
        "run": ("run", str),
        "method": ("method", str),
        "rounds": ("rounds", str),
        worst.name: (worst.title, partial(measured, worst)),
        "worst10": (f"worst 10 % {worst.title}" if others else "worst 10 %", partial(measured, worst)),
        **{metric.name: (metric.title, partial(measured, metric)) for metric in metrics[1:]},
        "groups": ("groups", str),
        "ari": ("ARI", decimals),
        "up_mb": ("up", lambda v: volume(v * MEGABYTE)),
        "down_mb": ("down", lambda v: volume(v * MEGABYTE)),
        "seconds": ("seconds", lambda v: f"{v:,.1f}"),
    }
    units = {**{metric.name: metric for metric in metrics}, "worst10": worst}
    if frame["epsilon"].count():
        columns["epsilon"] = ("epsilon", decimals)
    best = {
        name: known.min() if unit.less_is_better else known.max()
        for name, unit in units.items()
        if frame.height > 1 and name in columns and (known := frame[name].fill_nan(None)).count()
    }
    strong = {
        (number, [*columns].index(name))
        for name, most in best.items()
        for number, value in enumerate(frame[name])
        if value is not None and value == most
    }
    return _table(frame, columns, texts=2, strong=strong)


def render(frame: pl.DataFrame, width: int | None = None, metrics: Sequence[RunMetric] = (ACCURACY,)) -> RichTable:
    """Lay out the table of `last_rounds` with `shown_metrics` for a terminal.

    Where it is wider than `width` characters, it goes without the least important columns; nothing is cut.
    """
    named = all(row["method"] in row["run"] for row in frame.to_dicts())
    least = ("method", *LEAST_OF_RUNS) if named else LEAST_OF_RUNS
    shown = to_rich(fit(tabulate(frame, metrics), least, width))
    shown.title, shown.title_justify = "Last round of each run", "left"
    return shown


def show(folder: RunFolder, width: int | None = None) -> RichTable:
    """Lay out one run round by round for a terminal, about 20 rows of it, with the summary below.

    Where it is wider than `width` characters, it goes without the least important columns; nothing is cut.

    Raises:
        BadInput: the folder is no run, or a file in it is damaged.
    """
    run = read_runs([folder])[0]
    metrics = run.metrics
    columns: Columns = {
        "round": ("round", str),
        metrics.headline: (metrics.deciding.title, partial(measured, metrics.deciding)),
        f"{ADAPTED}{metrics.headline}": ("adapted", partial(measured, metrics.deciding)),
        "worst10": ("worst 10 %", partial(measured, metrics.deciding)),
        **{f"{MACRO}{metric.name}": (metric.title, partial(measured, metric)) for metric in metrics.further},
        "loss": ("loss", lambda v: decimals(v, 3)),
        "groups": ("groups", str),
        "moved": ("moved", str),
        "ari": ("ARI", decimals),
        "up_bytes": ("up", volume),
        "down_bytes": ("down", volume),
        "failed": ("failed", str),
        "seconds": ("seconds", lambda v: f"{v:.2f}"),
    }
    columns = {name: column for name, column in columns.items() if name in run.rounds.columns}
    least = LEAST_OF_ROUNDS if run.rounds["failed"].sum() else ("failed", *LEAST_OF_ROUNDS)
    shown = to_rich(fit(_table(thin(run.rounds, MOST_ROUNDS), columns, texts=0), least, width))
    shown.title = Text(f"{run.label}: {method_name(folder.experiment())}, {folder.status}")
    shown.title_justify = shown.caption_justify = "left"
    shown.caption = Text(_summarise(run) if run.rounds.height else "No round is finished yet.")
    return shown


def _summarise(run: RunResults) -> str:
    end, metrics, metric = run.summary, run.metrics, run.metrics.deciding
    best = "not evaluated yet"
    if end[metrics.best] is not None:
        best = f"best {metric.title} {measured(metric, end[metrics.best])} in round {end['best_round']}"
    if (adapted := end.get(f"{ADAPTED}{metrics.headline}")) is not None:
        best += f"; after adaptation {measured(metric, adapted)} in the end"
    if run.epsilon is not None and run.promise is not None:
        best += f"; epsilon {run.epsilon:.3g} of {run.promise['hides']} with delta {run.promise['delta']:.2g}"
        best += f", void for {run.promise['void for']}" if "void for" in run.promise else ""
    return (
        f"{count_of(end['rounds'], 'round')}; {best}; {volume(end['up_bytes'])} up, "
        f"{volume(end['down_bytes'])} down in all; {count_of(end['failed'], 'failure')}; {end['seconds']:,.1f} s"
    )


def _table(frame: pl.DataFrame, columns: Columns, texts: int, strong: Collection[tuple[int, int]] = ()) -> Table:
    rows = [
        [MISSING if row[name] is None else form(row[name]) for name, (_, form) in columns.items()]
        for row in frame.to_dicts()
    ]
    return Table([title for title, _ in columns.values()], rows, texts, strong)
