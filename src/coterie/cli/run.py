"""`coterie run`: train, show the rounds as they come, and write a report page."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from coterie.cli.options import (
    Against,
    Baselines,
    Observers,
    Quiet,
    Track,
    What,
    allow_flags,
    find_runs,
    make_experiment,
    with_options,
)
from coterie.errors import BadInput, print_escaped
from coterie.runtime.garbage import freeze_imports

if TYPE_CHECKING:
    from coterie.runs.folder.reading import RunResults
    from coterie.runs.folder.run_folder import RunFolder
    from coterie.runs.schema.experiment import Experiment

INTERRUPTED = 130

DIVERGED = 3
"""The exit code of a run, or of a comparison with one, whose training diverged for every client."""

BASELINES = ("cheap", "all", "none")
"""What `--baselines` can be."""

HELP = """
Train a federation with a method or from an experiment file, and write a
report page.

Examples:

  coterie run fesem --set clusters=4 --set mu=0.1 --rounds 30
  coterie run ifca --data fashion-mnist --clients 40 --participation 0.25
  coterie run fedavg --split 'dirichlet(0.5) + rotated(4)'
  coterie run experiment.toml --seed 1 --name second --against first
  coterie run fesem --track tensorboard

An option overrides the file, and --set overrides an option.

Ctrl-C saves the state and prints the command that resumes. [bold]coterie show RUN[/]
prints the results.
"""


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(help=HELP)(run)


@with_options()
def run(
    what: What,
    options: dict[str, Any],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The run's name; one that is taken gets -2, -3, …")
    ] = None,
    observers: Observers = None,
    track: Track = None,
    against: Against = None,
    baselines: Baselines = None,
    quiet: Quiet = False,
    folder: Annotated[str | None, typer.Option(metavar="DIR", help="Where the run's folder is made.")] = None,
) -> None:
    """Train, and write a report page."""
    from coterie.cli.live import exit_on_interrupt

    with exit_on_interrupt("interrupted before the first round; nothing was written"):
        check_baselines(baselines)
        watching = [*(observers or ()), *(track or ())]
        experiment = make_experiment(what, observers=watching, name=name, folder=folder, **options)
        train(experiment, find_runs(against, experiment.run.folder), quiet, baselines)


def check_baselines(baselines: str | None) -> None:
    """Check the option that says which baselines are run.

    Raises:
        BadInput: it is none of its values.
    """
    if baselines is not None and baselines not in BASELINES:
        raise BadInput(f"--baselines = {baselines!r} is not possible; it must be {', '.join(BASELINES)}")


def train(
    what: Experiment | RunFolder, others: list[RunFolder] | None, quiet: bool, baselines: str | None = None
) -> None:
    """Run an experiment, or go on with a run; then write its page and print the outcome.

    Args:
        what: the experiment to begin, or the run to go on with.
        others: runs to compare with on the page; None keeps those of the page before.
        quiet: print the run's folder at the end, and nothing else.
        baselines: one of `BASELINES`; None is `none` where nothing is printed, or where a run had ended that has
            none beside it, else `cheap`.
    """
    with freeze_imports():
        from coterie.runs import loop
    from coterie.cli.live import exit_on_interrupt, watch_run
    from coterie.report import compared_runs
    from coterie.runs.folder.run_folder import RunFolder
    from coterie.runs.schema.experiment import Experiment

    before = None if isinstance(what, Experiment) else what.progress()
    try:
        with watch_run(quiet) as observers:
            if isinstance(what, Experiment):
                result = loop.run(what, observers=observers)
            else:
                result = loop.resume(what.path, observers=observers)
    except KeyboardInterrupt:  # a second one, while the tables were read or the state was saved
        begun = _find_unfinished(what.run.folder) if isinstance(what, Experiment) else what
        if begun is None or (progress := begun.progress()) is None:
            raise
        if others:
            compared_runs.write_against(begun, others)
        exit_interrupted(begun.path, progress.round)
    from coterie.cli.printing import describe_outcome, describe_rename, run_argument, say
    from coterie.cli.report import write_page_or_say
    from coterie.runs.folder.baselines import FOLDER as BESIDE

    folder = RunFolder(result.folder)
    if isinstance(what, Experiment) and not quiet and (note := describe_rename(result)):
        say(note)
    if result.status == "interrupted":
        if others:
            compared_runs.write_against(folder, others)
        exit_interrupted(folder.path, result.rounds.height)
    page = folder.path / "report.html"
    again = f"interrupted; the run is finished; add its baselines and page with: {resume_command(folder.path)}"
    ended = before is not None and before.state == "finished"  # and to be left as it is, unless something is open
    usual = "none" if quiet or (ended and not (folder.path / BESIDE).exists()) else "cheap"
    if added := _run_baselines(folder, baselines or usual, again, quiet):
        if not quiet:
            say(f"beside  {added}")
        page.unlink(missing_ok=True)
    elif not (quiet or ended or folder.diverged_for_all()) and (doubt := _find_doubt(folder)):
        say(f"note: {doubt}")
    written: Path | None = page
    if before is None or folder.progress() != before or others is not None or not page.exists():
        with exit_on_interrupt(
            f"interrupted; the run is finished; write its page with: coterie report {run_argument(folder.path)}"
        ):
            if not quiet:
                say("writing the page …")
            written = write_page_or_say(folder, others)
    if quiet:
        print_escaped(result.folder)
    else:
        for line in describe_outcome(result, written):
            say(line)
    if folder.diverged_for_all():
        if quiet and ended:  # else the run has said so
            for sentence in folder.divergences():
                print_escaped(f"coterie: {sentence}", file=sys.stderr)
        raise typer.Exit(DIVERGED)


def _run_baselines(folder: RunFolder, which: str, interrupted: str, quiet: bool) -> str:
    """Run the baselines of a finished run that are wanted and not there yet; return what is to be said of them.

    A run that diverged or was never evaluated has none.
    """
    if which == "none" or folder.diverged_for_all():
        return ""
    from coterie.cli.live import exit_on_interrupt
    from coterie.cli.printing import say
    from coterie.report.each_client import score_constant
    from coterie.report.numbers import measured
    from coterie.runs.baselines import run_baselines
    from coterie.runs.folder.baselines import TITLES, read_baselines
    from coterie.runs.folder.reading import RunResults

    before = {run.label for run in read_baselines(folder)}
    with exit_on_interrupt(interrupted):
        tell = (lambda text: None) if quiet else (lambda text: say(f"{text} …"))
        plan = run_baselines(folder, which == "all", tell)
    runs, metrics = read_baselines(folder), folder.metrics
    parts = [f"{TITLES[name]} not run: {why}" for name, why in plan.refused.items()]
    if {run.label for run in runs} != before:
        column = metrics.headline
        known = [(run.label, run.summary[column]) for run in runs]
        doubts = _find_doubt(folder, [value for _, value in known]), _find_better(folder, runs)
        parts += [doubt for doubt in doubts if doubt]
        if (constant := score_constant(RunResults(folder, folder.name))) is not None:
            known.append(constant)
        scores = [f"{name} {measured(metrics.deciding, value)}" for name, value in known]
        parts.insert(0, ", ".join(scores))
    return "; ".join(parts)


def _find_doubt(folder: RunFolder, others: Sequence[float] = ()) -> str:
    """Say that a run, or neither it nor `others` beside it, scores more than a constant answer; else empty."""
    from coterie.report.each_client import score_constant
    from coterie.runs.folder.reading import RunResults

    own, metrics = RunResults(folder, folder.name), folder.metrics
    if not own.rounds.height or own.summary[metrics.headline] is None or (floor := score_constant(own)) is None:
        return ""
    sign = -1 if metrics.deciding.less_is_better else 1
    mine, *theirs = (sign * value > sign * floor[1] for value in (own.summary[metrics.headline], *others))
    if mine:
        return ""
    what = "this model is not better than a constant answer"
    if not any(theirs):
        what = "no model is better than a constant answer, so nothing may have been learnt from the inputs"
    return f"{what}; try another training.lr, more rounds, or inputs of one scale (data.standardise)"


def _find_better(folder: RunFolder, beside: Sequence[RunResults]) -> str:
    """Say which baseline serves a run's clients clearly better than the run, by a paired interval; else empty."""
    from coterie.report.gains import gain_over, write_gain
    from coterie.runs.folder.reading import RunResults
    from coterie.studies.compare.table import interval

    metric = folder.metrics.deciding
    own = RunResults(folder, folder.name).last.select("client", metric.name)
    gains = {}
    for run in beside:
        both = own.join(run.last.select("client", metric.name), "client", suffix=" beside")
        scores, theirs = both[metric.name].to_numpy(), both[f"{metric.name} beside"].to_numpy()
        gains[run.label] = interval(gain_over(metric, theirs, scores))
    clear = {label: gain for label, gain in gains.items() if gain[1] > 0}
    if not clear:
        return ""
    label = max(clear, key=lambda label: clear[label][0])
    gain, low, high = (write_gain(metric, each) for each in clear[label])
    return f"{label} is better here: {gain} in {metric.title} (95 % interval over clients: {low} to {high})"


def exit_interrupted(folder: Path, round: int) -> NoReturn:
    """Say how to go on with a run that was interrupted after a round, and exit with code 130."""
    from coterie.cli.printing import say

    say(f"interrupted after round {round}; resume with: {resume_command(folder)}")
    raise typer.Exit(INTERRUPTED)


def resume_command(folder: Path) -> str:
    """Return the command that goes on with the run in a folder, with consent to what its experiment names."""
    from coterie.cli.printing import run_argument
    from coterie.runs.folder.run_folder import RunFolder
    from coterie.runs.schema.names import find_paths

    names = find_paths(RunFolder(folder).experiment()).values()
    return f"coterie resume {run_argument(folder)}{allow_flags(names)}"


def _find_unfinished(folder: str) -> RunFolder | None:
    """Return the run in `folder` that this process has begun and not finished."""
    from coterie.runs.folder.run_folder import list_runs

    for run in list_runs(folder):
        progress = run.progress()
        if progress is not None and progress.pid == os.getpid() and progress.state != "finished":
            return run
    return None
