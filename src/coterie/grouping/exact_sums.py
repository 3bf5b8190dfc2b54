"""Weighted sums of models as whole numbers, so that no order of addition changes a bit of them.

A model times its weight is rounded to multiples of one power of two, and 64-bit integers add these up: to the same
bits wherever it is done, in parts, by processes, machines or trees of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import frexp, isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.models.layout import Part

BOUND = 256.0
"""The largest absolute value of a model that a sum takes. A larger one is added to the mean by itself."""

SIGNAL_BOUND = 64.0
"""The same of what is no model, whose values are often small: of them more digits count."""

TABLE_ROWS = 2
"""Rows that take as much memory as the sum of one group, whose numbers have twice the bytes."""

_SUM_BITS = 62
"""Bits of the largest sum: integers of 64 bits never wrap."""

_TERM_BITS = 51
"""Bits of the largest term: added to `_MAGIC` it is rounded to a whole number, which the bits of the sum end in."""

_MAGIC = 1.5 * 2.0**52
_MAGIC_BITS = int(np.float64(_MAGIC).view(np.int64))

_BLOCK_NUMBERS = 1 << 17
"""Numbers taken to integers at a time: 1 MB."""


@dataclass(frozen=True)
class Grid:
    """The power of two to whose multiples `weight * value` is rounded; sums in one grid have the same bits.

    Attributes:
        total: the most that all who may be added weigh.
        heaviest: the most that one of them weighs.
        bound: the largest absolute value.
    """

    total: float
    heaviest: float
    bound: float = BOUND

    @classmethod
    def for_weights(cls, weights: NDArray[Any], bound: float = BOUND) -> Grid:
        """The finest grid for these weights `[r]`."""
        return cls(float(weights.sum()), float(weights.max(initial=0)), bound)

    @property
    def step(self) -> float:
        """That power of two."""
        total, heaviest, bound = (frexp(value)[1] for value in (self.total, self.heaviest, self.bound))
        return float(2.0 ** (bound + max(total - _SUM_BITS, heaviest - _TERM_BITS)))

    def holds(self, weights: NDArray[Any]) -> bool:
        """Return whether weights `[r]`, or each row of them, are whole numbers that this grid is for."""
        if not weights.size:
            return True
        return bool(
            weights.max() <= self.heaviest and weights.sum(-1).max() <= self.total and not (weights % 1).any()
        )


@dataclass(frozen=True, eq=False)
class Reduce:
    """That of what clients send only weighted means by group are wanted, so that it may be added up near them.

    Attributes:
        clients: who is asked `[m]`, in any order.
        weights: of each of them `[m]`, whole positive numbers.
        groups: of each of them `[m]`, 0 … count - 1, or the name of the number by which each client tells its own;
            None where each sends `[K, P]`, a model for every group.
        count: the number of groups K.
        is_model: whether models are sent; what is none, as a gradient, has a finer grid, and no server optimizer
            steps by it.
        row_limit: the length of an update above which it is wanted by itself; all are until a run says that it
            can do without.
        of_run: the grid of all who may ever be asked, where it is known.
        part: the columns that cross, all without one; a runtime sets it.

    Raises:
        ValueError: weights or groups are not there once for each client, or a weight is no whole number.
    """

    clients: NDArray[np.int64]
    weights: NDArray[np.int64]
    groups: NDArray[np.int64] | str | None
    count: int = 1
    is_model: bool = True
    row_limit: float = 0.0
    of_run: Grid | None = None
    part: Part | None = None

    def __post_init__(self) -> None:
        for name, values in (("weights", self.weights), ("groups", self.groups)):
            if values is None or isinstance(values, str):
                continue
            if len(values) != len(self.clients):
                raise ValueError(
                    f"{name} has the length {len(values)}; it must be that of clients, {len(self.clients)}"
                )
            if not np.issubdtype(values.dtype, np.integer):
                raise ValueError(f"{name} is {values.dtype}; it must be whole numbers")

    @classmethod
    def mean(
        cls, clients: NDArray[np.int64], weights: NDArray[np.int64] | None = None, is_model: bool = True
    ) -> Reduce:
        """One mean of all clients `[m]`; uniform without weights `[m]`."""
        return cls(clients, _ones_unless(weights, clients), np.zeros(len(clients), np.int64), is_model=is_model)

    @classmethod
    def by_choice(cls, clients: NDArray[np.int64], count: int, weights: NDArray[np.int64] | None = None) -> Reduce:
        """A mean of those clients of `[m]` who choose it, for each of `count` models; uniform without weights."""
        return cls(clients, _ones_unless(weights, clients), "choice", count)

    def together(self) -> Reduce:
        """Return the same for one mean of all groups."""
        return replace(self, groups=np.zeros(len(self.clients), np.int64), count=1)

    @property
    def grid(self) -> Grid:
        """In which they are added: the same, whoever answers."""
        if self.is_model:
            return Grid.for_weights(self.weights) if self.of_run is None else self.of_run
        return Grid.for_weights(self.weights, SIGNAL_BOUND)

    @property
    def table_rows(self) -> int:
        """How many clients' rows take as much memory as the sums."""
        return TABLE_ROWS * (1 if self.groups is None else self.count)

    def weights_of(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the weights of what some of the clients `[r]` send, one model after the other."""
        return self.weights[self._places(clients)].repeat(self.count if self.groups is None else 1)

    def groups_of(
        self, clients: NDArray[np.int64], numbers: Mapping[str, NDArray[np.float64]]
    ) -> NDArray[np.int64]:
        """Return the groups of what some of the clients `[r]` send, who answered with `numbers`; likewise."""
        if self.groups is None:
            return np.tile(np.arange(self.count), len(clients))
        if isinstance(self.groups, str):
            return numbers.get(self.groups, np.empty(0)).astype(np.int64)
        return self.groups[self._places(clients)]

    def _places(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        order = np.argsort(self.clients)
        return order[np.searchsorted(self.clients, clients, sorter=order)]


def _ones_unless(weights: NDArray[np.int64] | None, clients: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.ones(len(clients), np.int64) if weights is None else weights


class ExactSums:
    """The weighted sum of each of K groups of models, with how many they are and what they weigh.

    The sum of one model is that model, as it came.

    Args:
        table: int64 `[K, P + 2]`, where the sums lie, each with its weight and the number of its models behind it.
            With one model there are the bits of its float32 values; with none the sum is empty, whatever else is
            there.
        reduce: who may be added, and counts how much. Only sums for one of these can be added to each other.
    """

    def __init__(self, table: Tensor, reduce: Reduce) -> None:
        self.table = table
        self.reduce = reduce
        self._step = reduce.grid.step

    @classmethod
    def empty(cls, columns: int, reduce: Reduce) -> ExactSums:
        """Sums of nothing, of models with so many columns, or of a part of them."""
        columns = columns if reduce.part is None else reduce.part.size
        return cls(torch.zeros(reduce.count, columns + 2, dtype=torch.int64), reduce)

    def clear(self) -> None:
        """Empty all sums."""
        self.table[:, -1] = 0

    def count(self, group: int) -> int:
        """Return how many models a group's sum holds."""
        return int(self.table[group, -1])

    def weight(self, group: int) -> int:
        """Return what they weigh together."""
        return int(self.table[group, -2]) if self.count(group) else 0

    def multiples(self, group: int) -> Tensor:
        """Return the sum of several models, in steps of the grid `[P]`."""
        return self.table[group, :-2]

    def model(self, group: int) -> Tensor:
        """Return the only model of a group `[P]`."""
        return self.multiples(group).view(torch.float32)[: self.table.shape[1] - 2]

    def add(self, group: int, models: Sequence[Tensor], weights: Sequence[int]) -> None:
        """Add models `[P]`, of values up to `BOUND`, to a group's sum.

        With those that are there already they weigh at most as much as all who may be added.
        """
        if not models:
            return
        count, weight = self.count(group), self.weight(group)
        if count == 1:
            models, weights = [self.model(group).clone(), *models], [weight, *weights]
            count, weight = 0, 0
        if not count and len(models) == 1:
            self.model(group).copy_(models[0])
        else:
            sums, scale, is_empty = self.multiples(group), scales(weights, self._step), not count
            for columns, block in blocks(as_matrix(models)):
                found = sum_multiples(block, scale)
                if is_empty:
                    sums[columns] = found
                else:
                    sums[columns].add_(found)  # `+=` would also write the sum over itself
        self.table[group, -2], self.table[group, -1] = weight + sum(weights), count + len(models)

    def together(self) -> ExactSums:
        """Return the one sum of all groups."""
        whole = ExactSums.empty(self.table.shape[1] - 2, replace(self.reduce.together(), part=None))
        for row in self.table:
            whole.add_sums(ExactSums(row[None], whole.reduce))
        return whole

    def add_sums(self, other: ExactSums) -> None:
        """Add the sums of other models."""
        for group in range(len(self.table)):
            sums, more = self.table[group], other.table[group]
            if not other.count(group):
                continue
            if not self.count(group):
                sums.copy_(more)
            elif other.count(group) == 1:
                self.add(group, [other.model(group)], [other.weight(group)])
            else:
                if self.count(group) == 1:  # its multiples first, on top of the other sum
                    alone, weight = self.model(group).clone(), self.weight(group)
                    sums.copy_(more)
                    self.add(group, [alone], [weight])
                else:
                    sums.add_(more)


def scales(weights: Sequence[float] | NDArray[Any], step: float) -> Tensor:
    """Return by what models `[r, P]` are multiplied to count steps of a grid, float64 `[r, 1]`."""
    return torch.tensor(np.asarray(weights, np.float64) / step)[:, None]


def blocks(models: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield models `[r, P]` in blocks of columns that are taken to integers at a time."""
    size = max(1, _BLOCK_NUMBERS // max(len(models), 1))
    for start in range(0, models.shape[1], size):
        columns = slice(start, start + size)
        yield columns, models[:, columns]


def sum_multiples(block: Tensor, scale: Tensor) -> Tensor:
    """Return the sum of models `[r, c]`, each times its scale `[r, 1]` and rounded to an integer; int64 `[c]`."""
    rounded = block.double().mul_(scale).add_(_MAGIC).view(torch.int64)
    total = rounded[0] if len(rounded) == 1 else rounded.sum(0)
    excess = len(rounded) * _MAGIC_BITS
    return total.sub_((excess + 2**63) % 2**64 - 2**63)  # both wrap alike


def as_matrix(models: Sequence[Tensor]) -> Tensor:
    """Return models `[P]` as a matrix, without a copy where they are rows of one at equal distances."""
    first, size = models[0], models[0].numel()
    places = {model.untyped_storage().data_ptr() for model in models}
    offsets = [model.storage_offset() for model in models]
    step = offsets[1] - offsets[0] if len(models) > 1 else size
    even = step >= size and all(b - a == step for a, b in pairwise(offsets))
    if len(places) == 1 and even and all(model.is_contiguous() for model in models):
        return first.as_strided((len(models), size), (step, 1))
    return torch.stack(list(models))


def largest(models: Tensor) -> float:
    """Return the largest finite absolute value of models `[r, P]`; 0 without any."""
    if not models.numel():
        return 0.0
    found = max(abs(float(end)) for end in torch.aminmax(models))
    if isfinite(found):
        return found
    return float(models.nan_to_num(0.0, 0.0, 0.0).abs().max())
