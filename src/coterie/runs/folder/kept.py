"""What the JSON files of a run folder must hold: state is parsed like all that comes from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from coterie.runs.folder.files import damaged_file, encode_json, read_json
from coterie.runs.folder.metrics import RunMetric

T = TypeVar("T")

_Count = Annotated[int, Field(ge=0, lt=10**6)]
_Text = Annotated[str, Field(max_length=10**5)]


class KeptWarnings(BaseModel):
    """What did not come about (`warnings.json`)."""

    model_config = ConfigDict(strict=True)

    warnings: list[_Text] = []
    diverged: _Count = 0
    """How many of the warnings, the first ones, say that training has diverged."""
    diverged_for_all: bool = False


class Promise(BaseModel):
    """What a page says of a promise of privacy; `runs.promise` wrote it."""

    model_config = ConfigDict(strict=True, extra="allow")

    hides: _Text
    delta: float
    epsilon: float
    noise_by: Annotated[_Text, Field(alias="noise by")]


class Environment(BaseModel):
    """What a run was made of (`environment.json`), as far as something depends on it; more may stand there."""

    model_config = ConfigDict(strict=True, extra="allow")

    run: _Text = ""
    format: _Count = 1
    started: _Text | None = None
    command: _Text | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    python: _Text | None = None
    packages: dict[_Text, _Text] = {}
    federation: _Text | None = None
    network: _Text | None = None
    description: list[_Text] = []
    metrics: list[RunMetric] = []
    classes: list[Any] = []
    privacy: Promise | None = None


def read_kept(path: Path, adapter: TypeAdapter[T]) -> T | None:
    """Read a JSON file by its schema; None where there is none.

    Raises:
        BadInput: it cannot be read, or holds something else; the sentence names the key.
    """
    kept = read_json(path)
    return None if kept is None else parse_kept(path, kept, adapter)


def parse_kept(path: Path, kept: dict[str, Any], adapter: TypeAdapter[T]) -> T:
    """Return what a JSON file holds by its schema.

    Raises:
        BadInput: it holds something else; the sentence names the key.
    """
    try:
        return adapter.validate_json(encode_json(kept))  # in JSON alone an object may stand for a dataclass
    except ValidationError as error:
        found = error.errors()[0]
        where = ".".join(map(str, found["loc"]))
        raise damaged_file(path, ValueError(f"{where}: {str(found['input'])[:40]!r}; {found['msg']}")) from None


ENVIRONMENT, WARNINGS = TypeAdapter(Environment), TypeAdapter(KeptWarnings)
