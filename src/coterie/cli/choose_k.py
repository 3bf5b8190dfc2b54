"""`coterie choose-k`: how many groups, by training with each number for a few rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.diagnose import Source, read_tables
from coterie.cli.options import Jobs, RunsFolder, change_experiment, parse_whole_number, with_options
from coterie.errors import BadInput, print_escaped

HELP = """
Choose the number of groups by training: each number for three rounds, on at
most 100 clients a round.

FeSEM's paper chooses its K like this (section 5.2). Scores are means over
three seeds on validation samples, and every number is tried on the same
clients with the same draws. [bold]coterie diagnose[/] uses a test instead, which needs
no rounds and can also find that there are no groups.

Examples:

  coterie choose-k digits --split 'rotated(4)' --clients 40
  coterie choose-k experiment.toml --most 8 --seeds 5

The method is the experiment's if it takes a number of groups, and FeSEM
otherwise. Finished runs are never repeated.
"""


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("choose-k", help=HELP)(choose_k)


@with_options("data", "rounds", "participation", "runtime", "ray_address")
def choose_k(
    what: Source,
    options: dict[str, Any],
    most: Annotated[int, typer.Option(metavar="K", min=2, max=64, help="The largest number of groups to try.")] = 6,
    seeds: Annotated[int, typer.Option(metavar="N", min=2, max=100, help="How many seeds.")] = 3,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Rounds of each run.")] = 3,
    jobs: Jobs = None,
    cells: Annotated[Path, typer.Option(metavar="DIR", help="Where the runs are kept.")] = Path("choices"),
    folder: RunsFolder = "runs",
) -> None:
    """Choose the number of groups."""
    from coterie.cli.live import exit_on_interrupt
    from coterie.cli.live_cells import watch_cells
    from coterie.cli.printing import make_console, say
    from coterie.report.comparison.view import value
    from coterie.report.tables import Table, to_rich
    from coterie.runs.schema.experiment import prepare
    from coterie.runs.schema.names import catalog
    from coterie.runs.setup import load_federation
    from coterie.studies import choose_k as choice
    from coterie.studies.compare.cells import run_cells
    from coterie.studies.compare.folder import find_finished
    from coterie.studies.compare.measures import measure_cells

    with exit_on_interrupt("interrupted; what is finished is kept, and the same command goes on"):
        tables = read_tables(what, folder)
        method = tables.get("method", {})
        name = str(method if isinstance(method, str) else method.get("name", ""))
        if "clusters" not in {setting.name for setting in catalog("method")[name].settings}:
            tables = {**tables, "method": "fesem"}
        experiment = change_experiment(tables, **options)
        clients = len(load_federation(prepare(experiment)).bounds)
        comparison = choice.plan(experiment, clients, most, seeds, rounds)
        comparison.check(cells)
        with watch_cells() as watcher:
            outcomes = run_cells(comparison.cells(), cells, parse_whole_number("jobs", jobs), watcher)
        if any(outcome.status == "interrupted" for outcome in outcomes.values()):
            raise KeyboardInterrupt
    failed = dict.fromkeys(outcome.sentence for outcome in outcomes.values() if outcome.status == "failed")
    if failed:
        raise BadInput(list(failed))
    frames = measure_cells(comparison, find_finished(comparison.cells(), cells))
    comparison = comparison.measured_by(frames.metrics)
    metric = frames.metrics.measures[comparison.measure]
    best, tried = choice.choose(comparison, frames.cells, comparison.measure in frames.metrics.falling)
    rows = [
        [str(one.clusters), value(metric, one.mean), "best" if one.clusters == best else _alike(one.is_alike)]
        for one in tried
    ]
    make_console().print(to_rich(Table(["K", f"{metric.title}, on validation samples", ""], rows)))
    alike = [str(one.clusters) for one in tried if one.is_alike and one.clusters != best]
    say(
        f"choose  method.clusters = {best}" + (f"; {', '.join(alike)} score the same within noise" if alike else "")
    )
    print_escaped(f"runs    {cells}")


def _alike(is_alike: bool) -> str:
    return "within noise of it" if is_alike else ""
