"""Runs side by side, and one run round by round, as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
from rich.table import Table
from rich.text import Text

from coterie.report.figures import thinned
from coterie.report.reading import MEGABYTE, method_of, read
from coterie.runs import RunFolder

MOST_ROUNDS = 20
"""Rounds that `show` prints at most, and the last one."""

COLUMNS = pl.Schema(
    {
        "run": pl.String,
        "method": pl.String,
        "rounds": pl.Int64,
        "accuracy": pl.Float64,
        "worst10": pl.Float64,
        "groups": pl.Int64,
        "ari": pl.Float64,
        "up_mb": pl.Float64,
        "down_mb": pl.Float64,
        "seconds": pl.Float64,
    }
)
"""One row a run: `accuracy` is the mean over clients in the last round, bytes and seconds are totals."""

Form = Callable[[Any], str]


def table(folders: Sequence[RunFolder]) -> pl.DataFrame:
    """The runs in the order given, columns `COLUMNS`; a run without a finished round has no numbers.

    Raises:
        BadInput: a folder is no run, or a file in it is damaged.
    """
    lines = []
    for run in read(folders):
        line: dict[str, Any] = {"run": run.label, "method": method_of(run.folder.experiment()), "rounds": 0}
        if run.rounds.height:
            end = run.summary
            line |= {
                "rounds": end["rounds"],
                "accuracy": end["macro_accuracy"],
                "worst10": end["worst10"],
                "groups": end["groups"],
                "ari": end["ari"],
                "up_mb": end["up_bytes"] / MEGABYTE,
                "down_mb": end["down_bytes"] / MEGABYTE,
                "seconds": end["seconds"],
            }
        lines.append(line)
    return pl.DataFrame(lines, schema=COLUMNS)


def render(frame: pl.DataFrame) -> Table:
    """The table of `table`, for a terminal; the best accuracy and the best worst tenth are bold."""
    shown = Table(title="Last round of each run", title_justify="left")
    forms = _forms()
    for column, (title, _) in forms.items():
        shown.add_column(title, justify="left" if column in ("run", "method") else "right")
    best = {c: frame[c].fill_nan(None).max() for c in ("accuracy", "worst10")} if frame.height > 1 else {}
    for row in frame.to_dicts():
        shown.add_row(
            *(
                _cell(row[column], form, row[column] is not None and row[column] == best.get(column))
                for column, (_, form) in forms.items()
            )
        )
    return shown


def show(folder: RunFolder) -> Table:
    """One run round by round, about 20 rows of it, with the summary below.

    Raises:
        BadInput: the folder is no run, or a file in it is damaged.
    """
    run = read([folder])[0]
    forms: dict[str, tuple[str, Form]] = {
        "round": ("round", str),
        "macro_accuracy": ("accuracy", _percent),
        "worst10": ("worst 10%", _percent),
        "loss": ("loss", lambda v: f"{v:.3f}"),
        "groups": ("groups", str),
        "moved": ("moved", str),
        "ari": ("ARI", lambda v: f"{v:.2f}"),
        "up_bytes": ("up MB", lambda v: f"{v / MEGABYTE:,.2f}"),
        "down_bytes": ("down MB", lambda v: f"{v / MEGABYTE:,.2f}"),
        "failed": ("failed", str),
        "seconds": ("seconds", lambda v: f"{v:.2f}"),
    }
    shown = Table(title=Text(f"{run.label}: {method_of(folder.experiment())}, {folder.status}"))
    shown.title_justify = shown.caption_justify = "left"
    for title, _ in forms.values():
        shown.add_column(title, justify="right")
    for row in thinned(run.rounds, MOST_ROUNDS).to_dicts():
        shown.add_row(*(_cell(row[column], form) for column, (_, form) in forms.items()))
    if run.rounds.height:
        end = run.summary
        best = "not evaluated yet"
        if end["best_macro_accuracy"] is not None:
            best = f"best accuracy {_percent(end['best_macro_accuracy'])} in round {end['best_round']}"
        shown.caption = (
            f"{end['rounds']} rounds; {best}; {end['up_bytes'] / MEGABYTE:,.1f} MB up, "
            f"{end['down_bytes'] / MEGABYTE:,.1f} MB down; {end['failed']} failures; {end['seconds']:,.1f} s"
        )
    else:
        shown.caption = "No round is finished yet."
    return shown


def _forms() -> dict[str, tuple[str, Form]]:
    def megabytes(value: float) -> str:
        return f"{value:,.2f}"

    return {
        "run": ("run", str),
        "method": ("method", str),
        "rounds": ("rounds", str),
        "accuracy": ("accuracy", _percent),
        "worst10": ("worst 10%", _percent),
        "groups": ("groups", str),
        "ari": ("ARI", lambda v: f"{v:.2f}"),
        "up_mb": ("up MB", megabytes),
        "down_mb": ("down MB", megabytes),
        "seconds": ("seconds", lambda v: f"{v:,.1f}"),
    }


def _cell(value: Any, form: Form, best: bool = False) -> Text:
    return Text("–" if value is None else form(value), style="bold" if best else "")


def _percent(share: float) -> str:
    return f"{share:.1%}"
