"""Whether groups of clients code the outcome in another way: the same classes under other names.

A group has a mean of the inputs' features of each class. Less the mean over classes, that is a direction: how the
class differs from the others. Where one group calls 1 what the other calls 0, its directions are the other's in
another order. The Hungarian method (Kuhn, 1955) finds the order on either half of the data, so that one half checks
the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

ALIKE = 0.5
"""The cosine between classes' directions from which on two groups have the same classes."""

LEAST_SAMPLES = 4
"""Samples of a class in a half below which its mean says too little."""


def find_recoding(profiles: Floats, members: NDArray[np.bool_], others: NDArray[np.bool_]) -> Labels | None:
    """Return which class of other clients each class of a group is `[C]`.

    None where classes mean the same, or where none of the others' has the inputs of one. A class that either side
    hardly has keeps its number.

    Args:
        profiles: `[n, 2, C, 1 + d]`, as for `coterie.grouping.skew.find_skew`.
        members: who is of the group `[n]`.
        others: whom it is held against `[n]`.
    """
    ours, theirs = profiles[members].sum(0), profiles[others].sum(0)
    there = np.flatnonzero((np.minimum(ours[..., 0], theirs[..., 0]) >= LEAST_SAMPLES).all(0))
    if len(there) < 2:
        return None
    found = [_match(_directions(a[there]), _directions(b[there])) for a, b in zip(ours, theirs, strict=True)]
    (order, alike, as_named), (again, alike_too, as_named_too) = found
    if not np.array_equal(order, again) or np.array_equal(order, np.arange(len(there))):
        return None
    if min(alike, alike_too) < ALIKE or max(as_named, as_named_too) > 0.5 * min(alike, alike_too):
        return None
    meaning = np.arange(profiles.shape[2])
    meaning[there] = there[order]
    return meaning


def _directions(profile: Floats) -> Floats:
    """Return by what the mean features of each class depart from the mean over classes `[C, d]`."""
    means = profile[:, 1:] / profile[:, :1]
    return np.asarray(means - means.mean(0))


def _match(ours: Floats, theirs: Floats) -> tuple[Labels, float, float]:
    """Return the order of their classes that is most like ours, its cosine, and that of the order as named."""
    products = ours @ theirs.T
    from scipy.optimize import linear_sum_assignment  # takes long to load

    _, order = linear_sum_assignment(-products)
    size = np.linalg.norm(ours) * np.linalg.norm(theirs)
    if size == 0:
        return np.arange(len(ours)), 0.0, 0.0
    return order, float(products[np.arange(len(ours)), order].sum() / size), float(np.trace(products) / size)
