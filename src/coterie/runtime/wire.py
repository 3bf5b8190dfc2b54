"""Orders and answers as bytes, for clients in other processes and on other machines.

A message is a safetensors file in memory: the tensors as they are, and everything else as JSON in its header.
Nothing is pickled. Only the part of a vector that crosses is in the message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from coterie.clients.rule import RULES, Answer, Item, Order
from coterie.clients.work import Scored
from coterie.models.layout import Layout, Part
from coterie.problems import BadInput

VERSION = "coterie-message/1"


def pack_order(order: Order) -> bytes:
    """An order as bytes."""
    header = {
        "client": order.client,
        "round": order.round,
        "rule": order.rule.name,
        "settings": order.rule.settings(),
        "parts": {name: _ranges(item.part) for name, item in order.items.items()},
        "told": dict(order.told),
        "back": {name: _ranges(part) for name, part in order.back.items()},
    }
    return _pack(header, {name: item.values for name, item in order.items.items()})


def unpack_order(message: bytes) -> Order:
    """The order a message holds.

    Raises:
        BadInput: the message is damaged, of another version, or names a rule or setting this side does not know.
    """
    header, tensors = _unpack(message)
    kind = RULES[header["rule"]]
    rule = kind.target(**kind.bind(header["settings"], "settings"))
    items = {name: Item(values, _part(header["parts"][name])) for name, values in tensors.items()}
    back = {name: part for name, ranges in header["back"].items() if (part := _part(ranges)) is not None}
    return Order(header["client"], header["round"], rule, items, header["told"], back)


def pack_answer(order: Order, answer: Answer) -> bytes:
    """What crosses of an answer, as bytes; the client's state stays where it is."""
    tensors = {
        name: values if name not in order.back else order.back[name].take(values)
        for name, values in answer.send.items()
    }
    report = {name: _plain(value) for name, value in answer.report.items()}
    return _pack({"numbers": dict(answer.numbers), "report": report}, tensors)


def unpack_answer(order: Order, message: bytes, layout: Layout) -> Answer:
    """The answer a message holds; vectors are `[P]` again, NaN outside the part that crossed."""
    header, tensors = _unpack(message)
    send = {}
    for name, values in tensors.items():
        part = order.back.get(name, layout.everything)
        if values.shape != (part.size,):
            raise BadInput(f"the answer's {name} has shape {tuple(values.shape)}; it must be ({part.size},)")
        send[name] = part.put(torch.full((layout.size,), float("nan")), values)
    report = {name: _rich(value) for name, value in header["report"].items()}
    return Answer(send, header["numbers"], {}, report)


def _pack(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    contiguous = {name: values.contiguous() for name, values in tensors.items()}
    return save(contiguous, {"version": VERSION, "header": json.dumps(header)})


def _unpack(message: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        size = int.from_bytes(message[:8], "little")
        meta = json.loads(message[8 : 8 + size])["__metadata__"]
        header, tensors = json.loads(meta["header"]), load(message)
    except Exception as error:  # the parsers of JSON and safetensors raise a dozen kinds of errors
        raise BadInput(f"a message of {len(message)} bytes cannot be read: {error}") from error
    if meta.get("version") != VERSION:
        raise BadInput(f"a message has version {meta.get('version')!r}; this side speaks {VERSION!r}")
    return header, tensors


def _ranges(part: Part | None) -> list[tuple[int, int]] | None:
    return None if part is None else list(part.ranges)


def _part(ranges: list[list[int]] | None) -> Part | None:
    return None if ranges is None else Part.of((a, b) for a, b in ranges)


def _plain(value: Any) -> Any:
    if isinstance(value, Scored):
        counts = {name: getattr(value, name).tolist() for name in ("actual", "predicted", "correct")}
        return {"scored": value.loss, **counts}
    return value


def _rich(value: Any) -> Any:
    if isinstance(value, dict) and "scored" in value:
        counts = (np.array(value[name], np.int64) for name in ("actual", "predicted", "correct"))
        return Scored(value["scored"], *counts)
    return value
