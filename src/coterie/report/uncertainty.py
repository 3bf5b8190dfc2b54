"""How sure shares of right answers are that were counted on a client's own test samples: intervals of 95 %."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.randomness import stream

Floats = NDArray[np.float64]

Z = 1.959963984540054
"""The normal quantile of an interval of 95 %."""

DRAWS = 400
"""Draws of a bootstrap at most."""

DRAWN_NUMBERS = 2_000_000
"""Numbers that a bootstrap draws at most; with many clients it has fewer draws."""

MANY = 1e4
"""Strength of a prior by which all clients are alike, in samples."""


def wilson_interval(shares: ArrayLike, samples: ArrayLike) -> tuple[Floats, Floats]:
    """Return the score interval of a share of `samples` that are independent of each other, both `[...]`.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).

    Returns:
        The lower and the upper ends, `[...]`; NaN where there is no sample.
    """
    share, count = np.asarray(shares, np.float64), np.asarray(samples, np.float64)
    count = np.where(count > 0, count, np.nan)
    middle = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z * np.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2)) / (1 + Z**2 / count)
    # An end that is a share of none or of all is exact, whatever was rounded.
    return np.where(share <= 0, 0 * middle, middle - half), np.where(share >= 1, 1 + 0 * middle, middle + half)


def join_intervals(
    values: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    others: ArrayLike,
    other_low: ArrayLike,
    other_high: ArrayLike,
) -> tuple[Floats, Floats]:
    """Return the interval of the difference of two values from the interval of each, all `[...]`.

    Where both were measured on the same samples it is wider than need be, if both are mostly wrong together.

    Source: G. Y. Zou and A. Donner, Construction of confidence limits about effect measures: a general approach,
    Statistics in Medicine 27 (2008), equation 4.

    Returns:
        The lower and the upper ends of `values - others`, `[...]`; NaN where one is not known.
    """
    value, down, up = (np.asarray(of, np.float64) for of in (values, low, high))
    other, other_down, other_up = (np.asarray(of, np.float64) for of in (others, other_low, other_high))
    # An end that a bootstrap puts on the wrong side of the value is the value.
    below, above = np.maximum(value - down, 0), np.maximum(up - value, 0)
    other_below, other_above = np.maximum(other - other_down, 0), np.maximum(other_up - other, 0)
    return value - other - np.hypot(below, other_above), value - other + np.hypot(above, other_below)


def worst_tenth_interval(shares: ArrayLike, samples: ArrayLike, most: int = DRAWS) -> tuple[float, float]:
    """Return between what the mean of the worst tenth of the clients lies, if each had endless test samples.

    The tenth that does worst on few samples had bad luck, too, so its own mean is too low, and what a plain
    bootstrap says of it is lower still. The interval joins two that correct for that in opposite directions: the
    basic bootstrap (Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 5.2), and a
    beta-binomial prior that is fitted to clients drawn with replacement (Laird and Louis, Empirical Bayes
    confidence intervals based on bootstrap samples, JASA 82, 1987).

    Args:
        shares: right answers of each client `[clients]`.
        samples: that they were counted on, at least one each `[clients]`.
        most: draws of the bootstraps at most.

    Returns:
        The lower and the upper end, within 0 … 1.
    """
    share, count = np.asarray(shares, np.float64), np.asarray(samples, np.int64)
    n = len(share)
    rng, hits = stream(0, "worst tenth"), np.rint(share * count)
    draws = int(np.clip(DRAWN_NUMBERS // n, 20, most))
    plain = _worst_tenth(rng.binomial(count, share, (draws, n)) / count)
    some = rng.integers(0, n, (draws, n))
    mean = share[some].mean(1)
    noise = mean * (1 - mean)
    between = share[some].var(1, ddof=1) - noise * (1 / count[some]).mean(1) if n > 1 else np.zeros(draws)
    varies = between > noise / MANY
    strength = np.where(varies, np.maximum(noise / np.where(varies, between, 1) - 1, 1.0), MANY)[:, None]
    right, wrong = mean[:, None] * strength + hits, (1 - mean[:, None]) * strength + count - hits
    shrunk = _worst_tenth(rng.beta(np.maximum(right, 1e-9), np.maximum(wrong, 1e-9)))
    low, high = _join_bootstraps(_worst_tenth(share), plain, shrunk)
    return float(np.clip(low, 0, 1)), float(np.clip(high, 0, 1))


def worst_tenth_of_intervals(
    values: ArrayLike, low: ArrayLike, high: ArrayLike, most: int = DRAWS
) -> tuple[float, float]:
    """Return between what the mean of the worst tenth of the clients lies, from each one's interval.

    As `worst_tenth_interval`, with normal errors of either side's own width in place of counted answers, and a
    normal prior in place of a beta-binomial one.

    Args:
        values: of a metric that grows as models get better `[clients]`.
        low: the lower end of each value's interval `[clients]`.
        high: the upper end `[clients]`.
        most: draws of the bootstraps at most.

    Returns:
        The lower and the upper end.
    """
    value, down, up = (np.asarray(of, np.float64) for of in (values, low, high))
    n = len(value)
    below, above = np.maximum(value - down, 0) / Z, np.maximum(up - value, 0) / Z
    noise = ((below + above) / 2) ** 2
    rng, draws = stream(0, "worst tenth"), int(np.clip(DRAWN_NUMBERS // n, 20, most))
    errors = rng.standard_normal((draws, n))
    plain = _worst_tenth(value + errors * np.where(errors < 0, below, above))
    some = rng.integers(0, n, (draws, n))
    between = value[some].var(1, ddof=1) - noise[some].mean(1) if n > 1 else np.zeros(draws)
    between = np.maximum(between, 0.0)[:, None]
    share = between / np.maximum(between + noise, 1e-300)
    mean = value[some].mean(1, keepdims=True)
    errors = rng.standard_normal((draws, n))
    shrunk = _worst_tenth(mean + share * (value - mean) + np.sqrt(share * noise) * errors)
    return _join_bootstraps(_worst_tenth(value), plain, shrunk)


def _join_bootstraps(value: Floats, plain: Floats, shrunk: Floats) -> tuple[float, float]:
    """Return the ends of the basic bootstrap around a value and of draws from what a prior leaves, joined."""
    ends = [*(2 * value - np.quantile(plain, [0.025, 0.975])), *np.quantile(shrunk, [0.025, 0.975])]
    return float(min(ends)), float(max(ends))


def _worst_tenth(shares: Floats) -> Floats:
    """Return the mean of the worst tenth of the clients `[..., clients]`, at least one of them, `[...]`."""
    count = max(1, shares.shape[-1] // 10)
    return np.asarray(np.partition(shares, count - 1, -1)[..., :count].mean(-1))
