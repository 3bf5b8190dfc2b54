"""`coterie show`: a run's rounds as a table, or several runs compared."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.cli.completion import complete_runs
from coterie.cli.options import RunsFolder, find_run
from coterie.errors import BadInput


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
    from coterie.runs.folder.reading import UNCHECKED
    from coterie.runs.folder.run_folder import RunFolder

    folders, console = [find_run(text, folder) for text in runs], make_console()
    if len(folders) == 1:
        console.print(run_tables.show(folders[0], console.width))
        for note in (*folders[0].warnings(), *([] if folders[0].is_checked else [UNCHECKED])):
            console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
        return
    sound, problems = list[RunFolder](), list[str]()
    for each in folders:
        try:
            run_tables.last_rounds([each])
            sound.append(each)
        except BadInput as problem:
            problems += problem.problems
    if sound:
        console.print(run_tables.render(sound, console.width))
    if problems:
        raise BadInput(problems)
