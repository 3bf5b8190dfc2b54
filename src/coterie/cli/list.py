"""`coterie list`: what can be chosen, and the settings of each."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.resources import files
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from coterie.catalogue import first_sentence
from coterie.cli.options import Imports
from coterie.errors import BadInput, unknown
from coterie.plugins import describe_clash, give, import_modules, is_path, offers

if TYPE_CHECKING:
    from coterie.catalogue import Entry
    from coterie.clients.tasks import Task

KINDS = ("methods", "tasks", "metrics", "datasets", "splits", "networks", "observers", "parts")

SYNONYMS = {"models": "networks", "model": "networks", "data": "datasets", "partitions": "splits"}
"""What else people call what can be listed."""

CHOOSE_DEFAULT = {
    "networks": ("coterie.models.networks", "default_network"),
    "splits": ("coterie.clients.data.read.datasets", "default_split"),
    "tasks": ("coterie.clients.data.read.labelling", "choose_task"),
}
"""For a kind with a value `auto`: the function that chooses it, whose docstring says how."""

SERVER_OPTIMIZERS = (
    'No methods, but a setting of most methods that average: aggregation.optimizer = "sgd" (FedAvgM), "adagrad", '
    '"adam" or "yogi".'
)
"""What a listing of methods says of those that others count among them."""

LISTING = files("coterie.cli").joinpath("listing.json")
"""What `gather` returns of each kind, so that no listing loads torch; `python -m website.methods` renews it."""


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("list")(list_kind)


def list_kind(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One of them, with its settings.")] = None,
    imports: Imports = None,
) -> None:
    """List what can be chosen, a line on each; with a NAME, its settings and their defaults.

    What installed packages offer comes last, with the package's name; none of it is imported before it is named.
    """
    if kind in SYNONYMS:
        raise BadInput(f"list {kind!r} is unknown; did you mean {SYNONYMS[kind]}?")
    if kind not in KINDS:
        raise BadInput(unknown("list", kind, KINDS))
    from coterie.cli.printing import terminal_width

    import_modules(imports or [])
    give([name] if name and is_path(name) else ())
    for line in _lines(kind, name, terminal_width()):
        print(line)


def _lines(kind: str, name: str | None, width: int) -> Iterator[str]:
    """Yield a line on each entry of a kind; or on one of them, and a line on each of its settings.

    Raises:
        BadInput: there is no such name.
    """
    from coterie.cli.printing import wrap_beside

    if name is not None and kind != "parts":
        from coterie.runs.schema.names import catalog

        entries = catalog(kind)
        entry = entries[name]
        summary = gather(kind)["entries"][name] if kind == "metrics" else entry.summary
        yield from wrap_beside(f"{entry.name}  ", summary, len(entry.name) + 2, width)
        yield from _setting_lines(entry, width)
        if entries.kind == "method":
            yield from wrap_beside("tuned   ", _describe_grids(entry), 8, width)
        return
    # A user's own code may have added to a catalogue that is loaded.
    listing = gather(kind) if "torch" in sys.modules else json.loads(LISTING.read_text("utf-8"))[kind]
    summaries = listing["entries"]
    if name is not None:  # the functions of one module
        summaries = {part: said for part, said in summaries.items() if part.partition(".")[0] == name}
        if not summaries:
            raise BadInput(unknown("part", name, sorted({part.partition(".")[0] for part in listing["entries"]})))
    offered, clashes = _read_offers(kind, summaries)
    margin = max(map(len, [*summaries, *offered, "auto"])) + 2
    autos = {"auto": listing["auto"]} if listing["auto"] else {}
    if listing["families"]:
        yield from _family_lines({**summaries, **offered}, listing["families"], margin + 2, width)
        yield "server optimizers"
        yield from wrap_beside("", SERVER_OPTIMIZERS, 2, width)
    else:
        for known in (dict(sorted(summaries.items())), autos, dict(sorted(offered.items()))):
            for each, said in known.items():
                yield from wrap_beside(each, said, margin, width)
    if not summaries and not offered:
        yield f"there is none; a package can offer {kind} by the entry point coterie.{kind}"
    yield from (f"note: {clash}" for clash in clashes)
    if listing["has_settings"] or offered:
        yield f"settings: coterie list {kind} NAME"


def _family_lines(
    summaries: Mapping[str, str], families: Mapping[str, list[str]], margin: int, width: int
) -> Iterator[str]:
    """Yield the entries by family, under its name; those of none, as of installed packages, last."""
    from coterie.cli.printing import wrap_beside

    others = sorted(summaries.keys() - {name for names in families.values() for name in names})
    for family, names in (*families.items(), ("others", others)):
        if names:
            yield family
        for name in names:
            yield from wrap_beside(f"  {name}", summaries[name], margin, width)


def gather(kind: str) -> dict[str, Any]:
    """Return what a listing of a kind shows: summaries by name, what `auto` is, and whether any has settings.

    Of methods also their names by family.
    """
    if kind == "parts":
        return {"entries": _gather_parts(), "auto": "", "has_settings": False, "families": {}}
    from coterie.runs.schema.names import catalog

    entries = {entry.name: entry.summary for entry in catalog(kind)}
    if kind == "metrics":
        entries = _gather_metrics()
    auto = ""
    if kind in CHOOSE_DEFAULT:
        module, function = CHOOSE_DEFAULT[kind]
        said = inspect.getdoc(getattr(import_module(module), function)) or ""
        auto = " ".join(said.split("\n\n")[1].split()).replace("`", "")
    return {
        "entries": entries,
        "auto": auto,
        "has_settings": kind != "metrics" and any(entry.settings for entry in catalog(kind)),
        "families": _gather_families() if kind == "methods" else {},
    }


def _gather_families() -> dict[str, list[str]]:
    """Return the names of methods by family, in the order of `FAMILIES`; not those of none."""
    from coterie.methods import METHODS
    from coterie.methods.method import FAMILIES

    of = {entry.name: getattr(entry.target, "family", "") for entry in METHODS}
    found = {family: sorted(name for name, own in of.items() if own == family) for family in FAMILIES}
    return {family: names for family, names in found.items() if names}


def _gather_metrics() -> dict[str, str]:
    """Return of each metric what it is, which direction is better, and the tasks that it means something for."""
    from coterie.clients.tasks import MEASURES, TASKS

    suits = {m.name: [t.name for t in TASKS if m.suits(cast("type[Task]", t.target))] for m in MEASURES}
    return {
        m.name: f"{m.summary}; {'lower' if m.less_is_better else 'higher'} is better; "
        f"for {', '.join(suits[m.name]) or 'tasks that name it'}"
        for m in MEASURES
    }


def _gather_parts() -> dict[str, str]:
    """Return arguments and purpose of the functions of `coterie.grouping` that a method is put together from."""
    from coterie import grouping

    modules = [import_module(f"{grouping.__name__}.{found.name}") for found in iter_modules(grouping.__path__)]
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": " ".join(
            [
                f"({', '.join(inspect.signature(function).parameters)})",
                first_sentence(inspect.getdoc(function) or ""),
            ]
        )
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


def _read_offers(kind: str, known: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return name and summary of what installed packages offer, and a sentence on each name that cannot be used.

    Nothing is imported: the summary is read off the source, where that lies with the package.
    """
    found: dict[str, str] = {}
    clashes: list[str] = []
    for name, some in offers(f"coterie.{kind}").items():
        packages = " and ".join(offer.package for offer in some)
        if len(some) > 1:
            clashes.append(describe_clash(kind.removesuffix("s"), some))
        elif name not in known:
            found[name] = " ".join(filter(None, [first_sentence(some[0].summary()), f"(package {packages})"]))
        elif "torch" not in sys.modules:
            clashes.append(
                f"{name!r} of the package {packages} cannot be used by that name, which belongs to Coterie itself"
            )
    return found, clashes


def _setting_lines(entry: Entry, width: int) -> Iterator[str]:
    from coterie.catalogue import plain
    from coterie.cli.printing import wrap_beside
    from coterie.runs.schema.toml import literal

    lines = []
    for setting in entry.settings:
        if setting.required:
            lines.append((f"{setting.name} (must be given)", setting.meaning))
        elif setting.default is None:
            lines.append((f"{setting.name} (not set)", setting.meaning))
        else:
            lines.append((f"{setting.name} = {literal(plain(setting.default))}", setting.meaning))
    margin = 4 + max((len(code) for code, _ in lines), default=0)
    for code, meaning in lines:
        yield from wrap_beside(f"  {code}", meaning, margin, width)


def _describe_grids(entry: Entry) -> str:
    """Return the values that `coterie compare --tune` tries, of the method's settings and of the training's."""
    from coterie.runs.schema.toml import literal
    from coterie.studies.compare.tuning import tuned_settings

    grids = [f"{key} over {', '.join(map(literal, s.grid))}" for key, s in tuned_settings(entry.name).items()]
    return "; ".join(grids)
