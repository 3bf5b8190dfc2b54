"""What crosses between server and clients: a method asks, a runtime answers.

An exchange says, per client, which rows of which matrix it is sent and which part of them, which rule it
runs, and which part of what it made comes back. Replies are matrices over the clients that answered.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rules.rule import Item, Order, Rule
from coterie.grouping.exact_sums import ExactSums, Reduce
from coterie.models.layout import Part

S = TypeVar("S")
Ids = NDArray[np.int64]
"""Clients by number, `[m]`, ascending."""
Parts = Part | Sequence[Part] | None
"""A part for everybody, one for each client of the exchange, or None for all columns."""
Key = tuple[Any, ...]
"""Which memory, seen how, which rows of it and which part."""


@dataclass(frozen=True, eq=False)
class Send:
    """Rows of `matrix` `[K, P]`: `rows` is `[m]` (one each, -1 for nothing) or `[m, k]` (k each, -1 likewise).

    Raises:
        ValueError: `matrix` is not a float32 matrix, or `rows` names a row that it does not have.
    """

    matrix: Tensor
    rows: Ids
    part: Parts = None
    """Which columns cross, for everybody or for each client; all by itself."""

    def __post_init__(self) -> None:
        # Processes and messages carry float32 only; another type would give other digits in one process.
        if self.matrix.dtype != torch.float32 or self.matrix.dim() != 2:
            shape = tuple(self.matrix.shape)
            raise ValueError(
                f"what is sent is {self.matrix.dtype} of shape {shape}; it must be torch.float32 [K, P]"
            )
        rows = self.rows
        if rows.ndim not in (1, 2) or not np.issubdtype(rows.dtype, np.integer):
            raise ValueError(f"rows are {rows.dtype} of shape {rows.shape}; they must be integers [m] or [m, k]")
        if rows.size and not -1 <= rows.min() <= rows.max() < len(self.matrix):
            raise ValueError(
                f"rows go from {rows.min()} to {rows.max()}; they must be rows of a matrix of {len(self.matrix)}, "
                "or -1 for nothing"
            )

    @classmethod
    def all(cls, matrix: Tensor, clients: Ids, part: Parts = None) -> Send:
        """Send every row of `matrix` `[r, P]` to every client."""
        return cls(matrix, np.tile(np.arange(len(matrix)), (len(clients), 1)), part)

    @classmethod
    def same(cls, vector: Tensor, clients: Ids, part: Parts = None) -> Send:
        """Send one vector `[P]` to every client."""
        return cls(vector[None], np.zeros(len(clients), np.int64), part)

    def item(self, position: int, made: dict[Key, Item] | None = None) -> Item | None:
        """Return what the client at `position` of the exchange is sent, or None.

        `made` holds the items made so far: equal rows of equal parts are one item, and one piece of memory.
        """
        return self._item(self.rows[position], _part(self.part, position), {} if made is None else made)

    def items(self, made: dict[Key, Item]) -> list[Item | None]:
        """Return what every client of the exchange is sent, as `item` does."""
        if self.rows.ndim > 1 or not (self.part is None or isinstance(self.part, Part)):
            return [self.item(position, made) for position in range(len(self.rows))]
        # One row each and one part for all: each distinct row is looked up once.
        distinct, which = np.unique(self.rows, return_inverse=True)
        found = [self._item(row, self.part, made) for row in distinct]
        return [found[i] for i in which.tolist()]

    def _item(self, row: Ids, part: Part | None, made: dict[Key, Item]) -> Item | None:
        if np.any(row < 0):
            return None
        # The address is not enough: several matrices may view one memory, and a row may be `[size]` or
        # `[1, size]`.
        memory = (self.matrix.data_ptr(), self.matrix.shape[1:], self.matrix.stride())
        key: Key = (*memory, row.shape, row.tobytes(), part)
        if key not in made:
            picked = self._picked(row)
            made[key] = Item(picked if part is None else part.take(picked), part, key)
        return made[key]

    def _picked(self, row: Ids) -> Tensor:
        if row.ndim == 0:
            return self.matrix[int(row)]
        if np.array_equal(row, np.arange(len(self.matrix))):
            return self.matrix  # all rows: a view, not a copy
        return self.matrix[torch.as_tensor(row)]


@dataclass(frozen=True, eq=False)
class Exchange:
    """One question to some clients.

    Attributes:
        clients: their ids, ascending.
        rule: what each of them runs.
        send: what each of them is sent, by name.
        settings: numbers that steer the rule, one a client `[m]`, by name; like the rule's own settings they are
            part of the order and not counted as traffic.
        upload_part: which part of each uploaded vector crosses, by name; without it, all of it.
        reduce: of which uploads only means are wanted, by name. A runtime may bring sums or rows, to the same bits
            (see `Aggregator.centres`).

    Raises:
        ValueError: something is not there once for each client, or `upload_part` or `reduce` names no upload of the
            rule.
    """

    clients: Ids
    rule: Rule
    send: Mapping[str, Send] = field(default_factory=dict)
    settings: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    upload_part: Mapping[str, Parts] = field(default_factory=dict)
    reduce: Mapping[str, Reduce] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {f"send[{name!r}].rows": len(send.rows) for name, send in self.send.items()}
        lengths |= {f"settings[{name!r}]": len(values) for name, values in self.settings.items()}
        parts = {f"send[{name!r}].part": send.part for name, send in self.send.items()}
        parts |= {f"upload_part[{name!r}]": part for name, part in self.upload_part.items()}
        lengths |= {what: len(part) for what, part in parts.items() if isinstance(part, Sequence)}
        for what, length in lengths.items():
            if length != len(self.clients):
                raise ValueError(f"{what} has the length {length}; it must be that of clients, {len(self.clients)}")
        for key, names in (("upload_part", self.upload_part), ("reduce", self.reduce)):
            for name in names:
                if name not in self.rule.uploads:
                    raise ValueError(
                        f"{key} names {name!r}; it must be one of the rule's uploads, {self.rule.uploads}"
                    )

    def orders(self, round: int) -> list[Order]:
        """Return the order for each client. Equal items of several orders are one item, once in memory."""
        made: dict[Key, Item] = {}
        items = {name: send.items(made) for name, send in self.send.items()}
        settings = {name: np.asarray(values, np.float64).tolist() for name, values in self.settings.items()}
        return [
            Order(
                client,
                round,
                self.rule,
                {name: item for name, each in items.items() if (item := each[position]) is not None},
                {name: values[position] for name, values in settings.items()},
                {n: part for n, some in self.upload_part.items() if (part := _part(some, position)) is not None},
                reduce=self.reduce,
            )
            for position, client in enumerate(self.clients.tolist())
        ]


@dataclass(frozen=True, eq=False)
class Summed:
    """An upload that was added up near the clients.

    Attributes:
        sums: of each group, without the rows.
        rows: the positions among the replies of those whose upload came by itself `[c]`.
        models: their uploads `[c, P]`.
    """

    sums: ExactSums
    rows: NDArray[np.int64]
    models: Tensor


@dataclass(frozen=True, eq=False)
class Replies:
    """What came back: rows are the clients that answered, in ascending id; any subset, also the empty one.

    Attributes:
        clients: their ids `[r]`.
        samples: their numbers of training samples `[r]`.
        uploads: vectors by name, `[r, P]`, or `[r, *shape]` where the rule gives an upload another shape.
            Columns outside the part that crossed are NaN, so that using one by mistake shows at once.
            One that was added up is not here.
        numbers: scalars by name, `[r]`; NaN where a client did not give one.
        report: measurements by name, one entry a client.
        missing: why the others did not answer, by client id.
        sketches: `[r, width]` of the trainable part of the model that each client sent, 0 standing for what did not
            cross (see `models.sketch.Sketch`); of the model that it keeps where it sends none. None where the
            rule neither sends nor keeps a model.
        update_lengths: of each upload `[r]`, of a model less the one that the client was sent, by name.
        sums: the uploads that were added up near the clients, by name.
    """

    clients: Ids
    samples: Ids
    uploads: Mapping[str, Tensor]
    numbers: Mapping[str, NDArray[np.float64]]
    report: Mapping[str, list[Any]]
    missing: Mapping[int, str]
    sketches: Tensor | None = None
    update_lengths: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    sums: Mapping[str, Summed] = field(default_factory=dict)

    @property
    def models(self) -> Tensor:
        """The clients' models `[r, P]`."""
        return self.uploads["model"]

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True, eq=False)
class Outputs:
    """A question to the server's own machines: softmax outputs of every row of `models` `[n, P]` on `inputs`.

    The logits are divided by `temperature` first. Answered by a tensor `[n, samples, classes]`. Nothing crosses
    and no client takes part.
    """

    models: Tensor
    inputs: Tensor
    temperature: float = 1.0


@dataclass(frozen=True, eq=False)
class Log:
    """Numbers for the run's log: one, or one for each of several things (`{"conv1": 0.3, "fc1": 0.1}`).

    Answered by None. They are kept with the round and drawn on the report page; nothing depends on them.
    """

    name: str
    """Under which name the run's log has it."""
    values: float | Mapping[str, float]
    """One number, or one for each of several things."""


@dataclass(frozen=True, eq=False)
class LogGap:
    """How well a matrix `[r, r]` between `clients` tells the true groups apart, for runs that know them.

    Logged as `gap1` for similarities and as `gap2` for distances, of `of` (see `affinity.gap`). The
    method learns nothing of the groups: answered by None.
    """

    of: str
    clients: Ids
    matrix: NDArray[np.float64]
    kind: Literal["similarity", "distance"]
    """What the matrix holds."""


Ask = Exchange | Outputs | Log | LogGap
Exchanges = Generator[Ask, Any, S]
"""What a method has with clients: it yields asks, receives `Replies`, a tensor or None, and returns its result."""


def _part(parts: Parts, position: int) -> Part | None:
    return parts if parts is None or isinstance(parts, Part) else parts[position]
