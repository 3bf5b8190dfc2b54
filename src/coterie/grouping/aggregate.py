"""How models are averaged: over everybody, inside groups, without the extremes, or in mixtures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

SUMMED_COLUMNS = 1 << 17
"""Columns summed at a time: 1 MB of float64."""

_NARROW_NUMBERS = 1 << 14
"""Numbers of narrow models taken to float64 at once."""


def group_means(
    models: Tensor, groups: NDArray[np.int64], previous: Tensor, weights: ArrayLike | None = None
) -> Tensor:
    """The weighted mean of each group's models.

    Args:
        models: `[r, P]`, rows in ascending client id.
        groups: the group of each row `[r]`, 0 … K-1; rows with -1 count nowhere.
        previous: `[K, P]`; a group without members keeps its row (docs/methods/conventions.md, convention 7).
        weights: `[r]`, positive; uniform where not given.

    Returns:
        A new matrix `[K, P]`, float32. Sums are taken in float64, row after row (convention 3), so the result
        depends neither on threads nor on how a matrix product would order its additions.
    """
    means = previous.clone()
    share = np.ones(len(groups)) if weights is None else np.asarray(weights, np.float64)
    order = np.argsort(groups, kind="stable")
    ends = np.searchsorted(groups[order], np.arange(len(previous) + 1))
    counted = []
    for k in range(len(previous)):
        members = order[ends[k] : ends[k + 1]]
        total = float(share[members].sum())
        if total > 0:
            counted.append((k, members, (share[members] / total).tolist()))
    for start in range(0, models.shape[1], SUMMED_COLUMNS):
        columns = slice(start, start + SUMMED_COLUMNS)
        for k, members, shares in counted:
            mean = torch.zeros(means[k, columns].shape, dtype=torch.float64)
            for row, alpha in zip(_rows(models[:, columns], members), shares, strict=True):
                mean.add_(row, alpha=alpha)
            means[k, columns] = mean
    return means


def _rows(models: Tensor, members: NDArray[np.int64]) -> Iterator[Tensor]:
    """The members' rows one by one; many narrow ones are taken to float64 together, which is faster."""
    block = _NARROW_NUMBERS // max(models.shape[1], 1)
    if block < 2:
        yield from (models[i] for i in members.tolist())
        return
    for at in range(0, len(members), block):
        yield from models[torch.from_numpy(members[at : at + block])].double()


def mean(models: Tensor, previous: Tensor, weights: ArrayLike | None = None) -> Tensor:
    """The weighted mean of all models `[r, P]`, or `previous` `[1, P]` where there are none; `[1, P]`."""
    return group_means(models, np.zeros(len(models), np.int64), previous, weights)


SORTED_COLUMNS = 1 << 18
"""Columns sorted at a time."""


def trimmed_means(models: Tensor, groups: NDArray[np.int64], previous: Tensor, trim: float) -> Tensor:
    """The coordinate-wise trimmed mean of each group's models (Yin et al., 2018; docs/methods/robust-tkm.md).

    In every column the `floor(trim r)` smallest and as many largest of a group's r values are left out. A group
    too small to lose any has its plain mean, bit for bit that of `group_means`.

    Args:
        models: `[r, P]`, rows in ascending client id.
        groups: the group of each row `[r]`, 0 … K-1; rows with -1 count nowhere.
        previous: `[K, P]`; a group without members keeps its row.
        trim: the share left out on each side, at least 0 and below 0.5.

    Returns:
        A new matrix `[K, P]`, float32; sums are taken in float64.
    """
    sizes = np.bincount(groups[groups >= 0], minlength=len(previous))
    cuts = trimmed_count(sizes, trim)
    plain = np.where(np.isin(groups, np.flatnonzero(cuts)), -1, groups)
    means = group_means(models, plain, previous)
    for k in np.flatnonzero(cuts):
        cut, kept = int(cuts[k]), int(sizes[k] - 2 * cuts[k])
        members = torch.from_numpy(np.flatnonzero(groups == k))
        for start in range(0, models.shape[1], SORTED_COLUMNS):
            columns = slice(start, start + SORTED_COLUMNS)
            ordered = torch.from_numpy(np.sort(models[members, columns].numpy(), axis=0))
            mean = torch.zeros(ordered.shape[1], dtype=torch.float64)
            for row in ordered[cut : cut + kept]:
                mean.add_(row, alpha=1 / kept)
            means[k, columns] = mean
    return means


def trimmed_count(sizes: NDArray[np.int64], trim: float) -> NDArray[np.int64]:
    """How many of `sizes` `[k]` values are left out on each side: `floor(trim size)`."""
    # 0.29 * 100 is a little less than 29 in binary.
    return np.asarray(np.floor(trim * sizes + 1e-9), np.int64)


_MIXED_COLUMNS = 1 << 20
"""Columns summed at a time: 8 MB of float64."""
_MULTIPLIED_COLUMNS = 1 << 13
"""Columns multiplied at a time: of a hundred models, some 6 MB of float64."""


def mix_models(coefficients: NDArray[np.float64], models: Tensor) -> Tensor:
    """`sum_j coefficients[k, j] models[j]` for every k.

    Args:
        coefficients: `[K, r]`; rows that sum to 1 are weighted means (docs/methods/conventions.md).
        models: `[r, P]`, rows in ascending client id.

    Returns:
        A new matrix `[K, P]`, float32. Sums are taken in float64, row after row, and models with the coefficient 0
        are left out (docs/methods/conventions.md, convention 3): with the weights of a group's members, a mix is to
        the bit the mean that `group_means` takes. Several mixes of many models are one product of matrices, which
        may sum in another order.
    """
    _, first, which = np.unique(coefficients, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)  # as they come: where no mix comes twice, what is found is what is asked for
    rows, which = coefficients[first[order]], np.argsort(order)[which.ravel()]  # NumPy 2.0.0 gives a column
    found = torch.empty(len(rows), models.shape[1])
    taken = np.count_nonzero(rows)  # as many additions, each some eight times as dear as one in a product
    dense = taken > max(2 * rows.shape[1], rows.size / 8)
    size = _MULTIPLIED_COLUMNS if dense else _MIXED_COLUMNS
    for start in range(0, models.shape[1], size):
        tile, into = models[:, start : start + size], found[:, start : start + size]
        if dense:
            into.copy_(torch.from_numpy(rows) @ tile.double())
        if not dense or not torch.isfinite(into).all():  # 0 times what is not finite: that model is left out
            _row_after_row(rows, tile, into)
    return found if len(rows) == len(coefficients) else found[torch.from_numpy(which)]


def _row_after_row(coefficients: NDArray[np.float64], models: Tensor, into: Tensor) -> None:
    for row, shares in zip(into, coefficients, strict=True):
        total = torch.zeros(len(row), dtype=torch.float64)
        for j in np.flatnonzero(shares):
            total.add_(models[j], alpha=float(shares[j]))
        row.copy_(total)
