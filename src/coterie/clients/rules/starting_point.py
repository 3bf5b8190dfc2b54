"""Which model a client began to train from, and how far it moved: seen from what it was sent and what it sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, isnan

import torch
from torch import Tensor

from coterie.clients.rules.rule import Answer, Item, Order

TRAINED = ("initial", "models", "model", "base", "heads", "head")
"""Names under which methods send what clients then train; a later one lies over those before."""

_BLOCK = 1 << 16
"""Columns whose difference stays in a processor's cache."""


def find_start(sent: Sequence[Mapping[str, Item]], model: Tensor, choice: float | None = None) -> Tensor | None:
    """Return the model that a client began with, NaN in columns that it was not sent; None where it was sent none.

    Of several models it is the one that the client says it chose; where it says nothing, the one nearest to what it
    uploads. The result may be memory of what was sent, and is not to be written to.

    Args:
        sent: what the client was sent in this exchange and in those of the round before it, earliest first.
        model: what it uploads `[P]`, NaN in columns that did not cross.
        choice: which of several models it says it chose.
    """
    start: Tensor | None = None
    for items in sent:
        for name in TRAINED:
            if (item := items.get(name)) is None or (item.part is None and item.values.shape[-1:] != model.shape):
                continue  # a rule of somebody's own may give the name to something else
            values = item.values if item.values.dim() == 1 else _pick(item, model, choice)
            if item.part is None:
                start = values
            else:
                start = torch.full_like(model, torch.nan) if start is None else start.clone()
                item.part.put(start, values)
    return start


def _pick(item: Item, model: Tensor, choice: float | None) -> Tensor:
    """Return the one `[size]` of several models `[k, size]` that a client trained."""
    if choice is not None:
        return item.values[min(max(int(choice), 0), len(item.values) - 1)]
    away = item.values - (model if item.part is None else item.part.take(model))
    return item.values[away.nan_to_num(0.0).norm(dim=1).argmin()]


def measure_update(order: Order, answer: Answer, name: str) -> float:
    """Return the length of what crosses of an upload, less what it began as where it is a model.

    It is finite only where all that crosses is; one that float32 does not hold is infinite.
    """
    values, part = answer.uploads[name], order.upload_part.get(name)
    crossing, start = values if part is None else part.take(values), None
    if name == "model":
        model = values if part is None else part.copy(torch.full_like(values, torch.nan), values)
        start = find_start(order.sent, model, answer.numbers.get("choice"))
    if start is None:
        return float(torch.linalg.vector_norm(crossing))
    begun = start if part is None else part.take(start)
    length = _distance(crossing, begun)
    return _distance(crossing, begun.nan_to_num(0.0)) if isnan(length) else length  # what was not sent began as 0


def _distance(one: Tensor, other: Tensor) -> float:
    """Return the Euclidean distance, block by block, without new memory for a whole difference."""
    pairs = zip(torch.split(one, _BLOCK), torch.split(other, _BLOCK), strict=True)
    return float(torch.tensor(hypot(*(float(torch.linalg.vector_norm(a - b)) for a, b in pairs))))
