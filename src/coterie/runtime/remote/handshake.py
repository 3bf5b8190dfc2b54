"""What a client answers when the server asks who it is."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError

from coterie.clients.data.agree.agreement import check_sums, read_columns_of, write_columns
from coterie.clients.data.agree.own import SPLITS
from coterie.clients.data.agree.population import ClientInfo
from coterie.errors import BadInput, sentences
from coterie.runtime.remote.codec import VERSION
from coterie.runtime.remote.message import Message, Value

MAX_NAME_LENGTH = 200
"""Characters of a client's name."""

MAX_COUNT = 2**31 - 1
"""Most samples, classes or numbers of one sample that a client may say it has."""

REGISTERED = "registered"
"""What a hello calls the name that the asked node's key was registered with; it is missing where there is none."""

_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Length = Annotated[int, Field(ge=1, le=MAX_COUNT)]


def pack_hello(info: ClientInfo) -> Message:
    """Turn what a client tells of itself into a message."""
    sizes: dict[str, Value] = dict(zip(SPLITS, info.sizes, strict=True))
    features = json.dumps(info.features)
    own: dict[str, Value] = {"name": info.name, "classes": info.classes, "digest": info.digest}
    if info.outputs != info.classes:
        own["outputs"] = info.outputs
    if info.columns:
        own["columns"] = json.dumps(write_columns(info.columns))
    if info.sums:
        own["sums"] = json.dumps(info.sums, allow_nan=False)
    return Message({"version": VERSION, **own, **sizes, "features": features})


class _Hello(BaseModel):
    """What a client may tell of itself, as a message holds it."""

    model_config = ConfigDict(strict=True)

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
    train: _Length
    validation: _Count
    test: _Count
    features: Json[tuple[_Length, ...]]
    classes: _Count
    outputs: _Count = 0
    digest: str
    columns: Json[Any] = None
    sums: Json[Any] = None


def unpack_hello(message: Message) -> ClientInfo:
    """Read what a client tells of itself.

    Raises:
        BadInput: something is missing, or not possible.
    """
    message.check_version()
    try:
        told = _Hello.model_validate(dict(message.values))
    except ValidationError as error:
        raise BadInput(sentences(error)[0]) from None
    if not is_name(told.name):
        raise BadInput(f"its name must have 1 to {MAX_NAME_LENGTH} printable characters")
    if max(prod(told.features), told.train + told.validation + told.test) > MAX_COUNT:
        raise BadInput(f"it says that it has more than {MAX_COUNT:,} samples, or numbers in a sample")
    sizes = (told.train, told.validation, told.test)
    info = ClientInfo(told.name, sizes, told.features, told.classes, told.digest, told.outputs)
    if told.columns is not None:
        info = replace(info, columns=read_columns_of(told.columns))
    if told.sums is not None:
        channels = told.features[-1] if told.features else 0
        info = replace(info, sums=check_sums(told.sums, channels, told.train * prod(told.features[:-1])))
    return info


def is_name(value: object) -> bool:
    """Whether a value can be the name of a client."""
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= MAX_NAME_LENGTH
