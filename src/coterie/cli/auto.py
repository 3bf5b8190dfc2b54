"""`coterie auto`: choose what to train for whom, write it as an experiment, and run it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.diagnose import Source, ask_for_client, read_tables
from coterie.cli.options import Jobs, RunsFolder, allow_flags, change_experiment, parse_whole_number, with_options
from coterie.errors import BadInput
from coterie.runtime.garbage import freeze_imports

if TYPE_CHECKING:
    from coterie.studies.auto import Choice

HELP = """
Choose what to train for whom (one model, groups, personal models, or each
client alone), and train it.

Examples:

  coterie auto clients.csv
  coterie auto hospitals/ --rounds 50
  coterie auto digits --split 'rotated(4)' --clients 20 --seeds 2
  coterie auto experiment.toml --only linear,halves,ditto --no-run

Every candidate trains at several learning rates, and then from several seeds.
Validation samples of the clients decide; test samples are never looked at.
The simplest candidate within one standard error of the best is chosen. The
choice is written as an ordinary experiment and run. That run trains on the
validation samples, too.

The same command continues an interrupted search. It takes the same input as
[bold]coterie diagnose[/].
"""

FOLDER = "comparisons"


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(help=HELP)(auto)


@with_options("runtime", "ray_address", "workers")
def auto(
    what: Source,
    options: dict[str, Any],
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N", help="Seeds with which each candidate trains at its best rate; default 3."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Candidates to try, separated by commas; default: all.")
    ] = None,
    train: Annotated[bool, typer.Option("--run/--no-run", help="Also run the choice.")] = True,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The search's name.")] = None,
    jobs: Jobs = None,
    folder: RunsFolder = "runs",
    into: Annotated[str, typer.Option(metavar="DIR", help="Where the search's folder is made.")] = FOLDER,
) -> None:
    """Choose what to train for whom, and train it."""
    from coterie.cli.live import exit_on_interrupt

    with exit_on_interrupt("interrupted before the first run; nothing was written"):
        tables = read_tables(what, folder)
        problems = []
        if options["split"] is None and options["clients"] is None:
            problems = ask_for_client(tables, options["settings"] or [])
        count, at_a_time = parse_whole_number("seeds", seeds), parse_whole_number("jobs", jobs)
        try:
            experiment = change_experiment(tables, **options)
        except BadInput as problem:
            raise BadInput([*problem.problems, *problems]) from None
        if problems:
            raise BadInput(problems)
        with freeze_imports():
            from coterie.cli.live_cells import CellLines, watch_cells
            from coterie.report.comparison.auto import CHOSEN, run_plan
            from coterie.runs.schema.names import find_paths
            from coterie.studies.auto import CANDIDATES, bring_to_one_scale, plan, select
        candidates = select([label.strip() for label in only.split(",")]) if only else CANDIDATES
        experiment, notes = bring_to_one_scale(experiment)
        comparison, left_out = plan(experiment, candidates=candidates, seeds=count or 3, name=name)
        comparison.check(into)
    with exit_on_interrupt("interrupted; what is finished is kept, and the same command goes on"):
        with watch_cells(False) as observer:
            assert isinstance(observer, CellLines)
            observer.tell_first(notes)
            choice = run_plan(comparison, experiment, left_out, folder=into, jobs=at_a_time, observer=observer)
        path = choice.folder / CHOSEN
        _print(choice, path)
    if train:
        from coterie.cli.run import train as train_and_report

        train_and_report(choice.experiment.updated({"run.folder": folder}), None, False)
        return
    from coterie.cli.printing import say

    flags = allow_flags(find_paths(choice.experiment.tables()).values())
    say(f"next    coterie run {shlex.quote(str(path))}{flags}")


def _print(choice: Choice, path: Path) -> None:
    """Print the candidates as a table, the choice and its reasons, and where the files are."""
    from coterie.cli.printing import make_console, say
    from coterie.report.comparison import auto
    from coterie.report.tables import to_rich

    make_console().print(to_rich(auto.table(choice)))
    for sentence in (*auto.describe(choice), *(f"note: {sentence}" for sentence in choice.left_out)):
        say(sentence)
    say(f"written {path}")
    say(f"page    {choice.folder / 'report.html'}")
