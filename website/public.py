"""What is public: the names that the API reference has a page of, each with where it is imported from.

A name is listed here where its home has no list of its own. What is not on these pages may change without notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import isclass, isfunction
from pkgutil import iter_modules


@dataclass(frozen=True)
class Section:
    """One page of the reference."""

    file: str
    title: str
    about: str
    """What is found here, in a sentence or two of Markdown."""
    names: Sequence[str]
    """As they are imported, `package.module.name`."""


def list_sections() -> list[Section]:
    """Return all pages of the reference, in the order of the navigation."""
    return [
        Section(
            "coterie",
            "coterie",
            "What `import coterie` gives: run, compare, auto, explain, diagnose, draw.",
            [*_listed("coterie"), *_of("coterie.report.drawing.figure", ["Figure"])],
        ),
        Section(
            "experiments",
            "Experiments",
            "The tables of an experiment and their settings, as in `experiment.toml`; "
            "`coterie new experiment.toml` writes all of them with their defaults.",
            [
                *_of("coterie.runs.schema.sections", _classes("coterie.runs.schema.sections")),
                "coterie.clients.rules.Training",
                *_of("coterie.methods.aggregation", ["Aggregation"]),
                *_of("coterie.methods.scale", ["Scale"]),
                *_of("coterie.methods.privacy", ["Privacy"]),
            ],
        ),
        Section(
            "methods",
            "Methods",
            "Every method with its settings. A method's own page says how it works and what its paper leaves open.",
            _methods(),
        ),
        Section(
            "method",
            "A method of your own",
            "What a method derives from, what it asks of clients, and what it hears.",
            [
                *_of(
                    "coterie.methods",
                    ["Method", "Cohort", "ServerView", "Assignment", "Affinity", "Needs", "METHODS"],
                ),
                *_of("coterie.methods.exchange", [*_classes("coterie.methods.exchange"), "Exchanges", "Ids"]),
                *_of("coterie.methods.one_model", ["OneModel", "GlobalState"]),
                *_of("coterie.catalogue", ["Catalog", "Entry", "Setting", "Grid", "Changes", "state"]),
                *_of("coterie.randomness", ["stream", "address"]),
            ],
        ),
        Section(
            "rules",
            "Rules and objectives",
            "What one client does, what it asks of an engine, and the losses that it minimises.",
            [*_listed("coterie.clients.rules"), "coterie.clients.rules.objective.Extras"],
        ),
        Section("tasks", "Tasks and metrics", "What is learnt, and how well.", _listed("coterie.clients.tasks")),
        Section(
            "data",
            "Data",
            "Datasets, splits, and the federation that they make.",
            [*_listed("coterie.clients.data"), "coterie.clients.data.read.datasets.dataset"],
        ),
        Section(
            "grouping",
            "Grouping",
            "Who belongs together and who shares what: pure functions of arrays.",
            [
                name
                for module in iter_modules(import_module("coterie.grouping").__path__, "coterie.grouping.")
                for name in _of(module.name, [*_classes(module.name), *_functions(module.name)])
            ],
        ),
        Section(
            "networks",
            "Networks",
            "Networks by name, and the layout of their flat vectors.",
            [
                *_of(
                    "coterie.models.networks", ["NETWORKS", "Built", "build", "channels_first", "default_network"]
                ),
                *_of("coterie.models.layout", _classes("coterie.models.layout")),
            ],
        ),
        Section(
            "models",
            "Models after training",
            "A run's models, a file of one, and what they predict.",
            [
                *_of("coterie.shipping.model.served", ["trained_model", "client_models"]),
                *_of("coterie.shipping.model.trained", ["Trained", "About", "read_model", "write_model"]),
                *_of("coterie.shipping.model.predict", ["load_samples", "predict", "Samples"]),
                *_of("coterie.shipping.model.predicted", ["Predicted", "PredictedValues"]),
                *_of("coterie.shipping.model.export", ["export"]),
            ],
        ),
    ]


def _of(module: str, names: Iterable[str]) -> list[str]:
    return [f"{module}.{name}" for name in names]


def _listed(module: str) -> list[str]:
    """What a module lists in `__all__`, without its version."""
    return _of(module, (name for name in import_module(module).__all__ if not name.startswith("__")))


def _classes(module: str) -> list[str]:
    """The public classes that a module defines, in its order."""
    return [name for name, value in _own(module) if isclass(value)]


def _functions(module: str) -> list[str]:
    return [name for name, value in _own(module) if isfunction(value)]


def _own(module: str) -> list[tuple[str, object]]:
    names = vars(import_module(module)).items()
    return [(name, v) for name, v in names if name[0] != "_" and getattr(v, "__module__", "") == module]


def _methods() -> list[str]:
    """The class of every method, by its short home `coterie.methods`, in the order of their names."""
    from coterie.methods import METHODS

    found = {entry.target.__name__ for entry in METHODS if entry.target.__module__.startswith("coterie.methods.")}
    return _of("coterie.methods", sorted(found, key=str.lower))
