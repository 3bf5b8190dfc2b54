"""How models are averaged: over everybody, or inside groups."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

_TILE = 1 << 20
"""Columns summed at a time: 8 MB of float64 a group."""


def group_means(
    models: Tensor, groups: NDArray[np.int64], previous: Tensor, weights: ArrayLike | None = None
) -> Tensor:
    """The weighted mean of each group's models.

    Args:
        models: `[r, P]`, rows in ascending client id.
        groups: the group of each row `[r]`, 0 … K-1; rows with -1 count nowhere.
        previous: `[K, P]`; a group without members keeps its row (specification 0.2, convention 7).
        weights: `[r]`, positive; uniform where not given.

    Returns:
        A new matrix `[K, P]`, float32. Sums are taken in float64, row after row (convention 3), so the result
        depends neither on threads nor on how a matrix product would order its additions.
    """
    means = previous.clone()
    share = np.ones(len(groups)) if weights is None else np.asarray(weights, np.float64)
    for k in range(len(previous)):
        members = np.flatnonzero(groups == k)
        total = float(share[members].sum())
        if not len(members) or total <= 0:
            continue
        for start in range(0, models.shape[1], _TILE):
            columns = slice(start, start + _TILE)
            mean = torch.zeros(means[k, columns].shape, dtype=torch.float64)
            for i in members:
                mean.add_(models[i, columns], alpha=float(share[i]) / total)
            means[k, columns] = mean
    return means


def mean(models: Tensor, previous: Tensor, weights: ArrayLike | None = None) -> Tensor:
    """The weighted mean of all models `[r, P]`, or `previous` `[1, P]` where there are none; `[1, P]`."""
    return group_means(models, np.zeros(len(models), np.int64), previous, weights)
