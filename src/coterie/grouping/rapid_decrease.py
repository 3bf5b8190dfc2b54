"""The end of a loss's rapid decrease, and where a dendrogram is cut next (docs/methods/dcpfl.md).

Everything is a function of the losses since the last change of the groups, and of the dendrogram.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.grouping.cluster import cut_dendrogram

STRAIGHT = 1e-8
"""A second derivative up to this bends nowhere: only convex points can end a rapid decrease (D4)."""

EQUAL = 1e-12
"""A dendrogram up to this height is one of equal models, which are never split (docs/methods/dcpfl.md)."""

Groups = NDArray[np.int64]


def count_terms(window: int, period: int) -> int:
    """Return how many losses are smoothed over: s + 1, or the next multiple of the period (D5).

    Layers that are averaged every `period` rounds make the loss of the received models a saw-tooth of that period,
    which cancels in a sum over whole periods alone.
    """
    return -(-(window + 1) // period) * period


def radii(losses: Sequence[float], terms: int) -> NDArray[np.float64]:
    """Return the radius of curvature `[rounds]` since the last change (DC-PFL, Eq. 4; docs/methods/dcpfl.md).

    `r = (1 + l'^2)^(3/2) / l''` of the smoothed loss, with differences for derivatives. Infinite where the loss
    does not bend upwards (D4), and until three sums are whole (D7).

    Args:
        losses: mean training losses since the last change of the groups, one a round.
        terms: how many of them are smoothed over, at least 2; the paper divides their sum by one less (D5).
    """
    found = np.full(len(losses), np.inf)
    if len(losses) < terms + 2:
        return found
    slope = np.diff(np.convolve(losses, np.ones(terms), "valid") / (terms - 1))
    bend = np.diff(slope)
    np.divide((1 + slope[1:] ** 2) ** 1.5, bend, out=found[terms + 1 :], where=bend > STRAIGHT)
    return found


def has_decrease_ended(losses: Sequence[float], terms: int, observed: int) -> bool:
    """Whether the rapid decrease has ended by the last of `losses`.

    It ends at the first round whose radius is finite and smaller than in each of the `observed` rounds after it.
    What has ended once stays so as losses are added.

    Args:
        losses: mean training losses since the last change of the groups, one a round.
        terms: how many of them are smoothed over (see `count_terms`).
        observed: rounds for which the radius must stay larger (t_obv).
    """
    radius = radii(losses, terms)
    if len(radius) <= observed:
        return False
    later = np.lib.stride_tricks.sliding_window_view(radius[1:], observed).min(1)
    return bool((radius[:-observed] < later).any())


def cut_at(tree: NDArray[np.float64], share: float) -> Groups:
    """Canonical labels `[n]` of the dendrogram `[n - 1, 4]` cut at a share of its height; one group of equals."""
    height = float(tree[-1, 2]) if len(tree) else 0.0
    return cut_dendrogram(tree, share * height) if height > EQUAL else np.zeros(len(tree) + 1, np.int64)


def next_cut(tree: NDArray[np.float64], share: float, step: float) -> tuple[float, Groups] | None:
    """The next lower share that gives other groups than `share`, in steps down to 0, and those groups.

    None where no lower cut gives other groups (D3 and D9). `tree` is a linkage matrix of SciPy, `[n - 1, 4]`.
    """
    now = cut_at(tree, share)
    lower = share
    while lower > 0:
        lower = max(0.0, round(lower - step, 9))  # rounded, so that five steps of 0.2 lead from 1 to 0
        groups = cut_at(tree, lower)
        if not np.array_equal(groups, now):
            return lower, groups
    return None
