"""Named things with typed settings: methods, splits, networks, datasets.

An entry is a callable (a frozen dataclass or a function) whose keyword settings are written in its
signature: `Annotated[int, Field(ge=1, description="number of groups")] = 4`. The signature is the only
place where a setting exists, so the listing, the validation and the call cannot disagree.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from coterie.problems import BadInput, sentences, unknown

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Setting:
    """One keyword setting of an entry."""

    name: str
    default: Any
    help: str
    required: bool = False


@dataclass(frozen=True)
class Entry:
    """One named thing: its callable, its one-line summary, and its settings' schema."""

    name: str
    target: Callable[..., Any]
    summary: str
    schema: type[BaseModel]

    @property
    def settings(self) -> list[Setting]:
        return [_setting(name, field) for name, field in self.schema.model_fields.items()]

    def bind(self, settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """The settings checked and converted, defaults filled in.

        Raises:
            BadInput: one sentence for each setting that is unknown, missing or out of range.
        """
        try:
            checked = self.schema.model_validate(dict(settings))
        except ValidationError as error:
            raise BadInput(sentences(error, prefix, list(self.schema.model_fields))) from None
        return {name: getattr(checked, name) for name in self.schema.model_fields}


class Catalog:
    """Entries by name, in the order they were added."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = {}

    def add(self, name: str) -> Callable[[T], T]:
        """Decorator: list `target` under `name`. Only keyword settings count; the summary is its first line."""

        def keep(target: T) -> T:
            self._entries[name] = Entry(name, target, _summary(target), _schema(name, target))
            return target

        return keep

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise BadInput(unknown(self.kind, name, self._entries))
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def names(self) -> list[str]:
        return list(self._entries)


def _summary(target: Callable[..., Any]) -> str:
    return (inspect.getdoc(target) or "").strip().split("\n", 1)[0]


def _schema(name: str, target: Callable[..., Any]) -> type[BaseModel]:
    hints = get_type_hints(target, include_extras=True)
    fields: dict[str, Any] = {}
    dataclass_like = inspect.isclass(target)
    for parameter in inspect.signature(target).parameters.values():
        if not dataclass_like and parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    return create_model(name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields)


def _setting(name: str, field: FieldInfo) -> Setting:
    return Setting(
        name, None if field.is_required() else field.default, field.description or "", field.is_required()
    )
