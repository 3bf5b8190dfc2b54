"""`coterie show`: a run's rounds as a table, or several runs compared."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.cli.completion import complete_runs
from coterie.cli.options import RunsFolder, find_run


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(show)


def show(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Names of runs, or their folders.", autocompletion=complete_runs),
    ],
    folder: RunsFolder = "runs",
) -> None:
    """Print a run's rounds as a table, or compare several runs by their last rounds."""
    from rich.text import Text

    from coterie.cli.printing import make_console
    from coterie.report import run_tables

    folders, console = [find_run(text, folder) for text in runs], make_console()
    if len(folders) == 1:
        console.print(run_tables.show(folders[0], console.width))
        for warning in folders[0].warnings():
            console.print(Text(f"note: {warning}", style="yellow"), soft_wrap=True)
    else:
        console.print(
            run_tables.render(run_tables.last_rounds(folders), console.width, run_tables.shown_metrics(folders))
        )
