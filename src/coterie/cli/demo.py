"""`coterie demo`: four hidden groups among 20 clients, and what it costs not to look for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import RunsFolder
from coterie.errors import print_escaped

if TYPE_CHECKING:
    from coterie.runs.events import Result
    from coterie.runs.schema.experiment import Experiment

SETTINGS: Mapping[str, Any] = {
    "data": {"name": "digits", "split": "rotated(4)", "clients": 20, "test": 0.3},
    "network": {"name": "mlp", "hidden": [32]},
    "training": {"epochs": 5, "batch_size": 10, "lr": 0.1},
    "run": {"rounds": 15},
}
"""What the three runs have in common: each group sees the digits rotated by its own multiple of 90 degrees."""

METHODS: Mapping[str, Mapping[str, Any]] = {"fedavg": {}, "ifca": {"clusters": 4}, "fesem": {"clusters": 4}}
"""The methods side by side with their own settings. The page is that of the last."""

INTRODUCTION = """
20 clients hold scikit-learn's digits. Each belongs to one of four groups, and
each group sees the digits rotated by its own multiple of 90 degrees. Nobody
tells the methods who belongs to which group.
"""


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(demo)


def demo(
    folder: RunsFolder = "runs",
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of all random numbers.")] = 0,
) -> None:
    """Find four hidden groups among 20 clients: FedAvg, IFCA and FeSEM side by side, offline."""
    from coterie.cli.live import exit_on_interrupt

    with exit_on_interrupt("interrupted between two runs; begin again with: coterie demo"):
        _run_all(_experiments(folder, seed))


def _experiments(folder: str, seed: int) -> list[Experiment]:
    """Return one experiment per method, alike in everything else, with runs in `folder`."""
    from coterie.runs.schema.experiment import Experiment

    return [
        Experiment(
            **{
                **SETTINGS,
                "method": {"name": name, **settings},
                "run": {**SETTINGS["run"], "seed": seed, "folder": folder, "name": f"demo-{name}"},
            }
        )
        for name, settings in METHODS.items()
    ]


def _run_all(experiments: list[Experiment]) -> None:
    """Run the experiments one after the other, and print what they found side by side.

    Raises:
        BadInput: runs cannot be made in the folder.
        typer.Exit: a run was interrupted; no further one is begun.
    """
    from coterie.cli.live import watch_run
    from coterie.cli.printing import describe_rename, make_console, say
    from coterie.cli.run import exit_interrupted
    from coterie.report import run_page, run_tables
    from coterie.runs import loop
    from coterie.runs.folder.run_folder import RunFolder

    for experiment in experiments:
        experiment.check()
    print(INTRODUCTION.lstrip())
    folders: list[RunFolder] = []
    results: dict[str, Result] = {}
    for experiment in experiments:
        with watch_run(described=not folders) as observers:
            result = loop.run(experiment, observers=observers)
        if note := describe_rename(result):
            print_escaped(note)
        print()
        if result.status == "interrupted":
            exit_interrupted(result.folder, result.rounds.height)
        folders.append(RunFolder(result.folder))
        results[experiment.method.name] = result
    *others, shown = folders
    console = make_console()
    console.print(run_tables.render(folders, console.width))
    for line in _compare_by_group(results["fedavg"], results["fesem"]):
        say(line)
    print_escaped(f"\npage  {run_page.build(shown, others)}")
    print("next  coterie list methods")
    print("      coterie run fesem --split 'permuted-labels(2)' --set clusters=2 --set epochs=5")
    print("      coterie new experiment.toml")


def _compare_by_group(one: Result, other: Result) -> list[str]:
    """Return a line for each group that `other` found, with its clients' mean accuracy at the end of both runs."""
    import polars as pl

    from coterie.errors import count_of

    last = [run.clients.filter(pl.col("round") == run.clients["round"].max()) for run in (one, other)]
    beside = last[1].join(last[0], on="client", suffix="_one")
    means = beside.group_by("group").agg(pl.len(), pl.mean("accuracy"), pl.mean("accuracy_one")).sort("group")
    names = one.experiment.method.name, other.experiment.method.name
    return [
        f"group {group} ({count_of(size, 'client')}): {names[0]} {before:.1%}, {names[1]} {after:.1%}"
        for group, size, after, before in means.iter_rows()
    ]
