"""`coterie compare`: methods side by side, with the same clients, the same seeds and the same budget."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from coterie.cli.options import (
    Allow,
    Baselines,
    Charts,
    Clients,
    Data,
    HoldoutClients,
    Imports,
    Jobs,
    Network,
    Participation,
    Rounds,
    Split,
    allow_flags,
    collect_changes,
    give_typed,
    join_lists,
    parse_whole_number,
)
from coterie.cli.run import DIVERGED, check_baselines
from coterie.errors import BadInput, nearest, print_escaped
from coterie.plugins import import_modules

if TYPE_CHECKING:
    from coterie.studies.compare.beside import Which
    from coterie.studies.compare.cells import Watcher
    from coterie.studies.compare.compare import Compared
    from coterie.studies.compare.spec import Comparison

HELP = """
Compare methods on the same clients from the same seeds: a table, Markdown,
LaTeX, Parquet, and a page.

Examples:

  coterie compare fedavg ifca 'fesem(clusters=4)' --seeds 5
  coterie compare fedavg fedprox --data fashion-mnist --split 'dirichlet(0.2)' --tune 6
  coterie compare 'fesem@two(clusters=2)' 'fesem@four(clusters=4)'
  coterie compare fedavg ditto --tune 12 --sampler tpe --prune
  coterie compare comparison.toml               settings, grids, methods with labels
  coterie compare comparisons/NAME              continue a comparison, or print it again

Finished runs are never repeated: the same command continues where it was
stopped, or prints the results at once.

A method's own settings override --set, and --set overrides an option. A
setting that only some of the methods have applies to those.
"""

FAILED = 1

FOLDER = "comparisons"


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(help=HELP)(compare)


def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD...|FILE.toml|FOLDER", help="Methods, or a comparison: a file or its folder."
        ),
    ],
    data: Data = None,
    split: Split = None,
    clients: Clients = None,
    rounds: Rounds = None,
    participation: Participation = None,
    network: Network = None,
    holdout_clients: HoldoutClients = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N|A,B,C", help="How many seeds, counted from 0, or a list of seeds; default 3."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="The method that the others are compared with; default: the first."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="A", help="The accuracy or error to reach; default: the baseline's last."),
    ] = None,
    equal: Annotated[
        str | None,
        typer.Option(
            metavar="rounds|passes",
            help="Give all methods as many rounds, or as many local passes over the clients' samples.",
        ),
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(metavar="N", help="Pick each method's settings first, by N trials on validation data."),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(metavar="grid|random|tpe", help="How trials are drawn; random and tpe need coterie\\[tune]."),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Stop the worse two of every four trials early; all methods get the same number of rounds.",
        ),
    ] = False,
    refit: Annotated[
        bool, typer.Option("--refit", help="Train the final runs on the validation samples, too.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting for all methods; repeatable."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The comparison's name; the same comparison goes on under it, another is refused.",
        ),
    ] = None,
    folder: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where the comparison's folder is made.")
    ] = None,
    imports: Imports = None,
    allow: Allow = None,
    jobs: Jobs = None,
    baselines: Baselines = None,
    charts: Charts = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the comparison's folder at the end, and nothing else.")
    ] = False,
) -> None:
    """Compare methods, and write tables and a page."""
    from coterie.cli.live import exit_on_interrupt
    from coterie.runs.schema import toml
    from coterie.studies.compare.folder import choose_free_name
    from coterie.studies.compare.samplers import GRID, check_sampler
    from coterie.studies.compare.spec import find_paths

    changes = collect_changes(
        data=data,
        split=split,
        network=network,
        clients=clients,
        rounds=rounds,
        participation=participation,
        holdout_clients=holdout_clients,
    )
    top: dict[str, Any] = {"name": name, "baseline": baseline, "equal": equal, "refit": refit or None}
    top |= {
        "seeds": seeds and toml.value_of(f"[{seeds}]" if "," in seeds else seeds),
        "target": target and toml.value_of(target),
    }
    with exit_on_interrupt("interrupted before the first run; nothing was written"):
        check_baselines(baselines)
        trials, count = parse_whole_number("tune", tune), parse_whole_number("jobs", jobs)
        give_typed(changes, settings)
        tables, parent = _read_tables(what, folder, imports or [])
        tables |= {key: value for key, value in top.items() if value is not None}
        comparison = _make_comparison(tables, changes, settings or [])
        if trials is None and (sampler or prune):
            idle = f"--sampler {sampler}" if sampler else "--prune"
            raise BadInput(f"{idle} has no effect without --tune; say how many trials, as in --tune 8")
        check_sampler(sampler or GRID)
        comparison.check(parent)
        comparison = choose_free_name(comparison, parent)
        if charts is not None:
            charts.mkdir(parents=True, exist_ok=True)  # if it cannot be made, nothing runs
        from coterie.cli.live_cells import watch_cells
        from coterie.report.comparison.compare import compare as run_comparison
    place = parent / comparison.name
    is_again = (place / "summary.parquet").exists()  # and is printed with the baselines that it has
    which = cast("Which", baselines or ("done" if quiet or is_again else "cheap"))
    more = ["--tune", str(trials)] if trials else []
    more += ["--sampler", sampler] if sampler else []
    more += ["--prune"] if prune else []
    more += ["--baselines", baselines] if baselines else []
    again = shlex.join(["coterie", "compare", str(place), *more])
    again += allow_flags(find_paths(comparison.tables()).values())
    with exit_on_interrupt(f"interrupted; what is finished is kept, go on with: {again}"):
        with watch_cells(quiet, holds_notes=True) as observer:
            compared = run_comparison(
                comparison,
                folder=parent,
                jobs=count,
                tune=trials,
                sampler=sampler or GRID,
                prune=prune,
                observer=observer,
                baselines=which,
            )
        if compared.status == "interrupted":
            if compared.summary is not None:
                _print_results(compared, observer, quiet)
            print_escaped(compared.left)
            raise KeyboardInterrupt
        _print_results(compared, observer, quiet)
        if charts is not None:
            _save_charts(compared, charts, quiet)
    if compared.failures():
        raise typer.Exit(FAILED)
    if compared.diverged:
        raise typer.Exit(DIVERGED)


def _save_charts(compared: Compared, directory: Path, quiet: bool) -> None:
    """Save the charts of the page as files, and print their paths."""
    from coterie.report.drawing.saving import save_figures
    from coterie.report.figures import draw

    for path in save_figures(draw(compared).values(), directory):
        if not quiet:
            print_escaped(path)


def _read_tables(what: Sequence[str], folder: str | None, imports: list[str]) -> tuple[dict[str, Any], Path]:
    """Return the tables of what is to be compared, and the folder in which the comparison's folder is made.

    Modules of `imports` are imported, and added to those that the tables name.
    """
    from coterie.runs.schema.names import catalog
    from coterie.studies.compare.folder import ComparisonFolder
    from coterie.studies.compare.spec import Comparison, split_label

    import_modules(imports)
    path, parent = Path(what[0]), Path(FOLDER if folder is None else folder)
    # A folder that only happens to have a method's name is no comparison to go on with.
    is_folder = ComparisonFolder(path).is_comparison or what[0] not in catalog("method")
    if len(what) == 1 and path.is_dir() and is_folder:
        if folder is not None:
            raise BadInput(f"--folder {folder!r} is not possible with a comparison that is in {str(path.parent)!r}")
        path = path if path.name not in ("", "..") else path.resolve()
        # The folder may have been renamed since; its name counts.
        tables = {**ComparisonFolder(path).comparison().tables(), "name": path.name}
        return _with_imports(tables, imports), path.parent
    if len(what) == 1 and path.suffix == ".toml":
        return _with_imports(Comparison.from_toml(path).tables(), imports), parent
    for method in what:
        give_typed({"method": split_label(method)[1]})
    return _with_imports({"methods": list(what)}, imports), parent


def _with_imports(tables: dict[str, Any], imports: list[str]) -> dict[str, Any]:
    """Return the tables of a comparison with more modules to import."""
    if not imports:
        return tables
    experiment = dict(tables.get("experiment", {}))
    run = experiment.get("run", {})
    experiment["run"] = {**run, "imports": join_lists(run, "imports", imports)}
    return {**tables, "experiment": experiment}


def _make_comparison(tables: Mapping[str, Any], changes: Mapping[str, Any], texts: Sequence[str]) -> Comparison:
    """Return the comparison in the tables, changed by dotted keys and then by texts like `clusters=3`.

    Raises:
        BadInput: everything that is wrong, one sentence each.
    """
    from coterie.runs.schema import toml
    from coterie.runs.schema.names import CHOICES
    from coterie.studies.compare.spec import Comparison

    problems: list[str] = []
    # What a target may be depends on the task, which is known when all is put together.
    aims = {key: tables[key] for key in ("measure", "target") if key in tables}
    comparison = Comparison.from_tables({k: v for k, v in tables.items() if k not in aims}, given=False)
    common = dict(changes)
    methods = {variant.name: dict(variant.tables) for variant in comparison.methods}
    # Dotted names count first, as in a run: they decide what a bare key can mean.
    named = {f"{title}.name": comparison.experiment.get(title, {}).get("name", "auto") for title in CHOICES}
    named |= changes
    named |= {
        key.strip(): toml.value_of(value.strip()) for key, _, value in (text.partition("=") for text in texts)
    }
    network, task = str(named["network.name"]), str(named["task.name"])
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key or not equals:
            problems.append(f"--set {text!r} is not possible; write --set KEY=VALUE")
            continue
        try:
            section, name, owners = _find_owners(key, comparison, network, task, toml.value_of(value))
        except BadInput as error:
            problems += error.problems
            continue
        if not owners:
            common[f"{section}.{name}"] = toml.value_of(value)
        for label in owners:
            own = methods[label].get(section, {})
            methods[label][section] = {**own, name: own.get(name, toml.value_of(value))}
    for setting in comparison.settings:
        for section, table in setting.tables.items():
            problems += [
                f"{section}.{key} cannot be set for all: the setting {setting.name} sets it itself"
                for key in table
                if f"{section}.{key}" in common
            ]
    if problems:
        raise BadInput(list(dict.fromkeys(problems)))
    changed = {**comparison.tables(), **aims, "methods": methods}
    if "name" not in tables:
        del changed["name"]  # made again: data that an option has changed are part of it
    return Comparison.from_tables({**changed, "experiment": {**changed["experiment"], **common}}, given=False)


def _find_owners(
    key: str, comparison: Comparison, network: str, task: str, value: Any
) -> tuple[str, str, list[str]]:
    """Return what a key of --set means: its section, its name, and the labels of the methods that have it.

    There are no labels if it is a key of another section, which all methods share.

    Raises:
        BadInput: no section and no method has it, or several sections have.
    """
    from coterie.runs.schema.names import known_settings, qualify

    section, _, name = key.rpartition(".")
    if section not in ("", "method"):
        return section, name, []
    default = comparison.experiment.get("method", {})
    names = {v.name: str({**default, **v.tables.get("method", {})}["name"]) for v in comparison.methods}
    has = {
        label: {
            title
            for title, known in known_settings(method, network, task).items()
            if name in (s.name for s in known)
        }
        for label, method in names.items()
    }
    owners = [label for label, titles in has.items() if "method" in titles]
    if section and name == "name":
        raise BadInput("method.name cannot be set for all; name the methods that are to be compared")
    if section and not owners:
        raise BadInput(f"method.{name} is not a setting of any method here; see: coterie list methods NAME")
    if section:
        return section, name, owners
    asked = next((label for label, titles in has.items() if titles), "")
    if not asked:  # the method with the nearest name says it
        own = {s.name: label for label, of in names.items() for s in known_settings(of, network, task)["method"]}
        asked = own.get(nearest(name, own) or "", next(iter(has)))
    for label in dict.fromkeys([asked, *owners]):
        section, _, name = qualify(name, names[label], network, task, value).partition(".")
    return section, name, owners


def _print_results(compared: Compared, observer: Watcher, quiet: bool) -> None:
    """Print which cells failed, the table, its finding, the notes, what did not come about and where files are."""
    from coterie.cli.live_cells import CellLines
    from coterie.cli.printing import make_console, say
    from coterie.report.comparison.findings import conclude
    from coterie.report.comparison.table import to_rich
    from coterie.report.comparison.tuning import describe_picks
    from coterie.report.comparison.view import views

    path = compared.folder.path
    for cell, sentence in compared.failures():
        print_escaped(f"coterie: {cell.label} failed: {sentence}", file=sys.stderr)
    for label in compared.diverged:
        print_escaped(f"coterie: {label} diverged for every client", file=sys.stderr)
    if quiet or compared.summary is None or compared.frames is None:
        print_escaped(path)
        return
    console = make_console()
    console.print(to_rich(compared.summary, console.width, compared.frames.metrics))
    if found := conclude(views(compared.comparison, compared.frames, compared.summary)):
        say(f"found   {found}")
    if (tuning := compared.folder.tuning()) is not None:
        measure = compared.frames.metrics.measures[compared.comparison.measure]
        for sentence in describe_picks(tuning, measure):
            say(f"tuned   {sentence}")
    for note in compared.notes:
        say(f"note: {note}")
    assert isinstance(observer, CellLines)  # whoever is not quiet
    observer.tell_notes(compared.notes)
    for sentence in compared.unmet():
        if not observer.has_told(sentence):
            say(f"note: {sentence}")
    say(f"folder  {path}")
    say(f"tables  {path / 'table.md'}, {path / 'table.tex'}, {path / 'summary.parquet'}")
    say(f"page    {path / 'report.html'}")
