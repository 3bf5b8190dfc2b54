"""`coterie report`: a run's page again, and its charts as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coterie.cli.options import Against, Charts, Run, RunsFolder, find_run, find_runs
from coterie.errors import print_escaped

if TYPE_CHECKING:
    from coterie.experiments.folder.run_folder import RunFolder


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(report)


def report(run: Run, charts: Charts = None, against: Against = None, folder: RunsFolder = "runs") -> None:
    """Rebuild a run's page, alone or beside other runs, and save its charts for a paper."""
    found, others = find_run(run, folder), find_runs(against, folder)
    if charts is not None:
        charts.mkdir(parents=True, exist_ok=True)  # if it cannot be made, the page is left as it is
    print_escaped(write_page(found, others))
    if charts is not None:
        from coterie.report.charts import save_charts_of
        from coterie.report.compared_runs import read_against

        for path in save_charts_of(found, charts, read_against(found)[0]):
            print_escaped(path)


def write_page(folder: RunFolder, others: list[RunFolder] | None) -> Path:
    """Write a run's page and return its path; None for `others` compares with the same runs as the page before.

    Runs that the page before was compared with, and that are gone, are named on standard error.
    """
    from coterie.report import compared_runs, run_page

    for sentence in [] if others is not None else compared_runs.read_against(folder)[1]:
        print_escaped(f"note: {sentence}", file=sys.stderr)
    return run_page.build(folder, others)
