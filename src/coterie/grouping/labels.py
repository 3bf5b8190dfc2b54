"""Group labels: one number per client, -1 for a client that has no group."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def relabel(groups: ArrayLike) -> NDArray[np.int64]:
    """The groups `[clients]` numbered 0, 1, … by their smallest member; -1 (no group) stays.

    Example:
        >>> relabel([7, -1, 2, 7]).tolist()
        [0, -1, 1, 0]
    """
    given = np.asarray(groups, np.int64)
    result = np.full(given.shape, -1, np.int64)
    member = given >= 0
    if member.any():
        _, first, inverse = np.unique(given[member], return_index=True, return_inverse=True)
        result[member] = np.argsort(np.argsort(first))[inverse]
    return result


def match_labels(labels: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int64]:
    """The labels `[n]`, 0 and up, numbered so that as many clients as possible keep their number of `before` `[n]`.

    Example:
        >>> match_labels(np.array([0, 0, 1, 2]), np.array([2, 2, 0, -1])).tolist()
        [2, 2, 0, 1]
    """
    from scipy.optimize import linear_sum_assignment

    shared = np.zeros((max(labels.max(initial=-1), before.max(initial=-1)) + 1,) * 2)
    known = before >= 0
    np.add.at(shared, (labels[known], before[known]), 1)
    return np.asarray(linear_sum_assignment(shared, maximize=True)[1][labels], np.int64)
