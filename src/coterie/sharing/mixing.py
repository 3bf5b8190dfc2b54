"""Soft sharing: every mix is a linear combination of models, of which a partition into groups is a special case."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_TILE = 1 << 20
"""Columns summed at a time: 8 MB of float64."""


def mixed(coefficients: NDArray[np.float64], models: Tensor) -> Tensor:
    """`sum_j coefficients[k, j] models[j]` for every k.

    Args:
        coefficients: `[K, r]`; rows that sum to 1 are weighted means (specification 7.1).
        models: `[r, P]`, rows in ascending client id.

    Returns:
        A new matrix `[K, P]`, float32. Sums are taken in float64, row after row, and models with the coefficient 0
        are left out (specification 0.2, convention 3): with the weights of a group's members, a mix is to the bit
        the mean that `group_means` takes.
    """
    found = torch.empty(len(coefficients), models.shape[1])
    for row, shares in zip(found, coefficients, strict=True):
        for start in range(0, models.shape[1], _TILE):
            columns = slice(start, start + _TILE)
            total = torch.zeros(row[columns].shape, dtype=torch.float64)
            for j in np.flatnonzero(shares):
                total.add_(models[j, columns], alpha=float(shares[j]))
            row[columns] = total
    return found
