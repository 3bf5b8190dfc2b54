"""Experiment files: sections and keys that there are, with values that are possible, odd or none at all."""

from __future__ import annotations

from random import Random
from typing import Any

from coterie.catalogue import Setting, plain
from coterie.runs.schema.names import catalog, known_settings
from coterie.runs.schema.toml import literal
from tests.fuzz.case import Case
from tests.fuzz.values import CONTROLS, MODEST, damage, draw_literal, draw_text

CHECKED = ("run", "experiment.toml", "--against", "nobody")
"""The experiment is checked, and then refused for the run that it is to be compared with: nothing trains."""

SMALL = ("--workers", "1", "--rounds", "1", "--clients", "3", "--set", "training.epochs=1")
USUAL = {
    "data": {"name": '"digits"', "clients": "3", "samples_per_client": "20"},
    "training": {"epochs": "1"},
    "run": {"rounds": "1", "workers": "1"},
}
"""What every experiment begins with, so that one that is sound does not train for long."""

Tables = dict[str, dict[str, str]]
"""Literals by section and key."""


def make_experiment(random: Random) -> Case:
    """Return a case with an experiment file, of which most only have to be checked."""
    used = random.random()
    modest = used < 0.12
    tables = draw_tables(random, modest)
    text = write_oddly(tables, random)
    if random.random() < 0.2:
        text = damage(text, random)
    content = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.03:
        content = content.replace(b"=", random.choice((b"\xff", b"\x00", b"\r=")), 1)
    if modest:
        words: tuple[str, ...] = (random.choice(("run", "explain")), "experiment.toml", *SMALL)
        words += ("--quiet",) if words[0] == "run" else ()
    elif used < 0.18:
        words = ("flower", "new", "app", "--experiment", "experiment.toml")
    else:
        words = CHECKED
    return Case((words,), {"experiment.toml": content})


def draw_tables(random: Random, modest: bool) -> Tables:
    """Return an experiment in which some keys are set, and some of these oddly."""
    tables = {title: dict(table) for title, table in USUAL.items()}
    method = random.choice(catalog("method").names())
    network = "auto" if modest else random.choice(("auto", "auto", *catalog("network").names()))
    tables["method"] = {"name": literal(method)}
    if network != "auto":
        tables["network"] = {"name": literal(network)}
    known = known_settings(method, network)
    for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3, 6))):
        title = random.choice(("data", "method", "method", "method") if modest else list(known))
        if not known[title]:
            continue
        setting = random.choice(known[title])
        if not modest or setting.name not in ("name", "clients"):
            tables.setdefault(title, {})[setting.name] = draw_setting(setting, random, modest)
    for _ in range(0 if modest else random.choice((0, 0, 0, 1, 1, 2))):
        _spoil(tables, random)
    return tables


def draw_setting(setting: Setting, random: Random, modest: bool) -> str:
    """Return a value for a setting: a possible one, one of another's, or an odd one."""
    possible: list[Any] = [*setting.choices, *setting.grid]
    if setting.default is not None:
        possible.append(setting.default)
    kind = random.random()
    if possible and kind < 0.5:
        return literal(plain(random.choice(possible)))
    return random.choice(MODEST) if modest or kind < 0.6 else draw_literal(random)


def _spoil(tables: Tables, random: Random) -> None:
    """Do to the tables as a whole what no draw of a value does."""
    title = random.choice([*tables, "scale", "task", "evaluation"])
    what = random.randrange(5)
    if what == 0:
        tables[draw_text(random)] = {"a": draw_literal(random)}
    elif what == 1:
        tables.setdefault(title, {})[draw_text(random)] = draw_literal(random)
    elif what == 2:
        tables[title] = {}
    elif what == 3 and tables.get(title):
        key = random.choice(list(tables[title]))
        tables[title][key] = f"[{tables[title][key]}]"
    else:
        tables.setdefault(title, {})["name"] = draw_literal(random)


def write(tables: Tables) -> str:
    """Write the tables as TOML."""
    lines = [
        line
        for title, table in tables.items()
        for line in (f"[{key(title)}]", *(f"{key(name)} = {value}" for name, value in table.items()))
    ]
    return "\n".join(lines) + "\n"


def write_oddly(tables: Tables, random: Random) -> str:
    """Write the tables as TOML; some as one value, or key by key in front, and what no parser likes behind them."""
    first = []
    rest = dict(tables)
    for title in tables:
        how = random.random()
        if how < 0.03:
            first.append(f"{key(title)} = {draw_literal(random)}")
        elif how < 0.06:
            first += [f"{key(title)}.{key(name)} = {value}" for name, value in tables[title].items()]
        if how < 0.06:
            del rest[title]
    last = []
    if random.random() < 0.02:
        last.append(".".join(["a"] * random.choice((50, 99, 100, 5000))) + " = 1")
    if random.random() < 0.02:
        last.append("# " + random.choice(CONTROLS))
    return "\n".join([*first, write(rest), *last])


def key(text: str) -> str:
    """Return a text as a key of TOML."""
    bare = text.isascii() and bool(text) and text.replace("_", "").isalnum()
    return text if bare else literal(text)
