"""Splits and methods as they are written on one line: `dirichlet(0.5) + rotated(4)` and `fesem(clusters=4)`."""

from __future__ import annotations

from random import Random

from coterie.catalogue import Entry
from coterie.clients.data.divide.partition import SPLITS
from coterie.clients.data.divide.skew import SKEWS
from coterie.runs.schema.names import catalog
from coterie.runs.schema.toml import literal
from tests.fuzz.case import Case
from tests.fuzz.experiments import CHECKED, USUAL, Tables, draw_setting, key, write
from tests.fuzz.values import MODEST, damage, draw_literal, draw_text

BLOCKED = ("--charts", "blocked/charts")
"""A comparison is checked, and then refused for the folder of its charts, of which the parent is a file."""


def make_split(random: Random) -> Case:
    """Return a case with a split, by which the digits are divided or which is only checked."""
    divided = random.random() < 0.4
    text = _draw_split(random, modest=divided)
    if random.random() < 0.25:
        text = damage(text, random)
    if not divided and random.random() < 0.5:
        return Case((("run", "fedavg", "--split", text, "--against", "nobody", "--against", "nobody"),))
    tables: Tables = {**USUAL, "data": {**USUAL["data"], "split": literal(text)}}
    if divided:
        del tables["data"][random.choice(("clients", "samples_per_client"))]
    content = write(tables)
    words = ("flower", "data", "experiment.toml") if divided else CHECKED
    return Case((words,), {"experiment.toml": content.encode("utf-8", "surrogatepass")})


def _draw_split(random: Random, modest: bool) -> str:
    entries = {entry.name: entry for entry in SPLITS}
    partitions = [name for name in entries if name not in SKEWS]
    pieces = []
    if random.random() < 0.8:
        pieces.append(random.choice(partitions))
    pieces += random.sample(sorted(SKEWS), random.choice((0, 0, 1, 1, 2)))
    if random.random() < 0.05:
        pieces.append(random.choice((*entries, "flwr:IidPartitioner", "flwr:DirichletPartitioner", "nothing")))
    return random.choice((" + ", "+", " +  ")).join(
        _write_call(entries.get(name), name, random, modest) for name in pieces
    )


def make_method(random: Random) -> Case:
    """Return a case with methods and their settings, as a comparison or a run takes them."""
    specs = [_draw_method(random) for _ in range(random.choice((1, 2, 2, 3)))]
    if random.random() < 0.3:
        settings = [word for spec in specs for word in ("--set", f"{_draw_key(random)}={_draw_value(random)}")]
        name = specs[0].partition("(")[0]
        return Case((("run", name, *settings, "--against", "nobody", "--against", "nobody"),))
    return Case((("compare", *specs, *BLOCKED, *BLOCKED),), {"blocked": b""})


def _draw_method(random: Random) -> str:
    entry = random.choice(list(catalog("method")))
    text = _write_call(entry, entry.name, random, modest=False)
    return damage(text, random) if random.random() < 0.25 else text


def _draw_key(random: Random) -> str:
    names = [setting.name for setting in random.choice(list(catalog("method"))).settings]
    sections = ("run.rounds", "training.lr", "data.split", "network.name", "evaluation.adapt", "method.name", "run")
    return draw_text(random) if random.random() < 0.1 else random.choice([*names, *sections])


def _draw_value(random: Random) -> str:
    return draw_text(random) if random.random() < 0.3 else draw_literal(random)


def _write_call(entry: Entry | None, name: str, random: Random, modest: bool) -> str:
    """Write a name with some of its settings behind it, by name or place."""
    settings = [] if entry is None else entry.settings
    if not settings and random.random() < 0.9:
        return name
    given = []
    for setting in random.sample(settings, min(len(settings), random.choice((0, 1, 1, 2, 3)))):
        value = draw_setting(setting, random, modest)
        if value[:1] == '"' and random.random() < 0.5:
            value = value[1:-1]  # words need no quotes
        given.append(value if random.random() < 0.3 else f"{setting.name}={value}")
    if random.random() < 0.1:
        value = random.choice(MODEST) if modest else draw_literal(random)
        given.append(random.choice((value, f"{key(draw_text(random))}={value}", "**{}", "*[1]", "a:=1", "(yield)")))
    return f"{name}({', '.join(given)})" if given or random.random() < 0.5 else name
