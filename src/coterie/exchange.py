"""What crosses between server and clients: a method asks, a runtime answers.

An exchange says, per client, which rows of which matrix it is sent and which part of them, which rule it
runs, and which part of what it made comes back. Replies are matrices over the clients that answered.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rule import Item, Order, Rule
from coterie.models.layout import Part

S = TypeVar("S")
Ids = NDArray[np.int64]
Parts = Part | Sequence[Part] | None
"""A part for everybody, one for each client of the exchange, or None for all columns."""


@dataclass(frozen=True, eq=False)
class Send:
    """Rows of `matrix` `[K, P]`: `rows` is `[m]` (one each, -1 for nothing) or `[m, k]` (k each, -1 likewise)."""

    matrix: Tensor
    rows: Ids
    part: Parts = None

    @classmethod
    def all(cls, matrix: Tensor, clients: Ids, part: Parts = None) -> Send:
        """Every row of `matrix` to every client."""
        return cls(matrix, np.tile(np.arange(len(matrix)), (len(clients), 1)), part)

    @classmethod
    def same(cls, vector: Tensor, clients: Ids, part: Parts = None) -> Send:
        """One vector `[P]` to every client."""
        return cls(vector[None], np.zeros(len(clients), np.int64), part)

    def item(self, position: int) -> Item | None:
        """What the client at `position` of the exchange is sent, or None."""
        row = self.rows[position]
        if np.any(row < 0):
            return None
        part = _part(self.part, position)
        # Where the rows begin is not enough: one memory may be seen as several matrices, and one row as `[size]`
        # or as `[1, size]`.
        key = (self.matrix.data_ptr(), self.matrix.shape[1:], self.matrix.stride(), row.ndim, *row.flat, part)
        if row.ndim == 0:
            picked = self.matrix[int(row)]
        elif np.array_equal(row, np.arange(len(self.matrix))):
            picked = self.matrix  # all rows: a view, not a copy per client
        else:
            picked = self.matrix[torch.as_tensor(row)]
        return Item(picked if part is None else part.take(picked), part, key)


@dataclass(frozen=True, eq=False)
class Exchange:
    """One question to some clients.

    Attributes:
        clients: their ids, ascending.
        rule: what each of them runs.
        send: what each of them is sent, by name.
        tell: numbers that steer the rule, one a client `[m]`, by name; like the rule's settings they are part of
            the order and not counted as traffic.
        back: which part of each sent-back vector crosses, by name; everything where nothing is said.
    """

    clients: Ids
    rule: Rule
    send: Mapping[str, Send] = field(default_factory=dict)
    tell: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    back: Mapping[str, Parts] = field(default_factory=dict)

    def order(self, position: int, round: int) -> Order:
        """The order for the client at `position`."""
        items = {name: send.item(position) for name, send in self.send.items()}
        back = {name: _part(part, position) for name, part in self.back.items()}
        return Order(
            int(self.clients[position]),
            round,
            self.rule,
            {name: item for name, item in items.items() if item is not None},
            {name: float(values[position]) for name, values in self.tell.items()},
            {name: part for name, part in back.items() if part is not None},
        )


@dataclass(frozen=True, eq=False)
class Replies:
    """What came back: rows are the clients that answered, in ascending id; any subset, also the empty one.

    Attributes:
        clients: their ids `[r]`.
        samples: their numbers of training samples `[r]`.
        sent: vectors by name, `[r, P]`. Columns outside the part that crossed are NaN, so that using one by
            mistake shows at once.
        numbers: scalars by name, `[r]`; NaN where a client did not give one.
        report: measurements by name, one entry a client.
        missing: why the others did not answer, by client id.
    """

    clients: Ids
    samples: Ids
    sent: Mapping[str, Tensor]
    numbers: Mapping[str, NDArray[np.float64]]
    report: Mapping[str, list[Any]]
    missing: Mapping[int, str]

    @property
    def models(self) -> Tensor:
        """The clients' models `[r, P]`."""
        return self.sent["model"]

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True, eq=False)
class Outputs:
    """A question to the server's own machines: softmax outputs of every row of `models` `[n, P]` on `inputs`.

    Answered by a tensor `[n, samples, classes]`. Nothing crosses and no client takes part.
    """

    models: Tensor
    inputs: Tensor


Ask = Exchange | Outputs
Round = Generator[Ask, Any, S]
"""A round of a method: yields asks, receives `Replies` or a tensor, returns the new state."""


def _part(parts: Parts, position: int) -> Part | None:
    return parts if parts is None or isinstance(parts, Part) else parts[position]
