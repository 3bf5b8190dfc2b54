"""Command lines: the words of every command, read off the command line's own parser, and others between them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from random import Random

import click
import typer

from coterie.cli.app import app
from tests.fuzz.case import Case
from tests.fuzz.texts import BLOCKED
from tests.fuzz.values import draw_literal, draw_text

ENDS: dict[str, tuple[str, ...]] = {
    "run": ("--against", "nobody"),
    "explain": ("--clients", "0"),
    "diagnose": ("--alpha", "0"),
    "compare": BLOCKED,
    "watch": ("--port", "0"),
    "reproduce": ("--jobs", "0"),
    "demo": ("--seed", "-1"),
    "flower demo": ("--seed", "-1"),
}
"""What commands that train or serve are given at the end, twice, so that they are refused before they begin."""

ARGUMENTS = {
    "METHOD|FILE.toml": ("fedavg", "fesem", "ifca", "cfl", "experiment.toml", "nothing.toml"),
    "FILE.toml|RUN|DATA": ("experiment.toml", "first", "digits", "data.csv", "nothing.toml"),
    "METHOD...|FILE.toml|FOLDER": ("fedavg", "fesem(clusters=2)", "experiment.toml", "runs", "runs/first"),
    "RUN": ("first", "fir", "runs/first", "runs", "second"),
    "RUN...": ("first", "runs/first", "runs"),
    "RUN|FOLDER": ("first", "runs"),
    "RUN|STATE-DIR|MODEL.safetensors": ("first", "runs/first", "model.safetensors", "runs"),
    "KIND": ("methods", "tasks", "metrics", "datasets", "splits", "networks", "observers", "parts", "models"),
    "ITEM...|all": ("all", "fesem-table-2", "nothing"),
    "NAME|PATH": ("digits", "data.csv", "runs", "own", "nothing"),
    "FILE|DIR|NAME": ("digits", "data.csv", "runs", "nothing.npz"),
    "SPEC": ("iid", "dirichlet(0.5)", "rotated(4)", "by-user", "auto"),
    "KEY=VALUE": ("clusters=2", "training.lr=0.1", "run.rounds=1", "data.split=iid", "network.name=cnn", "x"),
    "MODULE": ("math", "nothing", "coterie.cli", "1"),
    "DIR": ("made", "runs", "blocked/made", "."),
    "FILE": ("out.npz", "out.csv", "out.parquet", "model.safetensors", "model.pt", "blocked/x.npz", "out"),
    "FILE.json": ("out.json", "blocked/x.json"),
    "FILE.toml": ("experiment.toml", "new.toml", "new"),
    "FILE.md": ("page.md", "page"),
    "EXPERIMENT.toml": ("experiment.toml", "nothing.toml"),
}
"""Values that are possible, by what the help calls them; others are names and small numbers."""

EXPERIMENT = (
    b"[data]\nclients = 3\nsamples_per_client = 20\n[method]\nname = 'fedavg'\n[run]\nrounds = 1\nworkers = 1\n"
)
TABLE = b"a,b,label\n" + b"".join(b"%d,%d,%d\n" % (i, i * 7 % 5, i % 2) for i in range(40))


def make_command(random: Random) -> Case:
    """Return a case with a command line in a folder with an experiment, a table and a run."""
    name = random.choice(list(_commands()))
    command = _commands()[name]
    words: list[str] = []
    for parameter in command.params:
        if isinstance(parameter, click.Option) and random.random() < (0.9 if parameter.required else 0.25):
            words += _write_option(parameter, random)
    for parameter in command.params:
        if isinstance(parameter, click.Argument) and random.random() < 0.93:
            words += [
                _draw_value(parameter, random)
                for _ in range(random.choice((1, 1, 2)) if parameter.nargs < 0 else 1)
            ]
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        words.insert(random.randrange(len(words) + 1), random.choice((draw_text(random), "--nothing", "-x", "--")))
    path = name.split()
    if random.random() < 0.02:
        path[-1] += random.choice(("s", "", "x"))
    end = ENDS.get(name, ())
    files = {"experiment.toml": EXPERIMENT, "data.csv": TABLE, "blocked": b""}
    return Case(((*path, *words, *end, *end),), files, with_run=True)


@cache
def _commands() -> dict[str, click.Command]:
    """Return every command by its words."""
    return dict(_walk(typer.main.get_command(app), ""))


def _walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for word, inner in command.commands.items():
            yield from _walk(inner, f"{name} {word}".strip())
    else:
        yield name, command


def _write_option(option: click.Option, random: Random) -> list[str]:
    word = random.choice(option.opts)
    if option.is_flag:
        return [word]
    value = _draw_value(option, random)
    how = random.random()
    return [f"{word}={value}"] if how < 0.2 else [word] if how < 0.22 else [word, value]


def _draw_value(parameter: click.Parameter, random: Random) -> str:
    possible = ARGUMENTS.get(parameter.metavar or "", ("1", "2", "0", "first", "fedavg", "0.5", "1,2", "client 0"))
    kind = random.random()
    if kind < 0.7:
        return random.choice(possible)
    if parameter.metavar == "KEY=VALUE":
        return f"{random.choice(possible).partition('=')[0]}={draw_literal(random)}"
    return draw_text(random) if kind < 0.9 else draw_literal(random)
