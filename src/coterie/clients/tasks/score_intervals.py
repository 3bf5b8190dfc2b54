"""How sure a metric is that was measured on some samples: intervals of 95 %, from the scores of single samples.

Samples are taken as independent of each other. Nothing here imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

Bound = Callable[[Values, Values, Values, np.random.Generator], tuple[float, float]]
"""What bounds a metric, from predictions, scores and targets (see `bound_metric`)."""


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
        scores: probabilities or logits `[s, classes]`; of labels `[s, labels]`, of tokens `[s, T, vocabulary]`.
        targets: `[s, ...]`: classes, -1 where one is not known, numbers, or labels 0 and 1, NaN where unknown.
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
    for own, yes, no in _one_against_others(scores, targets):
        above, below = _share_below(own[yes], own[no]), 1 - _share_below(own[no], own[yes])
        areas.append(float(above.mean()))
        rarer.append(min(int(yes.sum()), int(no.sum())))
        parts[yes] += (above - above.mean()) / _spread_of(yes)
        parts[no] += (below - below.mean()) / _spread_of(no)
    if not areas:
        return NONE
    area, error = float(np.mean(areas)), float(np.sqrt((parts**2).sum())) / len(areas)
    if not 0 < area < 1:  # every pair is in order, or none
        return _bound_extreme(area, float(np.mean(rarer)))
    return _bound_logit(area, error)


def _bound_average_precision(
    predicted: Values,
    scores: Values,
    targets: Values,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Bound the area under precision over recall, one class against the others, averaged over those that can be.

    The interval is taken on logits, where its variance is that of as many right answers as samples are of a class:
    Boyd, Eng and Page, Area under the precision-recall curve: point estimates and confidence intervals, ECML 2013.
    """
    areas, counts = [], []
    for own, yes, no in _one_against_others(scores, targets):
        known = yes | no
        order = np.argsort(-own[known], kind="stable")
        last = np.append(np.diff(own[known][order]) != 0, True)  # of the samples with the same score
        hits, taken = np.cumsum(yes[known][order])[last], np.flatnonzero(last) + 1
        areas.append(float((np.diff(hits, prepend=0) * hits / taken).sum() / hits[-1]))
        counts.append(int(yes.sum()))
    if not areas:
        return NONE
    area, count = float(np.mean(areas)), float(np.mean(counts))
    if area >= 1:
        return _bound_extreme(area, count)
    return _bound_logit(area, float(np.sqrt(area * (1 - area) / count)))


def _one_against_others(
    scores: Values, targets: Values
) -> Iterator[tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]]:
    """Yield the scores `[s]` of each class or label, which samples are of it, and which not; of those with both."""
    columns = np.asarray(scores, np.float64)
    columns = columns[:, None] if columns.ndim == 1 else columns
    for number, own in enumerate(columns.T):
        column = targets if targets.ndim == 1 else targets[:, number]
        known = _is_known(column)
        yes = known & (column == (number if targets.ndim == 1 and columns.shape[1] > 1 else 1))
        no = known & ~yes
        if yes.any() and no.any():
            yield own, yes, no


def _is_known(targets: Values) -> NDArray[np.bool_]:
    return ~np.isnan(targets) if np.issubdtype(targets.dtype, np.floating) else targets >= 0


def _bound_logit(value: float, error: float) -> tuple[float, float]:
    """Bound a share between 0 and 1 from its standard error, on logits, so that the ends stay between them, too."""
    middle, half = np.log(value / (1 - value)), Z * error / (value * (1 - value))
    return 1 / (1 + float(np.exp(half - middle))), 1 / (1 + float(np.exp(-half - middle)))


def _bound_extreme(value: float, samples: float) -> tuple[float, float]:
    """Bound a share that is 0 or 1 as one of right answers (Wilson); a bootstrap would be sure of it."""
    width = Z**2 / (samples + Z**2)
    return (1 - width, 1.0) if value >= 1 else (0.0, width)


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


Share = Callable[[Floats, Floats, Floats], Floats]
"""From right answers, targets and predictions of each class `[draws, labels, C]`: the metric of each draw."""


def _bound_share(share: Share) -> Bound:
    """Return what bounds a metric of classes: a bootstrap of samples, with all pixels or tokens of each."""

    def bound(
        predicted: Values,
        scores: Values,
        targets: Values,
        rng: np.random.Generator,
    ) -> tuple[float, float]:
        counts = _count_classes(predicted, targets)
        some = counts[1].any((1, 2))
        if not some.any():
            return NONE
        value = float(share(*(of.sum(0, keepdims=True) for of in counts))[0])
        if value in (0.0, 1.0):
            return _bound_extreme(value, int(some.sum()))
        weights = _draw_weights(len(targets), rng)
        drawn = ((weights @ of.reshape(len(of), -1)).reshape(-1, *of.shape[1:]) for of in counts)
        return _percentiles(share(*drawn))

    return bound


def _count_classes(predicted: Values, targets: Values) -> tuple[Floats, Floats, Floats]:
    """Count right predictions, targets and predictions of each sample and class, `[s, labels, C]` each.

    Of classes, also those of pixels and tokens, there is one label; of several labels each has the classes 0 and 1.
    """
    s, known = len(targets), _is_known(targets)
    several = bool(np.issubdtype(targets.dtype, np.floating))
    label = np.broadcast_to(np.arange(targets.shape[1]), targets.shape)[known] if several else 0
    actual, guessed = targets[known].astype(np.int64), predicted[known].astype(np.int64)
    classes = 2 if several else int(max(actual.max(initial=0), guessed.max(initial=0))) + 1
    row = np.broadcast_to(np.arange(s).reshape(s, *[1] * (targets.ndim - 1)), targets.shape)[known]
    labels = targets.shape[1] if several else 1
    place, size = (row * labels + label) * classes, s * labels * classes
    counts = [
        np.bincount(where, minlength=size).reshape(s, labels, classes).astype(np.float64)
        for where in ((place + actual)[actual == guessed], place + actual, place + guessed)
    ]
    return counts[0], counts[1], counts[2]


def _accuracy(hits: Floats, actual: Floats, guessed: Floats) -> Floats:
    return np.asarray(hits.sum((1, 2)) / actual.sum((1, 2)))


def _balanced_accuracy(hits: Floats, actual: Floats, guessed: Floats) -> Floats:
    return _mean_of_known(_mean_of_known(hits / actual, 2), 1)


def _f1(hits: Floats, actual: Floats, guessed: Floats) -> Floats:
    """Of classes that of all, of several labels that of the class 1 of each."""
    each = 2 * hits / (actual + guessed)
    return _mean_of_known(each[:, :, 1] if each.shape[1] > 1 else _mean_of_known(each, 2), 1)


def _iou(hits: Floats, actual: Floats, guessed: Floats) -> Floats:
    return _mean_of_known(_mean_of_known(hits / (actual + guessed - hits), 2), 1)


def _mean_of_known(values: Floats, axis: int) -> Floats:
    """Return the mean of what is defined along an axis; NaN where nothing is."""
    known = ~np.isnan(values)
    return np.asarray(np.where(known, values, 0.0).sum(axis) / known.sum(axis))


def _bound_rmse(
    predicted: Values,
    scores: Values,
    targets: Values,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Bound the root of the mean squared error by a bootstrap of the samples."""
    return _percentiles(np.sqrt(_draw_weights(len(targets), rng) @ (_errors(predicted, targets) ** 2).mean(1)))


def _bound_mae(
    predicted: Values,
    scores: Values,
    targets: Values,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Bound the mean absolute error by a bootstrap of the samples."""
    return _percentiles(_draw_weights(len(targets), rng) @ np.abs(_errors(predicted, targets)).mean(1))


def _bound_r2(
    predicted: Values,
    scores: Values,
    targets: Values,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Bound the share of the variance that is explained, averaged over the values that vary, by a bootstrap."""
    truth, weights = np.asarray(targets, np.float64).reshape(len(targets), -1), _draw_weights(len(targets), rng)
    truth = truth - truth.mean(0)
    varies = truth.any(0)
    left = weights @ _errors(predicted, targets)[:, varies] ** 2
    variance = weights @ truth[:, varies] ** 2 - (weights @ truth[:, varies]) ** 2
    return _percentiles(_mean_of_known(1 - left / np.where(variance > 0, variance, np.nan), 1))


def _errors(predicted: Values, targets: Values) -> Floats:
    """Return by how much predictions are off `[s, values]`."""
    off = np.asarray(predicted, np.float64) - np.asarray(targets, np.float64)
    return off.reshape(len(off), -1)


def _bound_perplexity(
    predicted: Values,
    scores: Values,
    targets: Values,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Bound the exponential of the mean cross-entropy over all known tokens by a bootstrap of the texts."""
    surprise, tokens = np.zeros(len(targets)), np.zeros(len(targets))
    for text, (logits, right) in enumerate(zip(scores, targets, strict=True)):
        known = right >= 0
        logits = np.asarray(logits[known], np.float64)
        logits = logits - logits.max(1, keepdims=True)
        chosen = np.take_along_axis(logits, right[known, None], 1)[:, 0]
        surprise[text], tokens[text] = (np.log(np.exp(logits).sum(1)) - chosen).sum(), known.sum()
    weights = _draw_weights(len(targets), rng)
    return _percentiles(np.exp((weights @ surprise) / (weights @ tokens)))


def _draw_weights(samples: int, rng: np.random.Generator) -> Floats:
    """Return which share each sample has of as many that are drawn with replacement `[draws, samples]`."""
    draws = int(np.clip(DRAWN_NUMBERS // max(samples, 1), 100, DRAWS))
    return np.asarray(rng.multinomial(samples, np.full(samples, 1 / samples), draws) / samples)


def _percentiles(values: Floats) -> tuple[float, float]:
    """Return the ends of a bootstrap's interval; NaN where half of the draws and more are not defined."""
    known = values[~np.isnan(values)]
    if len(known) <= len(values) // 2:
        return NONE
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


BOUNDED: dict[str, Bound] = {
    "accuracy": _bound_share(_accuracy),
    "balanced_accuracy": _bound_share(_balanced_accuracy),
    "f1": _bound_share(_f1),
    "iou": _bound_share(_iou),
    "auroc": _bound_auroc,
    "average_precision": _bound_average_precision,
    "rmse": _bound_rmse,
    "mae": _bound_mae,
    "r2": _bound_r2,
    "perplexity": _bound_perplexity,
}
"""The metrics that have an interval. That of accuracy follows from the number of samples if each has one class."""
