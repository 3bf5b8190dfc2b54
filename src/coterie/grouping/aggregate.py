"""How models are averaged: over everybody, inside groups, without the extremes, or in mixtures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.grouping.exact_sums import ExactSums, Grid, blocks, largest, scales, sum_multiples


def group_means(
    models: Tensor,
    groups: NDArray[np.int64],
    previous: Tensor,
    weights: ArrayLike | None = None,
    grid: Grid | None = None,
    sums: ExactSums | None = None,
) -> Tensor:
    """The weighted mean of each group's models.

    Args:
        models: `[r, P]`, rows in ascending client id.
        groups: the group of each row `[r]`, 0 … K-1; rows with -1 count nowhere.
        previous: `[K, P]`; a group without members keeps its row (docs/methods/conventions.md, convention 7).
        weights: `[r]`, positive; uniform where not given.
        grid: in which sums are taken; the finest for these models and weights where not given.
        sums: in that grid, of other models of the K groups.

    Returns:
        A new matrix `[K, P]`, float32; the mean of one model is that model. Sums are exact in their grid
        (docs/methods/conventions.md, convention 3), so that neither threads, nor an order of addition, nor what
        `sums` holds already changes a bit. Values that the grid does not hold are added in float64, row after row.
    """
    means = previous.clone()
    share = np.ones(len(groups), np.int64) if weights is None else np.asarray(weights)
    grid = Grid.for_weights(share, largest(models)) if grid is None else grid
    order = np.argsort(groups, kind="stable")
    ends = np.searchsorted(groups[order], np.arange(len(previous) + 1))
    for k in range(len(previous)):
        _write_mean(means[k], models, order[ends[k] : ends[k + 1]], share, grid, sums, k)
    return means


def _write_mean(
    into: Tensor,
    models: Tensor,
    members: NDArray[np.int64],
    weights: NDArray[Any],
    grid: Grid,
    sums: ExactSums | None = None,
    group: int = 0,
) -> None:
    """Write the mean of some rows of `models`, and of what the sum of a group holds, into a vector `[P]`."""
    members = members[weights[members] > 0]
    rows, share = torch.from_numpy(members), weights[members].astype(np.float64)
    known = 0 if sums is None else sums.count(group)
    if known + len(members) == 0:
        return
    if not known and len(members) == 1:
        into.copy_(models[members[0]])
        return
    total, alone, summed = float(share.sum()), None, None
    if sums is not None and known:
        total += sums.weight(group)
        if known > 1:
            summed = sums.multiples(group)
        elif len(members):
            alone, share = sums.model(group)[None], np.append(share, sums.weight(group))
        else:
            into.copy_(sums.model(group))
            return
    scale, step, every = scales(share, grid.step), grid.step, len(members) == len(models)
    for columns, block in blocks(models):
        some = block if every else block[rows]  # all of them are in ascending order
        some = some if alone is None else torch.cat([some, alone[:, columns]])
        large = _find_large(some, grid.bound)
        found = sum_multiples(some if large is None else some.masked_fill(large, 0.0), scale)
        found = found if summed is None else found.add_(summed[columns])
        mean = found.double().mul_(step)
        if large is not None:
            for row, is_large, weight in zip(some, large, share.tolist(), strict=True):
                mean.add_(row.masked_fill(~is_large, 0.0), alpha=weight)
        into[columns] = mean.div_(total)


def _find_large(models: Tensor, bound: float) -> Tensor | None:
    """Return where values `[r, c]` are larger than a bound, or no number; None where none is."""
    if not models.numel():
        return None
    low, high = torch.aminmax(models)
    if bool(-bound <= low) and bool(high <= bound):  # not of NaN
        return None
    return ~(models.abs() <= bound)


def mean(models: Tensor, previous: Tensor, weights: ArrayLike | None = None, grid: Grid | None = None) -> Tensor:
    """The weighted mean of all models `[r, P]`, or `previous` `[1, P]` where there are none; `[1, P]`."""
    return group_means(models, np.zeros(len(models), np.int64), previous, weights, grid)


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


def mean_mixes(weights: NDArray[Any], models: Tensor, grid: Grid | None = None) -> Tensor:
    """The mean of models for each row of weights.

    Args:
        weights: `[K, r]`, none negative; a row of zeros gives zeros.
        models: `[r, P]`, rows in ascending client id.
        grid: as in `group_means`.

    Returns:
        A new matrix `[K, P]`, float32. With the weights of a group's members, as whole numbers, a mix is to the bit
        the mean that `group_means` takes; several mixes of many models are one product of matrices instead.
    """
    distinct, which = _distinct(weights)
    if not len(weights) or (distinct % 1).any() or not distinct.any(1).all() or _is_dense(distinct):
        totals = weights.sum(1, keepdims=True)
        return mix_models(weights / np.where(totals > 0, totals, 1), models)
    grid = Grid.for_weights(distinct.max(0), largest(models)) if grid is None else grid
    found = torch.empty(len(distinct), models.shape[1])
    for row, into in zip(distinct, found, strict=True):
        _write_mean(into, models, np.flatnonzero(row), row, grid)
    return found if len(distinct) == len(weights) else found[torch.from_numpy(which)]


def mix_models(coefficients: NDArray[np.float64], models: Tensor) -> Tensor:
    """`sum_j coefficients[k, j] models[j]` for every k.

    Args:
        coefficients: `[K, r]`.
        models: `[r, P]`, rows in ascending client id.

    Returns:
        A new matrix `[K, P]`, float32. Sums are taken in float64, row after row, and models with the coefficient 0
        are left out (docs/methods/conventions.md, convention 3). Several mixes of many models are one product of
        matrices, which may sum in another order.
    """
    rows, which = _distinct(coefficients)
    found, dense = torch.empty(len(rows), models.shape[1]), _is_dense(rows)
    size = _MULTIPLIED_COLUMNS if dense else _MIXED_COLUMNS
    for start in range(0, models.shape[1], size):
        tile, into = models[:, start : start + size], found[:, start : start + size]
        if dense:
            into.copy_(torch.from_numpy(rows) @ tile.double())
        if not dense or not torch.isfinite(into).all():  # 0 times what is not finite: that model is left out
            _row_after_row(rows, tile, into)
    return found if len(rows) == len(coefficients) else found[torch.from_numpy(which)]


def _distinct(coefficients: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the distinct rows as they come, and which of them each row is."""
    _, first, which = np.unique(coefficients, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return coefficients[first[order]], np.argsort(order)[which.ravel()]  # NumPy 2.0.0 gives a column


def _is_dense(rows: NDArray[Any]) -> bool:
    """Return whether mixes are one product: an addition alone is eight times as dear as one in it."""
    taken = np.count_nonzero(rows)
    return bool(taken > max(2 * rows.shape[1], rows.size / 8))


def _row_after_row(coefficients: NDArray[np.float64], models: Tensor, into: Tensor) -> None:
    for row, shares in zip(into, coefficients, strict=True):
        total = torch.zeros(len(row), dtype=torch.float64)
        for j in np.flatnonzero(shares):
            total.add_(models[j], alpha=float(shares[j]))
        row.copy_(total)
