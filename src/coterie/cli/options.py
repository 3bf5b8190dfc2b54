"""Options that several commands have, how their values are read, and the experiment that they make."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.completion import complete_names, complete_runs
from coterie.errors import BadInput, unknown
from coterie.plugins import allow, give, is_path, needs_consent
from coterie.runtime.garbage import freeze_imports

if TYPE_CHECKING:
    from coterie.runs.folder.run_folder import RunFolder
    from coterie.runs.schema.experiment import Experiment

What = Annotated[
    str,
    typer.Argument(
        metavar="METHOD|FILE.toml",
        help="A method, or an experiment file.",
        autocompletion=complete_names("methods", (".toml",)),
    ),
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's name, the beginning of it, or its folder.", autocompletion=complete_runs
    ),
]
RunsFolder = Annotated[str, typer.Option("--folder", metavar="DIR", help="Where run folders are.")]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|PATH",
        help="The dataset: coterie list datasets.",
        autocompletion=complete_names("datasets", (".csv", ".npz", ".parquet")),
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="How samples are dealt to clients: coterie list splits.",
        autocompletion=complete_names("splits"),
    ),
]
Clients = Annotated[str | None, typer.Option(metavar="N", help="How many clients.")]
Rounds = Annotated[str | None, typer.Option(metavar="R", help="How many rounds.")]
Participation = Annotated[
    str | None, typer.Option(metavar="F", help="Share of the clients in each round, up to 1.")
]
Network = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The network: coterie list networks.", autocompletion=complete_names("networks")
    ),
]
HoldoutClients = Annotated[
    str | None, typer.Option(metavar="F", help="Share of the clients who join after training has ended.")
]
Seed = Annotated[str | None, typer.Option(metavar="N", help="Seed of all random numbers.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any other setting, such as clusters=4 or training.lr=0.1; repeatable."
    ),
]


def _give(names: list[str] | None) -> list[str] | None:
    give(names or ())
    return names


def _allow(names: list[str] | None) -> list[str] | None:
    allow(names or ())
    return names


Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import this module first, so that what it registers can be named; repeatable.",
        callback=_give,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE:OBJECT",
        help="Let a file import this object of yours, or all of a MODULE; repeatable.",
        callback=_allow,
    ),
]
Observers = Annotated[
    list[str] | None,
    typer.Option("--observer", metavar="NAME", help="An observer of the run: coterie list observers; repeatable."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(metavar="mlflow|tensorboard|wandb|csv", help="Also log every round to this tracker; repeatable."),
]
Workers = Annotated[str | None, typer.Option(metavar="N", help="Worker processes; default: one per core.")]
Engine = Annotated[str | None, typer.Option(metavar="auto|sequential|batched|gpu", help="How clients train.")]
Runtime = Annotated[str | None, typer.Option("--runtime", metavar="local|ray", help="Where clients train.")]
RayAddress = Annotated[
    str | None,
    typer.Option(metavar="auto|HOST:PORT", help="The Ray cluster; default: a new one on this machine."),
]
Jobs = Annotated[str | None, typer.Option(metavar="N", help="Runs at a time; default: one per core.")]
Against = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RUN", help="Compare with this run on the page; repeatable.", autocompletion=complete_runs
    ),
]
Baselines = Annotated[
    str | None,
    typer.Option(
        metavar="cheap|all|none", help="Also run FedAvg (+ FT) and local-only; default: cheap, with -q none."
    ),
]
Charts = Annotated[Path | None, typer.Option(metavar="DIR", help="Save each chart there as SVG and PNG.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the run's folder at the end, and nothing else.")]

MOST_DIGITS = 4000
"""Of a number that an option has; Python reads no more of them."""

KEYS = {
    "data": "data.name",
    "split": "data.split",
    "clients": "data.clients",
    "rounds": "run.rounds",
    "participation": "run.participation",
    "holdout_clients": "run.holdout_clients",
    "network": "network.name",
    "seed": "run.seed",
    "name": "run.name",
    "workers": "run.workers",
    "engine": "run.engine",
    "runtime": "run.runtime",
    "ray_address": "run.ray_address",
    "folder": "run.folder",
}
"""The key of an experiment that each option sets."""

NUMBERS = ("clients", "rounds", "participation", "holdout_clients", "seed", "workers")
"""Options that are numbers. They are read by `collect_changes` and not by the parser of the command line, so that
all that is wrong with them is said at once."""

OPTIONS = {
    "data": Data,
    "split": Split,
    "clients": Clients,
    "rounds": Rounds,
    "participation": Participation,
    "holdout_clients": HoldoutClients,
    "network": Network,
    "seed": Seed,
    "settings": Settings,
    "workers": Workers,
    "engine": Engine,
    "runtime": Runtime,
    "ray_address": RayAddress,
    "imports": Imports,
    "allow": Allow,
}
"""Options of an experiment, in the order of the help; none is given where it is not said."""


def with_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of an experiment; it receives them as `options`.

    They come behind the command's arguments, and before options of its own.

    Args:
        without: options that the command does not have.
    """
    shared = {name: kind for name, kind in OPTIONS.items() if name not in without}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(**given: Any) -> None:
            options = {name: given.pop(name) for name in shared}
            command(**given, options=options)

        own = [one for one in signature(command, eval_str=True).parameters.values() if one.name != "options"]
        (argument, *rest) = own
        added = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in shared.items()
        ]
        every = [argument, *added, *rest]
        every = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in every]
        call.__signature__ = Signature(every)  # type: ignore[attr-defined]  # what typer reads
        call.__annotations__ = {one.name: one.annotation for one in every}
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        return call

    return decorate


def collect_changes(**options: str | None) -> dict[str, Any]:
    """Return the values of the options that are given, by the keys of an experiment that they set."""
    from coterie.runs.schema import toml

    given = {name: text for name, text in options.items() if text is not None}
    return {KEYS[name]: toml.value_of(text) if name in NUMBERS else text for name, text in given.items()}


def make_experiment(
    what: str,
    settings: list[str] | None = None,
    imports: list[str] | None = None,
    observers: list[str] | None = None,
    allow: list[str] | None = None,
    **options: str | None,
) -> Experiment:
    """Return the experiment that a method or a file and the options beside it describe, checked.

    Args:
        what: a method, or an experiment's file.
        settings: texts like `clusters=3`.
        imports: modules beside those of the file.
        observers: names beside those of the file.
        allow: what has been allowed by now, when the option was read.
        options: the values of other options by their names.

    Raises:
        BadInput: everything that is wrong with it.
    """
    if not what.endswith(".toml") and not is_path(what) and (Path(what).suffix or "/" in what):
        from coterie.clients.data.read.files import ENDINGS

        hint = "such files end in .toml, and coterie new experiment.toml writes one"
        if Path(what).suffix in ENDINGS:
            data = shlex.quote(what)
            hint = f"data are for coterie diagnose {data}, or coterie run METHOD --data {data}"
        raise BadInput(f"{what!r} is neither a method nor an experiment file; {hint}")
    with freeze_imports():
        from coterie.runs.schema import toml

    tables = {"method": what}
    if what.endswith(".toml"):
        tables = toml.load(Path(what))
    else:
        give_typed(tables)
    return change_experiment(tables, settings, imports, observers, allow, **options)


def give_typed(changes: Mapping[str, Any], settings: Sequence[str] | None = None) -> None:
    """Count as given by the person what sections or dotted keys, and texts like `augment=mine:blur`, name."""
    from coterie.runs.schema import toml
    from coterie.runs.schema.names import LOOKUP, find_paths

    typed = {key: toml.value_of(value) for key, value in read_settings(settings or ()).items()}
    bare = {f"{title}.{key}": value for key, value in typed.items() if "." not in key for title in LOOKUP}
    give([*find_paths(changes).values(), *find_paths({**typed, **bare}).values()])


def allow_flags(names: Iterable[str]) -> str:
    """Return the options, behind a space, by which a person allows the modules and objects that need it."""
    return "".join(f" --allow {shlex.quote(name)}" for name in dict.fromkeys(names) if needs_consent(name))


def read_settings(settings: Sequence[str]) -> dict[str, str]:
    """Return the values of texts like `data.name=a.csv` by their keys; what is no such text is passed over."""
    pairs = (text.partition("=") for text in settings)
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def change_experiment(
    tables: Mapping[str, Any],
    settings: list[str] | None = None,
    imports: list[str] | None = None,
    observers: list[str] | None = None,
    allow: list[str] | None = None,
    **options: str | None,
) -> Experiment:
    """Return the experiment in `tables` with what options say in its place, checked; as `make_experiment` does.

    Raises:
        BadInput: everything that is wrong with it.
    """
    from coterie.runs.schema.experiment import assemble

    changes = collect_changes(**options)
    give_typed({**changes, "run.observers": observers or ()}, settings)
    for key, more in (("imports", imports), ("observers", observers)):
        if more:
            changes[f"run.{key}"] = join_lists(tables.get("run"), key, more)
    experiment = assemble(tables, changes, settings or [])
    experiment.check()
    return experiment


def join_lists(table: Any, key: str, more: list[str]) -> Any:
    """Return what stands in a table under a key, with more behind it; as it is where it is no list."""
    there = table.get(key, ()) if isinstance(table, Mapping) else ()
    return [*dict.fromkeys([*there, *more])] if isinstance(there, list | tuple) else there


def parse_whole_number(option: str, text: str | None) -> int | None:
    """Return the number that an option has, at least 1; None if it is not given.

    Raises:
        BadInput: it is something else.
    """
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS or int(text) < 1:
        meant = "; --seed 0 is the seed" if option == "seeds" and text == "0" else ""
        raise BadInput(f"--{option} {text!r} is not possible; it must be a whole number, at least 1{meant}")
    return int(text)


def find_run(text: str, folder: str) -> RunFolder:
    """Return the run that a user names: by its name in `folder`, the beginning of it, or its path.

    Raises:
        BadInput: there is no such run, or several names begin so.
    """
    from coterie.runs.folder.run_folder import RunFolder, list_runs

    try:
        return RunFolder.find(text, folder)
    except BadInput:
        there = next((path for path in (Path(folder) / text, Path(text)) if text and path.is_dir()), None)
        names = [run.name for run in list_runs(folder)]
        if there is not None and (there / "comparison.toml").is_file():
            raise BadInput(
                f"{str(there)!r} is a comparison; see it with: coterie compare {shlex.quote(str(there))}"
            ) from None
        if there is not None:
            problem = f"{str(there)!r} is no run: it holds no experiment.toml; name the folder of a run"
            raise BadInput(problem) from None
        if not names or any(text and name.startswith(text) for name in names):
            raise
        raise BadInput(unknown("run", text, names, where=f"in {folder!r}")) from None


def find_runs(texts: list[str] | None, folder: str) -> list[RunFolder] | None:
    """Return the runs that a user names; None if there are none, which leaves a page's comparison as it was."""
    return [find_run(text, folder) for text in texts] if texts else None
