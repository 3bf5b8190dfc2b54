"""How sure a metric is that was measured on some samples: intervals of 95 %, from the scores of single samples.

Samples are taken as independent of each other. Nothing here imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Values = NDArray[Any]

Z = 1.959963984540054
"""The normal quantile of an interval of 95 %."""

DRAWS = 1000
"""Draws of a bootstrap."""

DRAWN_NUMBERS = 4_000_000
"""Numbers that a bootstrap draws at most; with many samples it has fewer draws."""

NONE = (float("nan"), float("nan"))


def bound_metric(
    name: str,
    predicted: Values,
    scores: Values,
    targets: Values,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return the lower and the upper end of a metric's interval; NaN where it has none.

    Args:
        name: of the metric, one of `BOUNDED`; any other has no interval.
        predicted: what was predicted, in the form of the targets `[s, ...]`.
        scores: probabilities or logits `[s, classes]`, or of several labels `[s, labels]`.
        targets: `[s, ...]`; classes, -1 where one is not known, or numbers.
        rng: of the bootstrap.
    """
    bound = BOUNDED.get(name)
    if bound is None or len(targets) < 2:
        return NONE
    with np.errstate(all="ignore"):
        low, high = bound(np.asarray(predicted), np.asarray(scores), np.asarray(targets), rng)
    return (low, high) if np.isfinite(low) and np.isfinite(high) else NONE


def _bound_auroc(
    predicted: Values,
    scores: Values,
    targets: Values,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Bound the area under the curve, one class against the others, averaged over those that can be.

    The variance is that of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988); of a mean over classes, that of
    each sample's part in all of them. The interval is taken on logits, so that it stays between 0 and 1.
    """
    areas, rarer, parts = [], [], np.zeros(len(targets))
    columns = np.asarray(scores, np.float64)
    columns = columns[:, None] if columns.ndim == 1 else columns
    for number, own in enumerate(columns.T):
        column = targets if targets.ndim == 1 else targets[:, number]
        known = ~np.isnan(column) if np.issubdtype(column.dtype, np.floating) else column >= 0
        yes = known & (column == (number if targets.ndim == 1 and columns.shape[1] > 1 else 1))
        no = known & ~yes
        if not yes.any() or not no.any():
            continue
        above, below = _share_below(own[yes], own[no]), 1 - _share_below(own[no], own[yes])
        areas.append(float(above.mean()))
        rarer.append(min(int(yes.sum()), int(no.sum())))
        parts[yes] += (above - above.mean()) / _spread_of(yes)
        parts[no] += (below - below.mean()) / _spread_of(no)
    if not areas:
        return NONE
    area, error = float(np.mean(areas)), float(np.sqrt((parts**2).sum())) / len(areas)
    if not 0 < area < 1:  # every pair is in order, or none: as a share of right answers among the rarer samples
        width = Z**2 / (float(np.mean(rarer)) + Z**2)
        return (1 - width, 1.0) if area >= 1 else (0.0, width)
    middle, half = np.log(area / (1 - area)), Z * error / (area * (1 - area))
    return 1 / (1 + float(np.exp(half - middle))), 1 / (1 + float(np.exp(-half - middle)))


def _spread_of(some: NDArray[np.bool_]) -> float:
    """Return what deviations are divided by, so that the sum of their squares is the variance of a mean."""
    count = int(some.sum())
    return float(np.sqrt(count * max(count - 1, 1)))


def _share_below(values: Floats, others: Floats) -> Floats:
    """Return of each value which share of the others is below it, ties counted half."""
    order = np.sort(others)
    return np.asarray(
        (np.searchsorted(order, values, "left") + np.searchsorted(order, values, "right")) / (2 * len(order))
    )


def _bound_f1(
    predicted: Values,
    scores: Values,
    targets: Values,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Bound the macro-F1 of classes by a bootstrap of the table of targets and predictions (percentiles)."""
    if targets.ndim != 1 or np.issubdtype(targets.dtype, np.floating):
        return NONE
    known = targets >= 0
    classes, cells = np.unique(np.concatenate([targets[known], predicted[known]]), return_inverse=True)
    k, count = len(classes), int(known.sum())
    if not count:
        return NONE
    actual, guessed = cells[:count], cells[count:]
    counts = np.bincount(actual * k + guessed, minlength=k * k)
    drawn = rng.multinomial(count, counts / count, _draws(k * k)).reshape(-1, k, k)
    return _percentiles(_macro_f1(drawn))


def _macro_f1(tables: NDArray[np.int64]) -> Floats:
    """Return the F1 of tables `[n, actual, predicted]`, averaged over the classes that occur or are predicted."""
    hits = np.diagonal(tables, axis1=1, axis2=2)
    occurrences = tables.sum(1) + tables.sum(2)
    each = np.where(occurrences > 0, 2 * hits / np.maximum(occurrences, 1), np.nan)
    return np.asarray(np.nanmean(each, axis=1))


def _bound_rmse(
    predicted: Values,
    scores: Values,
    targets: Values,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Bound the root of the mean squared error by a bootstrap of the samples."""
    return _percentiles(np.sqrt(_resampled_means((_errors(predicted, targets) ** 2).mean(1), rng)))


def _bound_mae(
    predicted: Values,
    scores: Values,
    targets: Values,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Bound the mean absolute error by a bootstrap of the samples."""
    return _percentiles(_resampled_means(np.abs(_errors(predicted, targets)).mean(1), rng))


def _errors(predicted: Values, targets: Values) -> Floats:
    """Return by how much predictions are off `[s, values]`."""
    off = np.asarray(predicted, np.float64) - np.asarray(targets, np.float64)
    return off.reshape(len(off), -1)


def _resampled_means(each: Floats, rng: np.random.Generator) -> Floats:
    """Return the mean of samples `[s]` that are drawn with replacement, draw by draw."""
    return np.asarray(each[rng.integers(0, len(each), (_draws(len(each)), len(each)))].mean(1))


def _draws(numbers: int) -> int:
    return int(np.clip(DRAWN_NUMBERS // max(numbers, 1), 100, DRAWS))


def _percentiles(values: Floats) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


Bound = Callable[[Values, Values, Values, np.random.Generator], tuple[float, float]]

BOUNDED: dict[str, Bound] = {"auroc": _bound_auroc, "f1": _bound_f1, "rmse": _bound_rmse, "mae": _bound_mae}
"""The metrics that have an interval, besides accuracy, which follows from how many samples there are."""
