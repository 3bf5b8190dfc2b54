"""Runs side by side, and one run round by round, as tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from coterie.errors import count_of
from coterie.report.drawing.figure import thin
from coterie.report.numbers import MISSING, decimals, measured, volume
from coterie.report.tables import Table, fit, to_rich
from coterie.runs.folder.metrics import ADAPTED, MACRO, RunMetric
from coterie.runs.folder.reading import RunResults, method_name, read_runs
from coterie.runs.folder.run_folder import RunFolder

MOST_ROUNDS = 20
"""`show` prints at most so many rounds, and the last one."""


def shown_metrics(folders: Sequence[RunFolder]) -> tuple[RunMetric, ...]:
    """Return the metrics that a table of these runs shows, each once: what decides of each comes first."""
    each = [folder.metrics for folder in folders]
    return tuple(dict.fromkeys([*(m.deciding for m in each), *(metric for m in each for metric in m.further)]))


Columns = Mapping[str, tuple[str, Callable[[Any], str]]]
"""For each column its title, and how its text follows from a value."""

LEAST_OF_RUNS = ("rounds", "seconds", "down", "method", "up", "groups", "ARI")
LEAST_OF_ROUNDS = ("seconds", "moved", "failed", "loss", "down", "up", "ARI", "groups")
"""Titles of the columns that a narrow terminal goes without, the least important one first."""


def last_rounds(folders: Sequence[RunFolder]) -> Table:
    """Tabulate the last round of each run, in the order given; a run without one has no numbers.

    The best of each metric and worst tenth are bold. Worst tenths are those of the first metric of the first run:
    where they are not those of every run, the column names it, and the others have none.

    Raises:
        BadInput: a folder is no run, or a file in it is damaged.
    """
    runs, (first, *others) = read_runs(folders), shown_metrics(folders)
    apart = any(run.rounds.height and run.metrics.deciding != first for run in runs)
    units = {
        f"{MACRO}{first.name}": first,
        "worst10": first,
        **{f"{MACRO}{metric.name}": metric for metric in others},
    }
    titles = {"worst10": f"worst 10 % {first.title}" if apart else "worst 10 %"}
    columns: dict[str, tuple[str, Callable[[Any], str]]] = {
        "run": ("run", str),
        "method": ("method", str),
        "rounds": ("rounds", str),
        **{name: (titles.get(name, unit.title), partial(measured, unit)) for name, unit in units.items()},
        "groups": ("groups", str),
        "ari": ("ARI", decimals),
        "up_bytes": ("up", volume),
        "down_bytes": ("down", volume),
        "seconds": ("seconds", lambda v: f"{v:,.1f}"),
    }
    if any(run.rounds.height and run.epsilon is not None for run in runs):
        columns["epsilon"] = ("epsilon", decimals)
    rows: list[dict[str, Any]] = []
    for run in runs:
        row = {"run": run.label, "method": method_name(run.folder.experiment()), "rounds": 0}
        if run.rounds.height:
            row |= run.summary | {"epsilon": run.epsilon}
            row["worst10"] = row["worst10"] if run.metrics.deciding == first else None
        rows.append(row)
    strong = set()
    for name, unit in units.items() if len(rows) > 1 else ():
        known = {i: value for i, row in enumerate(rows) if (value := row.get(name)) is not None and value == value}
        best = (min if unit.less_is_better else max)(known.values(), default=None)
        strong |= {(i, [*columns].index(name)) for i, value in known.items() if value == best}
    return _table(rows, columns, texts=2, strong=strong)


def render(folders: Sequence[RunFolder], width: int | None = None) -> RichTable:
    """Lay out the table of `last_rounds` for a terminal.

    Where it is wider than `width` characters, it goes without the least important columns; nothing is cut.
    """
    table = last_rounds(folders)
    named = all(method in run for run, method, *_ in table.rows)
    shown = to_rich(fit(table, ("method", *LEAST_OF_RUNS) if named else LEAST_OF_RUNS, width))
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
    shown = to_rich(fit(_table(thin(run.rounds, MOST_ROUNDS).to_dicts(), columns, texts=0), least, width))
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


def _table(
    rows: Iterable[Mapping[str, Any]], columns: Columns, texts: int, strong: Collection[tuple[int, int]] = ()
) -> Table:
    cells = [
        [MISSING if row.get(name) is None else form(row[name]) for name, (_, form) in columns.items()]
        for row in rows
    ]
    return Table([title for title, _ in columns.values()], cells, texts, strong)
