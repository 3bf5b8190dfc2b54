"""The command line: parses, calls the library, prints. Whatever is heavy is imported inside the commands."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.problems import BadInput, unknown

if TYPE_CHECKING:
    from coterie.events import Result
    from coterie.experiment import Experiment
    from coterie.runs import RunFolder

DONE, BAD_INPUT, INTERRUPTED = 0, 2, 130

KINDS = ("methods", "datasets", "splits", "networks")

HELP = """
Clustered and personalised federated learning: find out which clients belong together, and train for each group.

Begin with [bold]coterie demo[/]: three methods on 20 clients in four hidden groups, offline.

  coterie list methods              what there is, with every setting
  coterie run fesem --name first    train; the run gets a folder, runs/first
  coterie show first                its rounds as a table, or runs compared
  coterie report first              its page again: --against RUN, --charts DIR
  coterie new experiment.toml       every setting in a file to edit, and then
  coterie run experiment.toml       run it

Every command has its own [bold]--help[/].
"""

RUN_HELP = """
Train a federation with a method, or as an experiment file says, and write a report page.

  coterie run fesem --set clusters=4 --set mu=0.1 --rounds 30
  coterie run ifca --data fashion-mnist --clients 40 --participation 0.25
  coterie run fedavg --split 'dirichlet(0.5) + rotated(4)'
  coterie run experiment.toml --seed 1 --name second --against first

An option goes before what the file says, and --set before an option. Ctrl-C saves the state and says how to go on;
next comes [bold]coterie show RUN[/].
"""

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Folder = Annotated[str, typer.Option(metavar="DIR", help="Where run folders are.")]
Against = Annotated[
    list[str] | None, typer.Option(metavar="RUN", help="Compare with this run on the page; repeatable.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the run's folder at the end, and nothing else.")]


@app.callback(invoke_without_command=True, help=HELP)
def coterie(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Print the version, or the help where no command is given."""
    if version:
        from coterie import __version__

        print(f"coterie {__version__}")
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def demo(folder: Folder = "runs") -> None:
    """Find four hidden groups among 20 clients: FedAvg, IFCA and FeSEM side by side, offline."""
    from coterie.demo import show

    with _termination_interrupts():
        interrupted = show(folder)
    if interrupted:
        _say_how_to_resume(interrupted)


@app.command(help=RUN_HELP)
def run(
    what: Annotated[str, typer.Argument(metavar="METHOD|FILE.toml", help="A method, or an experiment file.")],
    data: Annotated[
        str | None, typer.Option(metavar="NAME|PATH", help="The dataset: coterie list datasets.")
    ] = None,
    split: Annotated[str | None, typer.Option(metavar="SPEC", help="Who holds what: coterie list splits.")] = None,
    clients: Annotated[str | None, typer.Option(metavar="N", help="How many clients.")] = None,
    rounds: Annotated[str | None, typer.Option(metavar="R", help="How many rounds.")] = None,
    participation: Annotated[
        str | None, typer.Option(metavar="F", help="Share of the clients in each round, up to 1.")
    ] = None,
    network: Annotated[str | None, typer.Option(metavar="NAME", help="The network: coterie list networks.")] = None,
    seed: Annotated[str | None, typer.Option(metavar="N", help="Root of all randomness.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting, such as clusters=4 or training.lr=0.1; repeatable.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The run's name.")] = None,
    workers: Annotated[str | None, typer.Option(metavar="N", help="Worker processes; else one per core.")] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="auto|sequential|batched", help="How clients train.")
    ] = None,
    against: Against = None,
    quiet: Quiet = False,
    folder: Annotated[str | None, typer.Option(metavar="DIR", help="Where the run's folder is made.")] = None,
) -> None:
    """Train, and write a report page."""
    from coterie.experiment import Experiment
    from coterie.experiment_check import with_settings
    from coterie.experiment_toml import value_of

    texts = {
        "data.name": data,
        "data.split": split,
        "network.name": network,
        "run.name": name,
        "run.engine": engine,
        "run.folder": folder,
    }
    # Numbers are read here and not by the parser, so that all that is wrong with them is said at once.
    numbers = {
        "data.clients": clients,
        "run.rounds": rounds,
        "run.participation": participation,
        "run.seed": seed,
        "run.workers": workers,
    }
    experiment = Experiment.from_toml(Path(what)) if what.endswith(".toml") else Experiment(method=what)
    changes: dict[str, Any] = {key: text for key, text in texts.items() if text is not None}
    changes |= {key: value_of(text) for key, text in numbers.items() if text is not None}
    experiment = with_settings(experiment.updated(changes), settings or [])
    experiment.check()
    others = [_find(text, experiment.run.folder) for text in against or []]
    _train(experiment, others, quiet)


@app.command()
def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, the beginning of it, or its folder.")],
    against: Against = None,
    quiet: Quiet = False,
    folder: Folder = "runs",
) -> None:
    """Go on with a run that was interrupted; the result is the one it would have had without."""
    _train(_find(run, folder), [_find(text, folder) for text in against or []], quiet)


@app.command()
def show(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names of runs, or their folders.")],
    folder: Folder = "runs",
) -> None:
    """Print a run's rounds as a table, or compare several runs by their last rounds."""
    from coterie.listing import console
    from coterie.report import compare

    found = [_find(text, folder) for text in runs]
    console().print(compare.show(found[0]) if len(found) == 1 else compare.render(compare.table(found)))


@app.command()
def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, the beginning of it, or its folder.")],
    charts: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save each chart there as SVG and PNG.")
    ] = None,
    against: Against = None,
    folder: Folder = "runs",
) -> None:
    """Rebuild a run's page, alone or beside other runs, and save its charts for a paper."""
    from coterie.report import page

    found, others = _find(run, folder), [_find(text, folder) for text in against or []]
    print(page.build(found, others))
    if charts is not None:
        from coterie.report.charts import save

        try:
            written = save(found, charts, others)
        except OSError as error:
            raise BadInput(
                f"--charts {str(charts)!r} cannot be written: {error.strerror}; name another folder"
            ) from None
        for path in written:
            print(path)


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(metavar="|".join(KINDS), help="What to list.")],
) -> None:
    """List what can be chosen: a line on each, and its settings with their defaults."""
    from coterie.experiment_check import catalog
    from coterie.listing import catalog_lines

    if kind not in KINDS:
        raise BadInput(unknown("list", kind, KINDS))
    for line in catalog_lines(catalog(kind)):
        print(line)


@app.command()
def new(
    path: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to write; it must not exist.")],
    method: Annotated[str, typer.Option(metavar="METHOD", help="The method it begins with.")] = "fesem",
) -> None:
    """Write an experiment file with every setting, its meaning and its default."""
    if path.suffix != ".toml":
        raise BadInput(f"file {str(path)!r} is not possible; its name must end in .toml")
    from coterie.experiment import Experiment

    text = Experiment(method=method).commented_toml()
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInput(f"file {str(path)!r} exists already; name another, or remove it first") from None
    except OSError as error:
        raise BadInput(f"file {str(path)!r} cannot be written: {error.strerror}; name another") from None
    print(f"{path} is written; run it with: coterie run {path}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 2 bad input, 130 interrupted."""
    try:
        code = app(args=arguments, prog_name="coterie", standalone_mode=False)
        sys.stdout.flush()
        return int(code or DONE)
    except BadInput as error:
        return _refuse(error.problems)
    except typer.TyperException as error:
        return _refuse([_sentence(error.format_message())])
    except (KeyboardInterrupt, typer.Abort):
        print("coterie: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone; flushing at exit must not complain about it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _train(what: Experiment | RunFolder, others: list[RunFolder], quiet: bool) -> None:
    """Run an experiment, or go on with a run; then write its page beside those of the others."""
    from coterie import running
    from coterie.experiment import Experiment
    from coterie.live import watching
    from coterie.report import page
    from coterie.runs import RunFolder

    with _termination_interrupts(), watching(quiet) as observers:
        if isinstance(what, Experiment):
            result = running.run(what, observers=observers)
        else:
            result = running.resume(what.path, observers=observers)
    if result.status == "interrupted":
        _say_how_to_resume(result)
    written = page.build(RunFolder(result.folder), others)
    if quiet:
        print(result.folder)
        return
    from coterie.listing import outcome

    for line in outcome(result, written):
        print(line)


def _say_how_to_resume(result: Result) -> None:
    from coterie.listing import spoken

    print(f"interrupted after round {result.rounds.height}; resume with: coterie resume {spoken(result.folder)}")
    raise typer.Exit(INTERRUPTED)


def _find(text: str, folder: str) -> RunFolder:
    from coterie.runs import RunFolder

    return RunFolder.find(text, folder)


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does, with its state saved."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _refuse(problems: Sequence[str]) -> int:
    for problem in problems:
        print(f"coterie: {problem}", file=sys.stderr)
    return BAD_INPUT


def _sentence(message: str) -> str:
    """A usage error in the style of every other one: it begins small and ends without a full stop."""
    text = " ".join(message.split()).removesuffix(".")
    return text[:1].lower() + text[1:]
