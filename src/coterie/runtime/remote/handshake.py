"""What a client answers when the server asks who it is."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from typing import Any

from coterie.clients.data.agree.agreement import check_sums, read_columns_of, write_columns
from coterie.clients.data.agree.population import ClientInfo
from coterie.errors import BadInput
from coterie.runtime.remote.codec import VERSION
from coterie.runtime.remote.message import Message, Value

MAX_NAME_LENGTH = 200
"""Characters of a client's name."""

MAX_COUNT = 2**31 - 1
"""Most samples, classes or numbers of one sample that a client may say it has."""

REGISTERED = "registered"
"""What a hello calls the name that the asked node's key was registered with; it is missing where there is none."""

SPLITS = ("train", "validation", "test")
"""In the order of a client's sizes."""


def pack_hello(info: ClientInfo) -> Message:
    """Turn what a client tells of itself into a message."""
    sizes = dict(zip(SPLITS, info.sizes, strict=True))
    features = json.dumps(info.features)
    own: dict[str, Value] = {"name": info.name, "classes": info.classes, "digest": info.digest}
    if info.outputs != info.classes:
        own["outputs"] = info.outputs
    if info.columns:
        own["columns"] = json.dumps(write_columns(info.columns))
    if info.sums:
        own["sums"] = json.dumps(info.sums, allow_nan=False)
    return Message({"version": VERSION, **own, **sizes, "features": features})


def unpack_hello(message: Message) -> ClientInfo:
    """Read what a client tells of itself.

    Raises:
        BadInput: something is missing, or not possible.
    """
    message.check_version()
    name = message.text("name")
    train, validation, test = (message.number(split) for split in SPLITS)
    if not is_name(name):
        raise BadInput(f"its name must be 1 to {MAX_NAME_LENGTH} letters that can be printed")
    if train < 1 or min(validation, test) < 0:
        sizes = (train, validation, test)
        raise BadInput(f"it says that it holds {sizes} samples; at least one must be there to train on")
    features = _read_shape(message.text("features"))
    classes, digest = message.number("classes"), message.text("digest")
    outputs = message.number("outputs") if "outputs" in message.values else classes
    if min(features, default=1) < 1:
        raise BadInput(f"it says that a sample has the shape {features[:4]}; each side must be at least 1")
    counts = {"samples": train + validation + test, "classes": classes, "outputs": outputs}
    for what, count in (counts | {"numbers in a sample": prod(features)}).items():
        if not 0 <= count <= MAX_COUNT:
            raise BadInput(f"it says that it has {_short(count)} {what}; there can be up to {MAX_COUNT:,}")
    info = ClientInfo(name, (train, validation, test), features, classes, digest, outputs)
    if "columns" in message.values:
        info = replace(info, columns=read_columns_of(_read_json("columns", message.text("columns"))))
    if "sums" in message.values:
        channels = features[-1] if features else 0
        most = train * prod(features[:-1])
        info = replace(info, sums=check_sums(_read_json("sums", message.text("sums")), channels, most))
    return info


def _read_shape(text: str) -> tuple[int, ...]:
    lengths = _read_json("features", text)
    if not isinstance(lengths, list) or not all(type(length) is int for length in lengths):
        raise BadInput("it says that a sample has no shape; it must be a list of whole numbers")
    return tuple(lengths)


def _read_json(name: str, text: str) -> Any:
    """Return what a text of JSON holds.

    Raises:
        BadInput: it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadInput(f"its {name} cannot be read; they must be JSON") from None


def _short(count: int) -> str:
    """A number for a sentence: one of another machine may have any number of digits."""
    return f"{count:,}" if abs(count) < 10**18 else "far too many"


def is_name(value: object) -> bool:
    """Whether a value can be the name of a client."""
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= MAX_NAME_LENGTH
