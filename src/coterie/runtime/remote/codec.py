"""Orders and answers as bytes, for clients in other processes and on other machines.

The bytes are a safetensors file: the tensors as they are, and everything else as JSON in its header. Nothing is
pickled. Of a vector only the part that is sent is in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from coterie.clients.rules.requests import Scored
from coterie.clients.rules.rule import RULES, Answer, Item, Order
from coterie.errors import BadInput, show_value
from coterie.models.layout import Layout, Part

VERSION = "coterie-message/5"
"""Of the bytes here and of the plain values beside them (see `message`)."""


def pack_order(order: Order) -> bytes:
    """Turn an order into bytes."""
    header = {
        "client": order.client,
        "round": order.round,
        "rule": order.rule.name,
        "rule_settings": order.rule.settings(),
        "parts": {name: _ranges(item.part) for name, item in order.items.items()},
        "settings": dict(order.settings),
        "upload_part": {name: _ranges(part) for name, part in order.upload_part.items()},
    }
    return _pack(header, {name: item.values for name, item in order.items.items()})


def unpack_order(message: bytes) -> Order:
    """Read the order in a message.

    Raises:
        BadInput: the message is damaged, of another version, or names a rule or a setting that is unknown here.
    """
    header, tensors = _unpack(message)
    with _readable(message):
        kind = RULES[header["rule"]]
        rule = kind.target(**kind.bind(header["rule_settings"], "settings"))
        parts = {name: None if ranges is None else _read_part(ranges) for name, ranges in header["parts"].items()}
        items = {name: Item(values, parts[name]) for name, values in tensors.items()}
        upload_part = {name: _read_part(ranges) for name, ranges in header["upload_part"].items()}
        settings = {name: float(value) for name, value in header["settings"].items()}
        order = Order(int(header["client"]), int(header["round"]), rule, items, settings, upload_part)
    for name, item in items.items():
        shape = tuple(item.values.shape)
        size = "P" if item.part is None else item.part.size
        if len(shape) not in (1, 2) or (item.part is not None and shape[-1] != size):
            raise BadInput(f"the order's {name} has shape {shape}; it must be ({size},) or (k, {size})")
    return order


def pack_answer(order: Order, answer: Answer) -> bytes:
    """Turn what a client uploads into bytes; its state is left out."""
    tensors = {
        name: values if name not in order.upload_part else order.upload_part[name].take(values)
        for name, values in answer.uploads.items()
    }
    numbers = {name: float(value) for name, value in answer.numbers.items()}
    report = {name: _to_json(value) for name, value in answer.report.items()}
    return _pack({"numbers": numbers, "report": report}, tensors)


def unpack_answer(order: Order, message: bytes, layout: Layout) -> Answer:
    """Read the answer to `order`. Vectors are `[P]`, with NaN outside the part that was sent.

    Raises:
        BadInput: the message is damaged, of another version, or holds a vector that is not of its part's size or of
            the shape the rule gives it.
    """
    header, tensors = _unpack(message)
    uploads, shapes = {}, order.rule.shapes(layout)
    for name, values in tensors.items():
        part = order.upload_part.get(name, layout.everything)
        shape = shapes.get(name, (part.size,))
        if values.shape != shape:
            raise BadInput(f"the answer's {name} has shape {tuple(values.shape)}; it must be {shape}")
        uploads[name] = values if name in shapes else part.put(torch.full((layout.size,), float("nan")), values)
    with _readable(message):
        numbers = {name: float(value) for name, value in header["numbers"].items()}
        report = {name: _from_json(value) for name, value in header["report"].items()}
    return Answer(uploads, numbers, {}, report)


def _pack(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    # Cloned, because safetensors refuses tensors that share memory, as two items with the same row do.
    copies = {name: values.contiguous().clone() for name, values in tensors.items()}
    return save(copies, {"version": VERSION, "header": json.dumps(header)})


def _unpack(message: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with _readable(message):
        size = int.from_bytes(message[:8], "little")
        meta = json.loads(message[8 : 8 + size])["__metadata__"]
        if meta["version"] != VERSION:
            raise BadInput(f"a message has version {show_value(meta['version'])}; this side speaks {VERSION!r}")
        header, tensors = json.loads(meta["header"]), load(message)
    for name, values in tensors.items():
        if values.dtype != torch.float32:
            raise BadInput(f"a message's {name} holds {values.dtype}; it must be torch.float32")
    return header, tensors


@contextmanager
def _readable(message: bytes) -> Iterator[None]:
    """Turn any error that a parser raises into a BadInput of one sentence."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # the parsers of JSON and safetensors raise a dozen kinds of errors
        reason = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        raise BadInput(f"a message of {len(message)} bytes cannot be read ({reason}); send it again") from error


def _ranges(part: Part | None) -> list[tuple[int, int]] | None:
    return None if part is None else [(int(a), int(b)) for a, b in part.ranges]


def _read_part(ranges: list[list[int]]) -> Part:
    return Part.of((int(a), int(b)) for a, b in ranges)


def _to_json(value: Any) -> Any:
    if isinstance(value, Scored):
        counts = {name: getattr(value, name).tolist() for name in ("actual", "predicted", "correct")}
        return {"scored": value.loss, **counts, "samples": value.samples, "values": dict(value.values)}
    return value.item() if isinstance(value, np.generic) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict) and "scored" in value:
        actual, predicted, correct = (
            np.array(value[name], np.int64) for name in ("actual", "predicted", "correct")
        )
        return Scored(
            value["scored"],
            actual,
            predicted,
            correct,
            samples=int(value["samples"]),
            values=dict(value["values"]),
        )
    return value
