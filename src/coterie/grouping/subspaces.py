"""How far apart the data of clients are, by the angles between vectors that span them (PACFL)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def paired_angles(bases: Tensor) -> NDArray[np.float64]:
    """Return the mean angle `[n, n]`, in degrees, between vectors of the same class and place (PACFL, Eq. 3).

    Vectors that one of two clients lacks do not count; two without a common one are 90 degrees apart.

    Args:
        bases: `[n, classes, vectors, d]`; of a vector only the direction counts, and 0 is none.
    """
    found, counted = np.zeros((2, len(bases), len(bases)))
    for rows in _directions(bases).swapaxes(0, 1):
        there = rows.any(1)
        both = there[:, None] & there
        found += np.where(both, _angles(np.abs(rows @ rows.T)), 0.0)
        counted += both
    return _with_zero_diagonal(np.where(counted > 0, found / np.maximum(counted, 1), 90.0))


def smallest_angles(bases: Tensor) -> NDArray[np.float64]:
    """Return the smallest angle `[n, n]`, in degrees, between any vector of one client and any of the other.

    Args:
        bases: `[n, classes, vectors, d]`; of a vector only the direction counts, and 0 is none.
    """
    rows = _directions(bases)
    found = np.full((len(rows), len(rows)), 90.0)
    for vectors in rows.swapaxes(0, 1):
        for others in rows.swapaxes(0, 1):
            np.minimum(found, _angles(np.abs(vectors @ others.T)), out=found)
    return _with_zero_diagonal(found)


def _directions(bases: Tensor) -> NDArray[np.float64]:
    """Return the vectors `[n, classes * vectors, d]` with length 1; those of length 0 as they are."""
    rows = bases.flatten(1, 2).double().numpy()
    lengths = np.linalg.norm(rows, axis=2, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


def _angles(cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.degrees(np.arccos(np.minimum(cosines, 1.0))))


def _with_zero_diagonal(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    np.fill_diagonal(angles, 0.0)
    return angles
