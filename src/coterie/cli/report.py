"""`coterie report`: a run's page again, and its charts as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coterie.cli.options import Against, Charts, RunName, RunsFolder, find_run, find_runs
from coterie.errors import BadInput, print_escaped

if TYPE_CHECKING:
    from coterie.runs.folder.run_folder import RunFolder


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(report)


def report(run: RunName, charts: Charts = None, against: Against = None, folder: RunsFolder = "runs") -> None:
    """Rebuild a run's page, alone or beside other runs, and save its charts for a paper."""
    found, others = find_run(run, folder), find_runs(against, folder)
    if charts is not None:
        charts.mkdir(parents=True, exist_ok=True)  # if it cannot be made, the page is left as it is
    print_escaped(write_page(found, others))
    if charts is not None:
        from coterie.report.charts import draw_run
        from coterie.report.compared_runs import read_against
        from coterie.report.drawing.saving import save_figures
        from coterie.runs.folder.reading import read_runs

        drawn, *beside = read_runs([found, *read_against(found)[0]])
        for path in save_figures(draw_run(drawn, beside), charts):
            print_escaped(path)


def write_page_or_say(folder: RunFolder, others: list[RunFolder] | None) -> Path | None:
    """Write the page of a run that has just finished; where it cannot be drawn, say so and return None.

    The run is finished all the same, and nothing of it is lost.
    """
    from coterie.cli.printing import run_argument

    try:
        return write_page(folder, others)
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001  # a page is worth no run
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        again = f"coterie report {run_argument(folder.path)}"
        print_escaped(
            f"coterie: the page could not be written ({reason[:300]}); the run is finished, and {again} "
            "tries again",
            file=sys.stderr,
        )
        return None


def write_page(folder: RunFolder, others: list[RunFolder] | None) -> Path:
    """Write a run's page and return its path; None for `others` compares with the same runs as the page before.

    Runs that the page before was compared with, and that are gone, are named on standard error.
    """
    from coterie.report import compared_runs, run_page

    for sentence in [] if others is not None else compared_runs.read_against(folder)[1]:
        print_escaped(f"note: {sentence}", file=sys.stderr)
    return run_page.build(folder, others)
