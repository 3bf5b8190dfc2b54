"""What names and keys in an experiment mean: which module, which entry of which catalogue, whose setting.

Catalogues are imported when asked for: they bring torch, which an experiment alone does not need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.catalogue import Catalog, Section, Setting
from coterie.errors import SYNONYMS, BadInput, nearest
from coterie.plugins import find_refusal, import_modules, is_path
from coterie.runs.schema.registry import SECTIONS, as_table, section_settings
from coterie.runs.schema.sections import (
    REMOTE,
    Adapt,
    Choice,
    Data,
    MethodChoice,
    TaskChoice,
)

if TYPE_CHECKING:
    from coterie.clients.data.read.columns import Named
    from coterie.clients.tasks import Task
    from coterie.methods import Method

CHOICES = ("method", "network", "task")
"""The sections whose further keys belong to an entry of a catalogue."""

AUTO = "auto"
"""The network or the split that fits the data."""

NAMING = {
    "method.name": "method",
    "network.name": "network",
    "task.name": "task",
    "task.metrics": "metric",
    "data.name": "dataset",
    "data.augment": "augmentation",
    "run.observers": "observer",
    "run.imports": "module",
}
"""What an experiment names under which key, of what may have to be imported."""

_CATALOGUES = {
    "method": "coterie.methods:METHODS",
    "network": "coterie.models.networks:NETWORKS",
    "task": "coterie.clients.tasks:TASKS",
    "metric": "coterie.clients.tasks:MEASURES",
    "dataset": "coterie.clients.data:DATASETS",
    "split": "coterie.clients.data:SPLITS",
    "augmentation": "coterie.clients.data.divide.augmentation:AUGMENTATIONS",
    "observer": "coterie.runs.events:OBSERVERS",
}

LOOKUP = ("method", "network", "task", "training", "data", "evaluation", "run", "scale", "aggregation", "privacy")
"""Where a bare key is looked for."""


def find_names(sections: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what sections, in any of their forms, or dotted keys name: the key, a key of `NAMING`, and each name.

    What is no text, as a network that was given in Python, names nothing.
    """
    for whole, value in sections.items():
        title, _, key = str(whole).partition(".")
        table = {key: value} if key else {"name": value}
        if not key and isinstance(value, Mapping | Section):
            table = dict(value)
        for name, given in table.items():
            kind = NAMING.get(f"{title}.{name}", "")
            for text in given if isinstance(given, list | tuple) else [given]:
                if kind and isinstance(text, str):
                    yield f"{title}.{name}", kind, text.partition("(")[0].strip()


def find_paths(sections: Mapping[str, Any]) -> dict[str, str]:
    """Return the modules and `package.module:object` that sections or dotted keys name, by where they stand."""
    return {
        f"{key} = {name!r}": name
        for key, kind, name in find_names(sections)
        if kind == "module" or (is_path(name) and kind != "metric" and not name.startswith("hub:"))
    }


def find_failed_imports(sections: Mapping[str, Any]) -> list[str]:
    """Import the modules of `run.imports`, in whatever form the section is given; return why any cannot be.

    Where nobody gave one of them, none is imported: `check` says so.
    """
    names = (as_table("run", sections.get("run")) or {}).get("imports")
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return []  # said when the section is built
    if find_refusal(dict(zip(names, names, strict=True))):
        return []
    try:
        import_modules(names)
    except BadInput as problem:
        return [f"run.imports: {sentence}" for sentence in problem.problems]
    return []


def catalog(kind: str) -> Catalog:
    """Return the catalogue of a kind of `NAMING`, or of splits, with its entries loaded; plurals are understood."""
    module, _, name = _CATALOGUES[kind.removesuffix("s")].partition(":")
    found: Catalog = getattr(import_module(module), name)
    return found


def unknown_names(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with the names in sections of which other keys are wrong too, so that none is built."""
    found: list[str] = []
    for title in (title for title in CHOICES if title in tables):
        name = tables[title].get("name")
        is_auto = name == AUTO and title != "method"
        if isinstance(name, str) and not is_auto and name not in catalog(title):
            found.append(catalog(title).sentence(name))
    from coterie.clients.data import check_split
    from coterie.clients.data.read.datasets import find_problems

    table = tables.get("data", {})
    name, split = table.get("name"), table.get("split")
    found += find_problems(name, _named_in(table)) if isinstance(name, str) and name != REMOTE else []
    return found + (check_split(split) if isinstance(split, str) and split not in (AUTO, REMOTE) else [])


def find_missing_values(data: Mapping[str, Any]) -> list[str]:
    """Return a sentence if a section's data lack values and it does not say what to do with them."""
    from coterie.clients.data.read import datasets

    name = data.get("name")
    if not isinstance(name, str) or "missing" in data:
        return []
    return datasets.find_missing_values(name, _named_in(data))


def _named_in(data: Mapping[str, Any]) -> Named:
    """Return what a table of a section calls the label and the client; it may hold anything."""
    from coterie.clients.data.read.columns import Named

    return Named(*(word if isinstance(word := data.get(key), str) else None for key in ("label", "client")))


def build_method(choice: MethodChoice) -> Method[Any]:
    """Build the method with its settings.

    Raises:
        BadInput: there is no such method, or it refuses its settings.
    """
    method: Method[Any] = catalog("method")[choice.name].target(**bind(choice))
    return method


def build_task(choice: TaskChoice, has_classes: bool = False) -> Task | None:
    """Build the task with its settings and metrics; see `make_task`.

    Raises:
        BadInput: there is no such task, it refuses its settings, or it cannot be measured by such a metric.
    """
    return make_task(choice, bind(choice), has_classes)


def make_task(choice: TaskChoice, settings: Mapping[str, Any], has_classes: bool = False) -> Task | None:
    """Build the task with these settings, and the metrics of its section.

    Where none is named, it is a classification if the data are known to have classes; else None, for the data say
    what they are for.

    Raises:
        BadInput: it refuses its settings, or it cannot be measured by such a metric.
    """
    if choice.name == AUTO and not has_classes:
        return None
    if choice.name == AUTO:
        from coterie.clients.tasks import CLASSIFICATION

        return set_metrics(CLASSIFICATION, choice)
    task: Task = catalog("task")[choice.name].target(**settings)
    if not hasattr(task, "name"):
        type(task).name = choice.name  # somebody's own class, which nothing has registered
    return set_metrics(task, choice)


def set_metrics(task: Task, choice: TaskChoice) -> Task:
    """Return the task, measured as its section says.

    Raises:
        BadInput: it cannot be measured by such a metric.
    """
    if choice.metrics is None:
        return task
    from coterie.clients.tasks.measures import find_wrong_metrics

    wrong = find_wrong_metrics(task, choice.metrics)
    if wrong:
        raise BadInput(wrong)
    return task.with_metrics(choice.metrics)


def resolve_split(data: Data) -> str:
    """Return the split; for `auto`, the one that fits the data."""
    from coterie.clients.data.read.datasets import default_split

    if data.split != AUTO:
        return data.split
    return REMOTE if data.is_remote else default_split(data.name, named_columns(data))


def named_columns(data: Data) -> Named:
    """Return what the data's label and client are called, where the experiment says it."""
    from coterie.clients.data.read.columns import Named

    return Named(data.label, data.client)


def absolute_data(name: str) -> str:
    """Return the name of the data, a path made absolute: a run on it can then be resumed from anywhere.

    Raises:
        OSError: no file can have that name.
    """
    from coterie.clients.data.read.datasets import DATASETS

    path = Path(name)
    return name if name == REMOTE or name in DATASETS or not path.exists() else str(path.resolve())


def known_settings(method: str, network: str, task: str = AUTO) -> dict[str, list[Setting]]:
    """Return the settings of each section, with those of the method, the network and the task, where they exist."""
    known = {title: list(section_settings(title)) for title in SECTIONS}
    for title, name in (("method", method), ("network", network), ("task", task)):
        own = _own_settings(title, name)
        # An entry's own settings stand before keys of the section that are called the same.
        names = {setting.name for setting in own}
        known[title] = [setting for setting in known[title] if setting.name not in names] + own
    return known


def _own_settings(title: str, name: str) -> list[Setting]:
    """Return the settings of a method, network or task; none where there is no such."""
    if name == AUTO and title != "method":
        return []
    try:
        return catalog(title)[name].settings
    except BadInput:
        return []


def qualify(key: str, method: str, network: str, task: str = AUTO, value: Any = None) -> str:
    """Return the dotted key that a bare one means: `mu` is `method.mu` where the method has such a setting.

    The value, where it is known, goes into what is said of a key that is a section.

    Raises:
        BadInput: no section has that key, or several have; the sentence names them.
    """
    if "." in key:
        return key
    known = {title: [s.name for s in settings] for title, settings in known_settings(method, network, task).items()}
    # A bare key never means a table in a section, or what every network has: methods have settings of these names.
    known["network"] = ["name", *(setting.name for setting in _own_settings("network", network))]
    owners = [f"{t}.{key}" for t in LOOKUP if key in known[t] and f"{t}.{key}" != Adapt.title]
    # delta is that of the method or the task where these have one, and the optimizer is that of training.
    for last in ("privacy.", "aggregation."):
        owners = [owner for owner in owners if len(owners) == 1 or not owner.startswith(last)]
    if not owners and method not in catalog("method"):
        return f"method.{key}"  # the unknown method is the problem to report, not what its settings may be
    if len(owners) == 1:
        return owners[0]
    if owners:
        raise BadInput(f"{key} could be {', '.join(owners[:-1])} or {owners[-1]}; write one of them in full")
    if key in SECTIONS:
        named = f"{key}.name={value}, or " if isinstance(value, str) and key in (*CHOICES, "data") else ""
        raise BadInput(f"{key} is a section; write {named}{key}.KEY with one of {', '.join(known[key])}")
    for title, name in (("task", task), ("network", network)):
        if name == AUTO and (there := _having(title, [key])):
            owned = f"{key} is a setting of {title}s ({', '.join(there)}), not of {title}.name = 'auto'"
            raise BadInput(f"{owned}; name one of them: --set {title}.name={there[0]}")
    close = nearest(key, [name for title in LOOKUP for name in known[title]])
    if close:
        homes = [f"{title}.{close}" for title in LOOKUP if close in known[title]]
        is_plain = len(homes) == 1 and key not in SYNONYMS
        hint = f"did you mean {close if is_plain else ' or '.join(homes)}?"
    else:
        hint = f"{method} has {', '.join(known['method'])}; coterie new FILE.toml writes all keys"
    raise BadInput(f"{key} is not a setting of {method} or of any section; {hint}")


def _having(title: str, keys: Iterable[str]) -> list[str]:
    """Return the names of the tasks or networks that have all these settings, the general ones first."""
    wanted = set(keys)
    return [entry.name for entry in catalog(title) if wanted <= {setting.name for setting in entry.settings}]


def bind(choice: Choice) -> dict[str, Any]:
    """Return all settings of the method, network or task that a section names, checked, with their defaults.

    Raises:
        BadInput: there is no such method, network or task, or one sentence for each setting that is not possible.
    """
    if choice.name == AUTO and choice.title != "method":
        if choice.settings:
            keys = ", ".join(f"{choice.title}.{k}" for k in choice.settings)
            owners = _having(choice.title, choice.settings)
            named = f", as in {choice.title}.name = {owners[0]!r}" if owners else ""
            there = f"{choice.title}.name = 'auto' takes no settings, and {keys} is set"
            raise BadInput(f"{there}; name the {choice.title}{named}")
        return {}
    return catalog(choice.title)[choice.name].bind(choice.settings, choice.title)
