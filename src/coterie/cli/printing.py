"""What commands print: lines for people, the console for tables, and how a run ended."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from coterie.errors import count_of, escape_lines, print_escaped
from coterie.report.numbers import decimals, measured, volume

if TYPE_CHECKING:
    from coterie.runs.events import Result

NARROWEST = 30
"""Columns that a text gets at least, even if the terminal has fewer."""


def terminal_width() -> int:
    """Return the width at which texts are wrapped: the terminal's, or 110 if there is none."""
    return shutil.get_terminal_size((110, 24)).columns


def make_console() -> Console:
    """Return standard output as a rich console; where it is no terminal, of COLUMNS or wide enough for a table."""
    is_told = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return EscapingConsole(highlight=False, width=None if is_told else 200)


class EscapingConsole(Console):
    """A console that escapes what does not print in all texts that it shows; its own codes for colours stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape_lines(segment.text))


def say(text: str) -> None:
    """Print a line. On a terminal it is wrapped between words, so that no number and no path is cut in two."""
    if sys.stdout.isatty():
        text = textwrap.fill(
            text,
            max(terminal_width(), NARROWEST),
            subsequent_indent="        ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    print_escaped(text)


def wrap_beside(head: str, text: str, margin: int, width: int) -> Iterator[str]:
    """Yield the head and, from column `margin` on, the text, wrapped between words."""
    first, *more = textwrap.wrap(text, max(width - margin, NARROWEST), break_on_hyphens=False) or [""]
    yield f"{head:<{margin}}{first}".rstrip()
    yield from (" " * margin + line for line in more)


def run_argument(folder: Path) -> str:
    """Return what a user writes to name the run in `folder`: its name, or the path if it is not in `runs`."""
    return folder.name if folder.parent == Path("runs") else shlex.quote(str(folder))


def describe_rename(result: Result) -> str:
    """Return the sentence for a run whose name was taken by another one; empty if it got the one it asked for."""
    asked = result.experiment.run.name
    if asked is None or result.folder.name == asked:
        return ""
    return f"note: the name {asked} was taken; this run is {result.folder.name}"


def describe_outcome(result: Result, page: Path | None) -> list[str]:
    """Say what a run has found, where it lies, and what can be done with it next."""
    from coterie.cli.options import allow_flags
    from coterie.runs.folder.run_folder import RunFolder
    from coterie.runs.schema.names import find_paths

    last, run = result.summary, run_argument(result.folder)
    allowing = allow_flags(find_paths(result.experiment.tables()).values())
    groups = count_of(last["groups"], "group") if last["groups"] else "no groups"
    ari = "" if last["ari"] is None else f" (ARI {decimals(last['ari'])} to the true ones)"
    metrics, unit = result.measured, result.measured.deciding
    adapted = last.get(f"adapted_{metrics.headline}")
    after = "" if adapted is None else f" ({measured(unit, adapted)} after adaptation)"
    further = "".join(f", {m.title} {measured(m, last[f'macro_{m.name}'])}" for m in metrics.further)
    return [
        f"{unit.title} {measured(unit, last[metrics.headline])}{after}, worst 10 % "
        f"{measured(unit, last['worst10'])}{further}, {groups}{ari}",
        *(
            sentence.replace("training diverged", "diverged", 1)
            for sentence in RunFolder(result.folder).divergences()
        ),
        *_describe_newcomers(result),
        f"sent    {volume(last['up_bytes'])} up, {volume(last['down_bytes'])} down, in {last['seconds']:.1f} s",
        f"folder  {result.folder}",
        *([] if page is None else [f"page    {page}"]),
        f"next    coterie show {run}   or   coterie predict {run} --data FILE{allowing}",
    ]


def _describe_newcomers(result: Result) -> list[str]:
    """Say how well the clients do that were kept out of training."""
    from coterie.runs.folder.run_folder import RunFolder
    from coterie.runs.folder.tables import newcomers_columns

    newcomers = RunFolder(result.folder).newcomers()
    if newcomers is None:
        return []
    how = "one local update" if result.experiment.evaluation.adapt is None else "adaptation"
    found = []
    for unit, *columns in newcomers_columns(result.measured):
        means = [newcomers[column].fill_nan(None).mean() for column in columns]
        arrival, adapted = (float("nan") if mean is None else cast(float, mean) for mean in means)
        found.append(f"{unit.title} {measured(unit, arrival)} on arrival, {measured(unit, adapted)} after {how}")
    return [f"new     {count_of(newcomers.height, 'client')} who joined afterwards: {'; '.join(found)}"]
