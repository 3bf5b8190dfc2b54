"""Named things with typed settings: methods, splits, networks, datasets; and the names of states.

An entry is a callable (a frozen dataclass or a function) whose keyword settings are written in its
signature: `Annotated[int, Field(ge=1, description="number of groups")] = 4`. The signature is the only
place where a setting exists, so the listing, the validation and the call cannot disagree.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model

from coterie.errors import BadInput, sentences, unknown
from coterie.plugins import Offer, find_offer, give, import_object, import_offer, is_path, offers, suggest_path

T = TypeVar("T", bound=Callable[..., Any])
C = TypeVar("C")


class Grid:
    """Metadata of a setting, in its `Annotated`: the values that a search over settings tries."""

    def __init__(self, *values: Any) -> None:
        self.values = values


Effect = Literal["training", "tables", "nothing"]


class Changes:
    """Metadata of a setting, in its `Annotated`: what of a run changes with its value.

    `training` (as without this): the states that training goes through, and with them everything. `tables`: only
    what the run's tables say of the same training. `nothing`: not a bit of either.
    """

    def __init__(self, effect: Effect) -> None:
        self.effect = effect
        """What changes."""


@dataclass(frozen=True)
class Setting:
    """One keyword setting of an entry."""

    name: str
    """As it is written in an experiment."""
    default: Any
    """The value where none is given."""
    help: str
    """What it means, in a few words."""
    required: bool = False
    """Whether it has no default."""
    choices: tuple[Any, ...] = ()
    """The values that are possible, where they can be counted off (a `Literal`)."""
    grid: tuple[Any, ...] = ()
    """The values that a search over settings tries (a `Grid`); none where it leaves the setting alone."""
    changes: Effect = "training"
    """What of a run changes with the value (a `Changes`)."""

    @property
    def meaning(self) -> str:
        """The help, with the choices where there are any."""
        listed = f"one of {', '.join(map(str, self.choices))}" if self.choices else ""
        if len(self.choices) == 1:  # beside values that cannot be counted off
            listed = f"or {self.choices[0]}"
        return "; ".join(part for part in (self.help, listed) if part)


@dataclass(frozen=True)
class Entry:
    """One named thing: its callable, its summary and its settings, which are read when they are asked for."""

    name: str
    """As it is asked for."""
    target: Callable[..., Any]
    """The class or function."""

    @cached_property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        return first_sentence(inspect.getdoc(self.target) or "")

    @cached_property
    def schema(self) -> type[BaseModel]:
        """What its signature says of its settings."""
        return _schema(self.name, self.target)

    @property
    def settings(self) -> list[Setting]:
        return settings_of(self.schema)

    def bind(self, settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """The settings checked and converted, defaults filled in.

        Raises:
            BadInput: one sentence for each setting that is unknown, missing or out of range.
        """
        try:
            checked = self.schema.model_validate({name: plain(value) for name, value in settings.items()})
        except ValidationError as error:
            owner = self.name if prefix and prefix != self.name else ""
            raise BadInput(sentences(error, prefix, list(self.schema.model_fields), owner)) from None
        return {name: getattr(checked, name) for name in self.schema.model_fields}


class Catalog:
    """Entries by name, in the order they were added; `also_called` says what other names mean here.

    `gone` says what to use in place of names that were listed once.

    With a `group` of entry points, names that installed packages offer there, and `package.module:object`, are
    imported when they are asked for. The former are listed from then on; a path is found again, but never listed.
    Without a group, names are those that were added.

    Args:
        kind: what an entry is, for messages.
        also_called: names by which people look for others.
        group: of entry points, as `coterie.methods`.
        must_be: the class that whatever a package brings must be derived from, as `package.module:Class`.
        not_a_path: a prefix of names that are looked up elsewhere, as `hub:`; they import nothing.
    """

    def __init__(
        self,
        kind: str,
        also_called: Mapping[str, str] | None = None,
        *,
        gone: Mapping[str, str] | None = None,
        group: str = "",
        must_be: str = "",
        not_a_path: str = "",
    ) -> None:
        self.kind = kind
        self._also_called = dict(also_called or {})
        self._gone = dict(gone or {})
        self._group = group
        self._must_be = must_be
        self._not_a_path = not_a_path
        self.entries: dict[str, Entry] = {}
        """Those that are known, by name or path; not what an installed package offers and nobody asked for."""
        self._brought: set[str] = set()
        """Names that were imported when they were asked for."""

    def add(self, name: str) -> Callable[[T], T]:
        """Decorator: list `target` under `name`. Only keyword settings count; the summary is its first line.

        Raises:
            ValueError: another target has this name.
        """
        return partial(self._add, name)

    def _add(self, name: str, target: T) -> T:
        former = self.entries.get(name)
        if former is not None and _place(former.target) != _place(target):
            raise ValueError(f"{self.kind} {name!r} exists already, in {_place(former.target)}; take another name")
        self.entries[name] = Entry(name, target)
        return target

    def add_unless_known(self, name: str, target: Callable[..., Any]) -> None:
        """List what another process knows under a name; one that is known here stays as it is."""
        if name not in self.entries:
            self.add(name)(target)

    def __getitem__(self, name: str) -> Entry:
        """The entry of a name.

        Raises:
            BadInput: there is none, or what a package has under that name cannot be imported or used.
        """
        self._bring(name)
        if name not in self.entries:
            raise BadInput(self._describe_unknown(name))
        return self.entries[name]

    def sentence(self, name: str) -> str:
        """What to say of a name that is not here, or cannot be imported."""
        return self.problem(name) or self._describe_unknown(name)

    def problem(self, name: str) -> str | None:
        """Why what a package has under a name cannot be used; None where it can, or no package has it."""
        try:
            self._bring(name)
        except BadInput as problem:
            return "; ".join(problem.problems)
        return None

    def _describe_unknown(self, name: str) -> str:
        if name in self._gone:
            return f"{self.kind} {name!r} does not exist any more; {self._gone[name]}"
        meant = self._also_called.get(name.lower())
        if meant:
            return f"{self.kind} {name!r} is called {meant} here"
        if (entry := name.partition("(")[0]) != name and entry in self.entries:
            return f"{self.kind} {name!r} is unknown; write {entry}, and each of its settings as --set KEY=VALUE"
        if self._group and (path := suggest_path(name)):
            return f"{self.kind} {name!r} is unknown; to take it from that file, write {path}"
        return unknown(self.kind, name, [*self.names(), *(offers(self._group) if self._group else ())])

    def _bring(self, name: str) -> None:
        """Import what a package has under a name, if any does and it is not here yet.

        Raises:
            BadInput: it cannot be imported or used, or nobody gave it to this process.
        """
        elsewhere = bool(self._not_a_path) and name.startswith(self._not_a_path)
        if not self._group or elsewhere or self._is_own(name):
            return
        if is_path(name):
            target = import_object(self.kind, name)
        elif (offer := self.find_offer(name)) is not None:
            target = import_offer(self.kind, offer)
            if inspect.ismodule(target) and name not in self.entries:
                raise BadInput(
                    f"{self.kind} {name!r} of the package {offer.package} does not exist: {offer.path} registers "
                    "nothing under that name"
                )
        else:
            return
        if name not in self.entries:
            self._check(name, target)
            try:
                self.add(name)(target)
                _ = self.entries[name].schema
            except (AttributeError, TypeError, ValueError, NameError, PydanticUserError) as error:
                self.entries.pop(name, None)
                said = str(error).strip().partition("\n")[0]
                raise BadInput(
                    f"{self.kind} {name!r} cannot be used, because its settings cannot be read ({said}); write "
                    "each as a keyword with a type and a default"
                ) from error
        self._brought.add(name)

    def find_offer(self, name: str) -> Offer | None:
        """Return what an installed package offers under a name that nothing is listed under here; None for none.

        Raises:
            BadInput: several packages claim the name.
        """
        return None if self._is_own(name) else find_offer(self.kind, self._group, name)

    def _is_own(self, name: str) -> bool:
        return name in self.entries and name not in self._brought

    def _check(self, name: str, target: Any) -> None:
        """Refuse what a package brings that is nothing of this kind.

        Raises:
            BadInput: it is not.
        """
        if not callable(target):
            raise BadInput(f"{self.kind} {name!r} is {type(target).__name__}; it must be a class or a function")
        if not self._must_be:
            return
        module, _, parent = self._must_be.partition(":")
        base = getattr(import_module(module), parent)
        if not (inspect.isclass(target) and issubclass(target, base)):
            what = "a class" if inspect.isclass(target) else "a function"
            raise BadInput(
                f"{self.kind} {name!r} is {what} that is no {parent}; it must be a class derived from "
                f"{module}.{parent}"
            )
        if missing := sorted(getattr(target, "__abstractmethods__", ())):
            raise BadInput(f"{self.kind} {name!r} does not define {' and '.join(missing)}, as every {parent} must")

    def __contains__(self, name: object) -> bool:
        """Whether a name can be used, which imports what a package has under it."""
        return isinstance(name, str) and self.problem(name) is None and name in self.entries

    def name_of(self, given: type) -> str:
        """Return the name of a class that a person gave: the one it is listed under, or `package.module:Class`.

        Raises:
            BadInput: it is not listed, and no other process could import it.
        """
        listed = next((entry.name for entry in self.entries.values() if entry.target is given), None)
        if listed is None and (given.__module__ == "__main__" or "<locals>" in given.__qualname__):
            raise BadInput(
                f"{self.kind} {given.__qualname__} is in no module that another process could import; put it into "
                "a file of its own and import it from there"
            )
        if listed is not None:
            return listed
        path = f"{given.__module__}:{given.__qualname__}"
        give([path])
        return path

    def __iter__(self) -> Iterator[Entry]:
        return (entry for name, entry in self.entries.items() if not is_path(name))

    def names(self) -> list[str]:
        """Return the names that are listed, in the order in which they were added."""
        return [entry.name for entry in self]


def _place(target: Callable[..., Any]) -> str:
    return f"{target.__module__}.{target.__qualname__}"


def first_sentence(doc: str) -> str:
    """The first sentence of a docstring, or its first paragraph where that is none."""
    paragraph = doc.strip().split("\n\n", 1)[0]
    text = " ".join(paragraph.split())
    sentence = re.match(r".*?[.!?](?= [A-Z]|$)(?<!et al\.)", text)
    return sentence[0] if sentence else text


def _schema(name: str, target: Callable[..., Any]) -> type[BaseModel]:
    hints = get_type_hints(target, include_extras=True)
    fields: dict[str, Any] = {}
    dataclass_like = inspect.isclass(target)
    for parameter in inspect.signature(target).parameters.values():
        if not dataclass_like and parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    # Strict, for a lenient schema would take true for 1 and "4" for 4 without a word.
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return create_model(name, __config__=config, **fields)


def settings_of(schema: type[BaseModel]) -> list[Setting]:
    """The fields of a pydantic model as settings, in the order in which they are written."""
    return [
        Setting(
            name,
            None if field.is_required() else field.default,
            field.description or "",
            field.is_required(),
            _choices(field.annotation),
            tuple(value for part in field.metadata if isinstance(part, Grid) for value in part.values),
            next((part.effect for part in field.metadata if isinstance(part, Changes)), "training"),
        )
        for name, field in schema.model_fields.items()
    ]


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a `Literal`, also of an optional one."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(c for part in get_args(annotation) if get_origin(part) is Literal for c in get_args(part))


class Section(BaseModel):
    """One table of the experiment: frozen, typed, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    title: ClassVar[str]

    def __init__(self, /, **keys: Any) -> None:
        """Check and keep the keys.

        Raises:
            BadInput: one sentence for each key that is unknown or out of range.
        """
        values = {key: plain(value) for key, value in keys.items()}
        found: list[str] = []
        if self.model_config.get("extra") == "allow":
            own = {k: v for k, v in values.items() if k not in type(self).model_fields}
            found = [
                f"{self.title}.{key} = {value!r} is not possible; "
                "it must be a finite number, a string, true, false, or a list or table of these"
                for key, value in own.items()
                if not is_value(value)
            ]
        try:
            super().__init__(**values)
        except ValidationError as error:
            found = sentences(error, self.title, list(type(self).model_fields)) + found
        if found:
            raise BadInput(found)

    def updated(self, /, **keys: Any) -> Self:
        """The section with other values under some of its keys.

        Raises:
            BadInput: as for a new one.
        """
        return type(self)(**{**dict(self), **keys})


def plain(value: Any) -> Any:
    """Convert a value to what TOML knows: paths to strings, lists to tuples (settings are frozen), NumPy's
    scalars to Python's. A value that TOML cannot hold is returned as it is."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return tuple(plain(v) for v in value)
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value


def is_value(value: Any) -> bool:
    """Return whether a plain value can be a setting: finite number, string, boolean, list or table of these."""
    if isinstance(value, tuple):
        return all(is_value(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and is_value(v) for k, v in value.items())
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


_STATES: dict[str, type] = {}


def state(name: str) -> Callable[[type[C]], type[C]]:
    """Class decorator: checkpoints remember the dataclass under `name`, whatever module it is defined in.

    Raises:
        ValueError: another dataclass has the name.
    """

    def register(cls: type[C]) -> type[C]:
        former = _STATES.setdefault(name, cls)
        if former is not cls and _place(former) != _place(cls):
            raise ValueError(f"state {name!r} exists already, in {_place(former)}; take another name")
        _STATES[name] = cls
        return cls

    return register


def state_name(cls: type) -> str:
    """The name under which a checkpoint remembers `cls`: the registered one, or `module:qualname` without one."""
    own = next((name for name, known in _STATES.items() if known is cls), None)
    return f"{cls.__module__}:{cls.__qualname__}" if own is None else own


def find_state(name: str) -> object:
    """What is loaded under a name that `state_name` gave, or None. Nothing is imported."""
    if name in _STATES:
        return _STATES[name]
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
