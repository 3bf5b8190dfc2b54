"""`coterie list`: what can be chosen, and the settings of each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, cast

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

DEFAULT_CHOICES = {
    "networks": ("models/networks.py", "default_network"),
    "splits": ("clients/data/read/datasets.py", "default_split"),
    "tasks": ("clients/data/read/labelling.py", "choose_task"),
}
"""For a kind with a value `auto`: the file and the function that choose it."""


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

    if kind == "parts":
        yield from _part_lines(name, width)
        return
    if name is not None:
        from coterie.runs.schema.check import catalog

        entries = catalog(kind)
        entry = entries[name]
        summary = _describe_metrics()[name] if kind == "metrics" else entry.summary
        yield from wrap_beside(f"{entry.name}  ", summary, len(entry.name) + 2, width)
        yield from _setting_lines(entry, width)
        if entries.kind == "method":
            yield from wrap_beside("tuned   ", _describe_grids(entry), 8, width)
        return
    auto, (summaries, any_settings) = _describe_auto(kind), _read_summaries(kind)
    offered, clashes = _read_offers(kind, summaries)
    margin = max(map(len, [*summaries, *offered, "auto"])) + 2
    for name in sorted(summaries):
        yield from wrap_beside(name, summaries[name], margin, width)
    if auto:
        yield from wrap_beside("auto", auto, margin, width)
    for name in sorted(offered):
        yield from wrap_beside(name, offered[name], margin, width)
    if not summaries and not offered:
        yield f"there is none; a package can offer {kind} by the entry point coterie.{kind}"
    yield from (f"note: {clash}" for clash in clashes)
    if any_settings or offered:
        yield f"settings: coterie list {kind} NAME"


def _read_summaries(kind: str) -> tuple[dict[str, str], bool]:
    """Return name and summary of each entry, and whether any entry has settings.

    They are read from the source code, which takes no import of torch. If the catalogue is loaded already, it is
    asked instead: a user's own code may have added to it.
    """
    if kind == "metrics":
        return _describe_metrics(), False
    if "torch" in sys.modules:
        from coterie.runs.schema.check import catalog

        return {e.name: e.summary for e in catalog(kind)}, any(e.settings for e in catalog(kind))
    from coterie.cli.catalogue_source import read_entries

    entries = read_entries(kind)
    return {entry.name: entry.summary for entry in entries}, any(entry.has_settings for entry in entries)


def _describe_metrics() -> dict[str, str]:
    """Return of each metric what it is, which direction is better, and the tasks that it means something for."""
    from coterie.cli.catalogue_source import ListedMetric, read_metrics

    if "torch" in sys.modules:
        from coterie.clients.tasks import MEASURES, TASKS

        suits = {m.name: tuple(t.name for t in TASKS if m.suits(cast("type[Task]", t.target))) for m in MEASURES}
        found = {m.name: ListedMetric(m.summary, m.less_is_better, suits[m.name]) for m in MEASURES}
    else:
        found = read_metrics()
    return {
        name: f"{m.summary}; {'lower' if m.less_is_better else 'higher'} is better; "
        f"for {', '.join(m.tasks) or 'tasks that name it'}"
        for name, m in found.items()
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
            clashes.append(f"{name!r} of the package {packages} cannot be used by its name, which is Coterie's own")
    return found, clashes


def _describe_auto(kind: str) -> str:
    """Return what `auto` chooses, from the docstring of the function that does; empty if there is no `auto`."""
    from coterie.cli.catalogue_source import read_docstring

    if kind not in DEFAULT_CHOICES:
        return ""
    return " ".join(read_docstring(*DEFAULT_CHOICES[kind]).split("\n\n")[1].split()).replace("`", "")


def _part_lines(name: str | None, width: int) -> Iterator[str]:
    """Yield the columns of the method `mixed`, and below each the parts that it can be."""
    from coterie.cli.catalogue_source import read_constant
    from coterie.cli.printing import wrap_beside

    columns: dict[str, dict[str, str]] = read_constant("methods/mixed_parts.py", "PARTS")
    if name is not None and name not in columns:
        raise BadInput(unknown("part", name, columns))
    margin = max(len(part) for parts in columns.values() for part in parts) + 4
    for column, parts in columns.items():
        if name not in (None, column):
            continue
        yield column
        for part, meaning in parts.items():
            yield from wrap_beside(f"  {part}", meaning, margin, width)
    yield "put together: coterie run mixed --set COLUMN=PART; their settings: coterie list methods mixed"


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
