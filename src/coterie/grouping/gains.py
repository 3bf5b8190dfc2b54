"""What each client gains from each model that it could have, from scores on samples that had no part in it.

A client's moments on a fold of its samples are a matrix `[1 + M, 1 + M]` of M options: the number of samples, the
means of their scores beside it, and below these their covariances over the samples. So two options are compared
sample by sample, though only sums have crossed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVEL = 0.95
"""Of all intervals."""

FEWEST = 4
"""Samples that a client must have in its folds for an interval of its own."""


@dataclass(frozen=True)
class Estimate:
    """A mean, and between what it lies at the level of 95 %; NaN where nothing is known of that."""

    value: float
    """The mean."""
    low: float
    """Where the interval begins."""
    high: float
    """Where it ends."""

    @property
    def is_above(self) -> bool:
        """Whether it is more than 0 for sure."""
        return self.low > 0

    @property
    def is_below(self) -> bool:
        """Whether it is less than 0 for sure."""
        return self.high < 0


def are_sound(moments: Floats, size: int, share: bool) -> NDArray[np.bool_]:
    """Return which moments `[r, 1 + M, 1 + M]` can be those of at most `size` samples.

    Args:
        moments: as clients sent them.
        size: samples in a fold at most.
        share: whether scores are from 0 to 1.
    """
    finite = np.asarray(np.isfinite(moments).all(axis=(1, 2)))
    whole = np.where(finite[:, None, None], moments, 0.0)
    counts, means = whole[:, 0, 0], whole[:, 0, 1:]
    spread = np.diagonal(whole[:, 1:, 1:], axis1=1, axis2=2)
    fine = finite & (counts >= 0) & (counts <= size) & (counts == np.round(counts))
    fine &= (means >= 0).all(1) & (spread >= 0).all(1)
    if share:
        fine &= (means <= 1).all(1) & (spread <= 0.25 + 1e-6).all(1)
    return np.asarray(fine)


def pool_folds(moments: Floats) -> Floats:
    """Return the moments `[n, 1 + M, 1 + M]` of all samples, from those of each fold `[F, n, 1 + M, 1 + M]`."""
    counts = moments[:, :, 0, 0]
    total = counts.sum(0)
    shares = counts / np.maximum(total, 1)
    pooled = np.zeros(moments.shape[1:])
    pooled[:, 0, 0] = total
    pooled[:, 0, 1:] = means = (shares[:, :, None] * moments[:, :, 0, 1:]).sum(0)
    apart = moments[:, :, 0, 1:] - means
    spread = moments[:, :, 1:, 1:] + apart[:, :, :, None] * apart[:, :, None, :]
    pooled[:, 1:, 1:] = (shares[:, :, None, None] * spread).sum(0)
    return pooled


def take_roots(moments: Floats) -> Floats:
    """Return the moments of root mean squares `[n, 1 + M, 1 + M]`, from those of squares, by the delta method."""
    found = moments.copy()
    roots = np.sqrt(np.maximum(moments[:, 0, 1:], 0.0))
    slopes = 0.5 / np.maximum(roots, 1e-12)
    found[:, 0, 1:] = roots
    found[:, 1:, 1:] *= slopes[:, :, None] * slopes[:, None, :]
    return found


def client_gain(moments: Floats, option: int, over: int, sign: float, share: bool) -> Estimate:
    """Return what a client gains by one option over another, from its own samples.

    Shares that are the same on all samples are not taken to be the same for sure: half a sample more of either kind
    is added to the spread (Agresti and Min, 2005).

    Args:
        moments: of its samples `[1 + M, 1 + M]`.
        option: the number of the one, from 0.
        over: that of the other.
        sign: 1 where more is better, -1 where less is.
        share: whether scores are 0 or 1.
    """
    from scipy.stats import t

    count, means, spread = float(moments[0, 0]), moments[0, 1:], moments[1:, 1:]
    gain = sign * float(means[option] - means[over]) if count else np.nan
    if count < FEWEST:
        return Estimate(gain, np.nan, np.nan)
    variance = max(0.0, float(spread[option, option] + spread[over, over] - 2 * spread[option, over]))
    if share:
        variance = (variance * count + 1) / (count + 2)
    width = float(t.ppf((1 + LEVEL) / 2, count - 1)) * np.sqrt(variance / (count - 1))
    return Estimate(gain, gain - width, gain + width)


def mean_gain(gains: Floats) -> Estimate:
    """Return the mean of the clients' gains `[n]`, those that are known, with an interval from how they vary."""
    from scipy.stats import t

    known = gains[np.isfinite(gains)]
    if not len(known):
        return Estimate(np.nan, np.nan, np.nan)
    mean = float(known.mean())
    if len(known) < 2:
        return Estimate(mean, np.nan, np.nan)
    width = float(t.ppf((1 + LEVEL) / 2, len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known)))
    return Estimate(mean, mean - width, mean + width)


def choose_option(scores: Floats, sign: float, order: tuple[int, ...], kept: int | None = None) -> int:
    """Return the first option in `order` that is within one standard error of the best; `kept` within two.

    Args:
        scores: of each client `[n, M]`; NaN where it is not known.
        sign: 1 where more is better, -1 where less is.
        order: options from the simplest on.
        kept: an option that something else speaks for; None for none.
    """
    known = scores[np.isfinite(scores).all(1)] * sign
    if not len(known):
        return order[0]
    best = int(np.argmax(known.mean(0)))
    for option in order:
        behind = known[:, best] - known[:, option]
        error = behind.std(ddof=1) / np.sqrt(len(known)) if len(known) > 1 else 0.0
        if behind.mean() <= (2 if option == kept else 1) * error:
            return option
    return best


def choose_by_other_folds(
    scores: Floats, counts: Floats, sign: float, order: tuple[int, ...], kept: int | None = None
) -> Floats:
    """Return what clients score `[n]` where each fold is scored by the option that the other folds choose for all.

    Args:
        scores: `[F, n, M]`.
        counts: samples `[F, n]`.
        sign: as in `choose_option`.
        order: likewise.
        kept: likewise.
    """
    folds, total, found = len(scores), counts.sum(0), np.zeros(scores.shape[1])
    for fold in range(folds):
        rest = np.arange(folds) != fold
        weights = counts[rest] / np.where(counts[rest].sum(0) > 0, counts[rest].sum(0), np.nan)
        chosen = choose_option((weights[:, :, None] * scores[rest]).sum(0), sign, order, kept)
        found += counts[fold] * scores[fold, :, chosen]
    return np.where(total > 0, found / np.maximum(total, 1), np.nan)
