"""All sections of an experiment by title: their keys, how each is built, which keys decide a run's result."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from coterie.catalogue import Changes, Effect, Section, Setting, settings_of
from coterie.clients.rules.training import Training
from coterie.errors import BadInput, nearest
from coterie.methods.aggregation import Aggregation
from coterie.methods.privacy import Privacy
from coterie.methods.scale import Scale
from coterie.runs.schema.sections import Attack, Data, Evaluation, MethodChoice, Network, Run, TaskChoice

SECTIONS: dict[str, type[Section]] = {
    "data": Data,
    "task": TaskChoice,
    "network": Network,
    "method": MethodChoice,
    "training": Training,
    "evaluation": Evaluation,
    "run": Run,
    "scale": Scale,
    "aggregation": Aggregation,
    "attack": Attack,
    "privacy": Privacy,
}
"""The tables of an experiment, in the order in which they are written."""

LATER = ("task", "aggregation", "attack", "privacy")
"""Sections that are left out of keys and files where they say nothing: those of before stay what they were."""


@cache
def section_settings(title: str) -> tuple[Setting, ...]:
    """Return the keys that a section always has, without the further settings of a method or network."""
    return tuple(settings_of(SECTIONS[title]))


def field_names(title: str) -> list[str]:
    """Return the names of `section_settings`; none for what is no section."""
    return list(SECTIONS[title].model_fields) if title in SECTIONS else []


def build_section(title: str, value: Any) -> Section:
    """Build a section from any of the forms in which it is given.

    Raises:
        BadInput: there is no such section, or one sentence for each key that is unknown or out of range.
    """
    if title not in SECTIONS:
        raise BadInput(_unknown_section(title))
    cls = SECTIONS[title]
    if isinstance(value, cls):
        return value
    table = as_table(title, value)
    if table is None:
        raise BadInput(
            f"{title} = {value!r} is not possible; it must be a table of {', '.join(field_names(title))}"
        )
    return cls(**table)


def name_given(title: str, value: Any) -> Any:
    """Return a section whose name is given in Python in a form that can be written down.

    A network is a module, class or function, which gets a name here; a method or a task is given as its class.

    Raises:
        BadInput: the network cannot be copied or is none, or no other process could import the class.
    """
    if isinstance(value, Mapping) and "name" in value:
        return {**value, "name": name_given(title, value["name"])}
    if title == "network" and callable(value):
        from coterie.models.factory import give
        from coterie.models.networks import NETWORKS

        return give(value, NETWORKS)
    if title in ("method", "task") and isinstance(value, type):
        from coterie.clients.tasks import TASKS
        from coterie.methods import METHODS

        return (METHODS if title == "method" else TASKS).name_of(value)
    return value


def as_table(title: str, value: Any) -> dict[str, Any] | None:
    """Return a section in any of the forms in which it is given as a table; None for any other value.

    Raises:
        BadInput: data, a network, a method or a task are given that cannot be used.
    """
    value = name_given(title, value)
    if value is None:
        return {}
    if isinstance(value, Section):
        return value.model_dump(exclude_none=True)
    if isinstance(value, str) and "name" in field_names(title):
        return {"name": value}
    if title == "data" and not (isinstance(value, Mapping) and set(value) <= set(field_names("data"))):
        from coterie.clients.data.read import given  # brings torch, as whoever has such data does

        if given.is_given(value):
            return {"name": given.keep(value)}
    return dict(value) if isinstance(value, Mapping) and {type(key) for key in value} <= {str} else None


def keys_deciding(
    what: Literal["training", "tables"], tables: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the tables of an experiment with those keys alone on which its training, or its tables, depend."""
    others: tuple[Effect, ...] = ("nothing", "tables") if what == "training" else ("nothing",)
    left_out = {
        (title, name)
        for title, section in SECTIONS.items()
        for name, field in section.model_fields.items()
        for note in field.metadata
        if isinstance(note, Changes) and note.effect in others
    }
    found = {t: {k: v for k, v in table.items() if (t, k) not in left_out} for t, table in tables.items()}
    return without_silent(found)


def without_silent(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the tables of an experiment without those of `LATER` that say nothing."""
    return {t: dict(table) for t, table in tables.items() if t not in LATER or table not in ({}, _DEFAULTS[t])}


_DEFAULTS = {title: SECTIONS[title]().model_dump(exclude_none=True) for title in LATER}


def _unknown_section(name: str) -> str:
    owners = [f"{section}.{name}" for section in SECTIONS if name in field_names(section)]
    close = " or ".join(owners) or nearest(name, SECTIONS)
    hint = f"did you mean {close}?" if close else f"known: {', '.join(SECTIONS)}"
    return f"{name} is not a section of an experiment; {hint}"
