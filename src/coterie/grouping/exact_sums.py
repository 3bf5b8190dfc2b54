"""Weighted sums of models that are exact, so that no order of addition changes a bit of them.

A value is split into two numbers, each a multiple of a power of two so coarse that float64 holds every sum of them
without rounding (Demmel and Nguyen, "Fast reproducible floating-point summation", 2013; here with two folds). So
sums may be taken anywhere and in parts, by processes, machines or trees of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BOUND = 2.0**10
"""The largest absolute value that a sum takes. A model with a larger one is added to the mean by itself."""

MOST_WEIGHT = 2.0**32
"""Total weight up to which values are split finely enough: then to multiples of 2^-39, of 2^-67 up to 2^14."""

LARGE_COHORT_BYTES = 1 << 26
"""Bytes of the models of all who are asked above which they are added up: 64 MiB. Exact sums take some three times
as long as the mean of rows; they pay where the rows would take much memory."""

_BLOCK_NUMBERS = 1 << 17
"""Numbers taken to float64 at a time: 1 MB, twice."""


@dataclass(frozen=True)
class Grid:
    """The two powers of two whose multiples a value is split into.

    With `total` weight the sums of the multiples are below 2^53 of them.
    """

    total: float

    @property
    def coarse(self) -> float:
        """The larger one."""
        return float(2.0 ** (self._exponent + np.log2(BOUND) - 52))

    @property
    def fine(self) -> float:
        """The smaller one, of which the rests are multiples."""
        return float(self.coarse * 2.0 ** (self._exponent - 53))

    @property
    def _exponent(self) -> int:
        return int(np.ceil(np.log2(max(self.total, 2.0)))) + 1


@dataclass(frozen=True, eq=False)
class Reduce:
    """That of what clients send only weighted means by group are wanted, so that it may be added up near them.

    Attributes:
        clients: who is asked `[m]`, in any order.
        weights: of each of them `[m]`, whole positive numbers.
        groups: of each of them `[m]`, 0 … count - 1, or the name of the number by which each client tells its own.
        count: the number of groups K.
        row_limit: the length of an update above which it is wanted by itself.

    Raises:
        ValueError: weights or groups are not there once for each client, or a weight is no whole number.
    """

    clients: NDArray[np.int64]
    weights: NDArray[np.int64]
    groups: NDArray[np.int64] | str
    count: int = 1
    row_limit: float = float("inf")

    def __post_init__(self) -> None:
        for name, values in (("weights", self.weights), ("groups", self.groups)):
            if isinstance(values, str):
                continue
            if len(values) != len(self.clients):
                raise ValueError(
                    f"{name} has the length {len(values)}; it must be that of clients, {len(self.clients)}"
                )
            if not np.issubdtype(values.dtype, np.integer):
                raise ValueError(f"{name} is {values.dtype}; it must be whole numbers")

    @classmethod
    def mean(cls, clients: NDArray[np.int64], weights: NDArray[np.int64] | None = None) -> Reduce:
        """One mean of all clients `[m]`; uniform without weights `[m]`."""
        return cls(clients, _ones_unless(weights, clients), np.zeros(len(clients), np.int64))

    @classmethod
    def by_choice(cls, clients: NDArray[np.int64], count: int, weights: NDArray[np.int64] | None = None) -> Reduce:
        """A mean of those clients of `[m]` who choose it, for each of `count` models; uniform without weights."""
        return cls(clients, _ones_unless(weights, clients), "choice", count)

    def is_exact(self, columns: int) -> bool:
        """Return whether the mean of models `[P]` of so many columns is taken by exact sums.

        It depends on who is asked alone, so that the means have the same bits wherever they are taken.
        """
        large = len(self.clients) * columns * 4 > LARGE_COHORT_BYTES
        return large and self.grid.total <= MOST_WEIGHT

    @property
    def grid(self) -> Grid:
        """How values are split: the same, whoever answers."""
        return Grid(float(self.weights.sum()))

    def weights_of(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the weights of some of the clients `[r]`."""
        return self.weights[self._places(clients)]

    def groups_of(
        self, clients: NDArray[np.int64], numbers: Mapping[str, NDArray[np.float64]]
    ) -> NDArray[np.int64]:
        """Return the groups of some of the clients `[r]`, who answered with `numbers`."""
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
        table: float64 `[K, 2, P + 1]`, where the sums lie. Of each group the first row holds the coarse part and
            its weight, the second one the fine part and the number of its models; with 0 models the sum is empty,
            whatever else is there.
        reduce: who may be added, and counts how much. Only sums for one of these can be added to each other.
    """

    def __init__(self, table: Tensor, reduce: Reduce) -> None:
        self.table = table
        self.reduce = reduce
        self._grid = reduce.grid

    @classmethod
    def empty(cls, columns: int, reduce: Reduce) -> ExactSums:
        """Sums of nothing."""
        return cls(torch.zeros(reduce.count, 2, columns + 1, dtype=torch.float64), reduce)

    def clear(self) -> None:
        """Empty all sums."""
        self.table[:, :, -1] = 0

    def count(self, group: int) -> int:
        """Return how many models a group's sum holds."""
        return int(self.table[group, 1, -1])

    def weight(self, group: int) -> float:
        """Return what they weigh together."""
        return float(self.table[group, 0, -1])

    def add(self, group: int, models: Sequence[Tensor], weights: Sequence[float]) -> None:
        """Add models `[P]`, of values up to `BOUND`, to a group's sum.

        With those that are there already they weigh at most as much as all who may be added.
        """
        if not models:
            return
        sums, count, weight = self.table[group], self.count(group), self.weight(group)
        if count == 1:
            models, weights = [sums[0, :-1].float(), *models], [weight, *weights]
            count, weight = 0, 0.0
        if not count and len(models) == 1:
            sums[0, :-1] = models[0]
        else:
            self._add_multiples(
                sums[:, :-1], models, torch.tensor(weights, dtype=torch.float64), is_empty=not count
            )
        sums[0, -1], sums[1, -1] = weight + sum(weights), count + len(models)

    def add_sums(self, other: ExactSums) -> None:
        """Add the sums of other models."""
        for group in range(len(self.table)):
            sums, more = self.table[group], other.table[group]
            if not self.count(group):
                sums.copy_(more)
            elif other.count(group) == 1:
                self.add(group, [more[0, :-1].float()], [other.weight(group)])
            elif other.count(group):
                if self.count(group) == 1:  # its multiples first, on top of the other sum
                    alone, weight = sums[0, :-1].float(), self.weight(group)
                    sums.copy_(more)
                    self.add(group, [alone], [weight])
                else:
                    sums.add_(more)

    def mean(self, group: int, others: Sequence[Tensor] = (), weights: Sequence[float] = ()) -> Tensor:
        """Return the mean `[P]`, float32, of a group's models and of `others` with values too large for a sum.

        These are added one after the other. There is at least one model.
        """
        sums, total = self.table[group], self.weight(group)
        if self.count(group) + len(others) == 1:
            return others[0].clone() if others else sums[0, :-1].float()
        match self.count(group):
            case 0:
                found = torch.zeros_like(sums[0, :-1])
            case 1:
                found = sums[0, :-1] * total
            case _:
                found = sums[0, :-1] + sums[1, :-1]
        for model, weight in zip(others, weights, strict=True):
            found.add_(model, alpha=weight)
            total += weight
        return found.div_(total).float()

    def _add_multiples(self, sums: Tensor, models: Sequence[Tensor], weights: Tensor, is_empty: bool) -> None:
        # Adding 1.5 * 2^52 multiples rounds to a multiple, and taking them away again is exact.
        matrix = as_matrix(models)
        coarse, fine = 1.5 * 2.0**52 * self._grid.coarse, 1.5 * 2.0**52 * self._grid.fine
        size = min(max(1, _BLOCK_NUMBERS // len(models)), sums.shape[1])
        room = torch.empty(2, len(models) * size, dtype=torch.float64)
        for start in range(0, sums.shape[1], size):
            columns = slice(start, start + size)
            block = matrix[:, columns]
            rest, large = room[:, : block.numel()].view(2, *block.shape)
            torch.add(rest.copy_(block), coarse, out=large).sub_(coarse)
            rest.sub_(large).add_(fine).sub_(fine)
            for fold, multiples in enumerate((large, rest)):
                if is_empty:
                    sums[fold, columns] = weights @ multiples
                else:
                    sums[fold, columns] += weights @ multiples


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


def exact_means(
    models: Tensor,
    groups: NDArray[np.int64],
    weights: NDArray[np.int64],
    previous: Tensor,
    sums: ExactSums,
) -> Tensor:
    """Return the weighted mean of each group's models, those here and those that `sums` holds.

    Args:
        models: `[r, P]`, rows in ascending client id.
        groups: the group of each row `[r]`, 0 … K-1; rows with -1 count nowhere.
        weights: `[r]`, whole positive numbers.
        previous: `[K, P]`; a group without models keeps its row.
        sums: `K` sums of other models. They take up the rows that are not too large.

    Returns:
        A new matrix `[K, P]`, float32. A mean of one model is that model.
    """
    means = previous.clone()
    for k in range(len(previous)):
        members = np.flatnonzero(groups == k).tolist()
        fits = [float(torch.linalg.vector_norm(models[i], torch.inf)) <= BOUND for i in members]  # not NaN
        small = [i for i, it_fits in zip(members, fits, strict=True) if it_fits]
        large = [i for i, it_fits in zip(members, fits, strict=True) if not it_fits]
        sums.add(k, [models[i] for i in small], weights[small].tolist())
        if sums.weight(k) + weights[large].sum() > 0:
            means[k] = sums.mean(k, [models[i] for i in large], weights[large].tolist())
    return means
