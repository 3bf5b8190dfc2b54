"""`coterie diagnose`: whether clients should be grouped, before anybody trains a model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import (
    RunsFolder,
    allow_flags,
    change_experiment,
    give_typed,
    read_settings,
    with_options,
)
from coterie.errors import BadInput, count_of, nearest, shorten
from coterie.runtime.garbage import freeze_imports

if TYPE_CHECKING:
    from coterie.advice.diagnose.advice import Suggestion
    from coterie.advice.diagnose.diagnosis import Diagnosis
    from coterie.runs.schema.experiment import Experiment

HELP = """
Find out whether clients fall into groups, which ones, and who would gain from
what. No model is trained to the end.

Examples:

  coterie diagnose clients.csv
  coterie diagnose clients.csv --set standardise=global
  coterie diagnose clients.csv --page diagnosis.html --write experiment.toml
  coterie diagnose experiment.toml --json diagnosis.json
  coterie diagnose first
  coterie diagnose digits --split 'rotated(4)' --clients 40

Each client trains for some steps on each half of its data, from a few initial
models. If all clients' data come from one population, a client's two halves
are no nearer to each other than to other clients' halves. An exact test
checks that. Class frequencies and the inputs then show in what clients
differ. Next, a few rounds train one model for all, a model for each group,
and personal and local models of each client. Each model is scored on samples
that were left out of its training. Last come the methods that suit these
clients, with the costs that [bold]coterie explain[/] predicts.

Data are what --data takes in [bold]coterie run[/]: a dataset, a file or a folder. Of
an experiment or a run only the data, the network and the local training are
used; options override what the file says.
"""

Source = Annotated[
    str,
    typer.Argument(
        metavar="FILE.toml|RUN|DATA", help="An experiment file, a run, or data: a dataset, a file or a folder."
    ),
]


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(help=HELP)(diagnose)


@with_options("data", "rounds", "participation", "runtime", "ray_address")
def diagnose(
    what: Source,
    options: dict[str, Any],
    alpha: Annotated[
        float, typer.Option(metavar="A", help="Error level: how often clients of one population may be divided.")
    ] = 0.05,
    starts: Annotated[
        int, typer.Option(metavar="N", help="Number of initial models; more make the groups more stable.")
    ] = 4,
    gains: Annotated[
        bool,
        typer.Option("--gains/--no-gains", help="Also find out who gains from what; this takes most of the time."),
    ] = True,
    losses: Annotated[
        bool,
        typer.Option(
            "--losses/--no-losses", help="Also compare losses under each other's models; the answer stays the same."
        ),
    ] = False,
    layers: Annotated[
        bool,
        typer.Option("--layers/--no-layers", help="Also find out in which layers the clients differ."),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE.json", help="Also write everything to this file.")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE.toml", help="Write an experiment with the first method of the list."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE.html", help="Write a page with tables and charts.")
    ] = None,
    folder: RunsFolder = "runs",
) -> None:
    """Say whether clients should be grouped."""
    from coterie.cli.live import describe_run, exit_on_interrupt
    from coterie.cli.predict import check_written
    from coterie.cli.printing import say

    with exit_on_interrupt("interrupted; nothing was written"):
        problems = check_written("--json", json_file) + check_written("--page", page, ".html")
        problems += check_written("--write", write, ".toml", new=True)
        tables = read_tables(what, folder)
        settings = options["settings"] or []
        if options["split"] is None and options["clients"] is None:
            problems += ask_for_client(tables, settings)
        try:
            experiment = change_experiment(tables, **options)
        except BadInput as problem:
            raise BadInput([*problem.problems, *problems]) from None
        if problems:
            raise BadInput(problems)
        with freeze_imports():
            from coterie.advice.diagnose import diagnose as diagnosing
            from coterie.advice.diagnose.advice import predict_costs, suggest
            from coterie.runs.schema.names import find_paths
        said = describe_run(experiment.resolved()).partition(" on ")[2]
        with show_progress() as progress:
            diagnosis = diagnosing.diagnose(
                experiment,
                alpha=alpha,
                starts=starts,
                gains=gains,
                losses=losses,
                layers=layers,
                progress=progress,
            )
            suggestions = predict_costs(suggest(diagnosis, experiment), experiment, progress)
    for sentence in describe(diagnosis, suggestions, experiment, said):
        say(sentence)
    for sentence in write_files(diagnosis, suggestions, experiment, said, json_file, page, write):
        say(sentence)
    if suggestions:
        say(
            f"next    coterie run {shlex.quote(str(write))}{allow_flags(find_paths(experiment.tables()).values())}"
            if write
            else "next    add --write FILE.toml, and run that file"
        )
    elif write is not None:
        why = "nothing was learnt" if diagnosis.unlearnt else "no method fits these clients and this task"
        say(f"{write} was not written: {why}")


def write_files(
    diagnosis: Diagnosis,
    suggestions: tuple[Suggestion, ...],
    experiment: Experiment,
    said: str,
    json_file: Path | None,
    page: Path | None,
    write: Path | None,
) -> Iterator[str]:
    """Write what was found as JSON, as a page, and as an experiment with the first method; yield what is where.

    Args:
        diagnosis: what was found.
        suggestions: methods that suit it.
        experiment: that was diagnosed.
        said: its data, in a few words.
        json_file: gets everything; None for no file, as for the others.
        page: gets tables and charts.
        write: gets the experiment, where there is a suggestion.
    """
    from coterie.runs.folder.files import encode_json, write_whole

    if json_file is not None:
        whole = {**diagnosis.tables(), "suggestions": [asdict(suggestion) for suggestion in suggestions]}
        write_whole(json_file, encode_json(whole))
        yield f"all of it is in {json_file}"
    if page is not None:
        from coterie.report.diagnosis_page import make_page

        write_whole(page, make_page(diagnosis, suggestions, said, experiment.to_toml()).encode())
        yield f"page    {page}"
    if write is not None and suggestions:
        write_whole(write, describe_experiment(diagnosis, suggestions[0], experiment).encode())


def describe_experiment(diagnosis: Diagnosis, suggestion: Suggestion, experiment: Experiment) -> str:
    """Return the experiment of a suggestion as TOML, with the reasons above it."""
    from coterie.runs.schema import toml

    why = (*diagnosis.sentences(), f"{suggestion.method}: {suggestion.reason}")
    return f"{toml.comment(why)}\n{suggestion.experiment(experiment).to_toml()}"


def ask_for_client(tables: Mapping[str, Any], settings: Sequence[str]) -> list[str]:
    """Return a question for the column that names the client, where that is open and nobody says who holds what.

    A file has none, or a folder's files have a column that might name them as well as the files do.

    Args:
        tables: an experiment's; data that are not a file, or cannot be read, are passed over.
        settings: texts like `clusters=3`; data that they name stand in the place of those of the tables.
    """
    from coterie.clients.data.read.columns import Named
    from coterie.clients.data.read.files import ENDINGS, check_path, find_places, list_names, names_clients
    from coterie.runs.schema import toml
    from coterie.runs.schema.names import find_missing_values

    data = tables.get("data")
    data = {"name": data} if isinstance(data, str) else data if isinstance(data, Mapping) else {}
    given = read_settings(settings)
    name = toml.value_of(given["data.name"]) if "data.name" in given else data.get("name")
    path = None if name is None else Path(str(name))
    said = {key.removeprefix("data.") for key in given}
    said |= {key for key, value in data.items() if value != "auto"}
    is_folder = path is not None and path.is_dir()
    if path is None or not (is_folder or path.suffix in ENDINGS) or said & {"split", "clients", "client"}:
        return []
    if is_folder:
        column = None if check_path(path, labelled=False) else find_places(path)
        question = f"{path}: is each file a client, or does column {column!r} name the client?"
        flags = f"give --split by-user if each file is a client, or --set client={column}"
        found = [] if column is None else [f"{question} {flags}"]
    elif check_path(path, labelled=False) or names_clients(path, Named()):
        found = []
    else:
        likely = find_places(path)
        flag = "give --set client=COLUMN" if likely is None else f"if it is {likely}, give --set client={likely}"
        found = [
            f"{path}: which column names the client? {flag}, or deal samples out at random with --clients N; "
            f"columns are {shorten(list_names(path))}"
        ]
    label = toml.value_of(given["data.label"]) if "data.label" in given else data.get("label")
    return found + (
        find_missing_values({"name": str(path), "label": label}) if found and "missing" not in said else []
    )


def describe(
    diagnosis: Diagnosis, suggestions: tuple[Suggestion, ...], experiment: Experiment, said: str
) -> Iterator[str]:
    """Yield the answers, the methods that suit them, and how they agree with the true groups."""
    from coterie.cli.live import format_clock
    from coterie.report.numbers import volume

    yield f"{count_of(diagnosis.clients, 'client')} on {said}"
    yield from (f"note: {note}" for note in diagnosis.notes)
    yield from diagnosis.sentences()
    for number, found in enumerate(suggestions, 1):
        changes = " ".join(f"{key}={toml_of(value)}" for key, value in found.settings.items())
        time = "" if found.seconds is None else f"; about {format_clock(found.seconds)} here"
        if found.up_bytes is not None and found.down_bytes is not None:
            rounds = experiment.run.rounds
            time += (
                f" and {volume(found.up_bytes)} up, {volume(found.down_bytes)} down in {count_of(rounds, 'round')}"
            )
        said = f"{number}. {found.method}{f' with {changes}' if changes else ''}: {found.reason}{time}"
        yield f"Which method? {said}" if number == 1 else f"              {said}"
    if diagnosis.true_groups_ari is not None:
        ari = f"{diagnosis.true_groups_ari:.2f}"
        yield f"These clients' true groups are known; the agreement with them is {ari} (ARI)"


def toml_of(value: Any) -> str:
    """Return a setting as it is written in an experiment."""
    from coterie.runs.schema import toml

    return toml.literal(value)


def read_tables(what: str, folder: str) -> dict[str, Any]:
    """Return the tables of the experiment that a file, a run or data stand for.

    Raises:
        BadInput: it is none of them.
    """
    with freeze_imports():
        from coterie.clients.data.read import datasets
        from coterie.clients.data.read.files import ENDINGS
        from coterie.runs.folder.run_folder import RunFolder
        from coterie.runs.schema import toml
    if what.endswith(".toml"):
        return toml.load(Path(what))
    give_typed({"data": what})
    path = Path(what)
    if not what or what in datasets.DATASETS or what.startswith(datasets.HUB) or path.suffix in ENDINGS:
        return {"data": {"name": what}, "method": "fedavg"}
    try:
        run = RunFolder.find(what, folder)
    except BadInput as problem:
        if path.exists() or len(path.parts) > 1:
            return {"data": {"name": what}, "method": "fedavg"}
        if path.suffix[1:].isalpha():
            close = nearest(what, (file.name for file in Path().iterdir()))
            hint = f"did you mean {close}?" if close else "name a .toml file, a run, or what --data takes"
            raise BadInput(f"file {what!r} does not exist; {hint}") from None
        raise BadInput(
            f"{what!r} is neither an experiment file nor data, and {problem.problems[0]}; name a .toml file, a "
            "run, or what --data takes"
        ) from None
    return run.experiment()


@contextmanager
def show_progress() -> Iterator[Callable[[str], None]]:
    """Give a function that shows what has been done: in a line that renews itself, or in lines of its own."""
    from coterie.cli.printing import EscapingConsole, say

    console = EscapingConsole(highlight=False)
    if not console.is_terminal:
        yield say
        return
    with console.status("clients train on their halves") as status:
        yield status.update
