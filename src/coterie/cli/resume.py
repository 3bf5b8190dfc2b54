"""`coterie resume`: go on with a run that was interrupted."""

from __future__ import annotations

import shlex

import typer

from coterie.cli.options import Against, Allow, Quiet, RunName, RunsFolder, allow_flags, find_run, find_runs
from coterie.cli.run import train


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(resume)


def resume(
    run: RunName, against: Against = None, allow: Allow = None, quiet: Quiet = False, folder: RunsFolder = "runs"
) -> None:
    """Go on with a run that was interrupted; the result is the one it would have had without."""
    from coterie.cli.live import exit_on_interrupt

    again = f"coterie resume {shlex.quote(run)}{allow_flags(allow or ())}"
    with exit_on_interrupt(f"interrupted before a further round; go on with: {again}"):
        train(find_run(run, folder), find_runs(against, folder), quiet)
