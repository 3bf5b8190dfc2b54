"""Metrics of some samples, and how sure they are: intervals of 95 %, from the scores of single samples.

Samples are taken as independent of each other. Nothing here imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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

ADDED_NUMBERS = 2_000_000_000
"""Numbers that a bootstrap adds up at most; with many samples of many classes or tokens it has fewer draws."""

FEWEST_DRAWS = 100
"""Draws of a bootstrap at least, whatever they cost."""

NONE = (float("nan"), float("nan"))


@dataclass(frozen=True)
class Bootstrap:
    """A metric that follows from sums over samples, bounded by drawing these with replacement.

    Attributes:
        parts: from predictions, scores and targets (see `bound_metric`): what each sample adds, `[s, ...]`.
        value: the metric `[draws]` of the means over the samples of each draw, `[draws, ...]`.
        is_share: whether it lies between 0 and 1, at whose ends every draw would be the same.
    """

    parts: Callable[[Values, Values, Values], Floats]
    value: Callable[[Floats], Floats]
    is_share: bool = False

    def bound(
        self, predicted: Values, scores: Values, targets: Values, rng: np.random.Generator
    ) -> tuple[float, float]:
        """Return the ends of the interval; NaN where half of the draws and more are not defined."""
        parts = self.parts(predicted, scores, targets)
        samples, value = len(parts), self.of_mean(parts)
        if self.is_share and value in (0.0, 1.0):
            return _bound_extreme(value, int(parts.reshape(samples, -1).any(1).sum()))
        affordable = min(DRAWN_NUMBERS // samples, ADDED_NUMBERS // max(parts.size, 1))
        draws = int(np.clip(affordable, FEWEST_DRAWS, DRAWS))
        weights = rng.multinomial(samples, np.full(samples, 1 / samples), draws) / samples
        drawn = self.value((weights @ parts.reshape(samples, -1)).reshape(draws, *parts.shape[1:]))
        known = drawn[~np.isnan(drawn)]
        if len(known) <= len(drawn) // 2:
            return NONE
        low, high = np.quantile(known, [0.025, 0.975])
        return float(low), float(high)

    def of_mean(self, parts: Floats) -> float:
        """Return the metric itself, from what each sample adds."""
        return float(self.value(parts.mean(0, keepdims=True))[0])


def compute_value(name: str, predicted: Values, targets: Values) -> float:
    """Return a metric of `BOUNDED` from the predictions, or scores, that it takes; NaN where it is not defined."""
    with np.errstate(all="ignore"):
        if name in _AREAS:
            areas = [_AREAS[name](*each) for each in _one_against_others(predicted, targets)]
            return float(np.mean(areas)) if areas else float("nan")
        bound = BOUNDED[name]
        assert isinstance(bound, Bootstrap)
        return bound.of_mean(bound.parts(predicted, predicted, targets))


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
    predicted, scores, targets = np.asarray(predicted), np.asarray(scores), np.asarray(targets)
    with np.errstate(all="ignore"):
        if isinstance(bound, Bootstrap):
            low, high = bound.bound(predicted, scores, targets, rng)
        else:
            low, high = bound(scores, targets)
    return (low, high) if np.isfinite(low) and np.isfinite(high) else NONE


def _bound_auroc(scores: Values, targets: Values) -> tuple[float, float]:
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


def _bound_average_precision(scores: Values, targets: Values) -> tuple[float, float]:
    """Bound the area under precision over recall, one class against the others, averaged over those that can be.

    The interval is taken on logits, where its variance is that of as many right answers as samples are of a class:
    Boyd, Eng and Page, Area under the precision-recall curve: point estimates and confidence intervals, ECML 2013.
    """
    areas, counts = [], []
    for each in _one_against_others(scores, targets):
        areas.append(_average_precision(*each))
        counts.append(int(each[1].sum()))
    if not areas:
        return NONE
    area, count = float(np.mean(areas)), float(np.mean(counts))
    if area >= 1:
        return _bound_extreme(area, count)
    return _bound_logit(area, float(np.sqrt(area * (1 - area) / count)))


def _auroc(scores: Floats, yes: NDArray[np.bool_], no: NDArray[np.bool_]) -> float:
    return float(_share_below(scores[yes], scores[no]).mean())


def _average_precision(scores: Floats, yes: NDArray[np.bool_], no: NDArray[np.bool_]) -> float:
    """Sum the precision at each threshold times what it adds to the recall."""
    order = np.argsort(-np.where(yes | no, scores, -np.inf), kind="stable")[: int((yes | no).sum())]
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)  # equal scores are one threshold
    hits = np.cumsum(yes[order])[ends]
    return float((np.diff(hits, prepend=0) * hits / (ends + 1)).sum() / hits[-1])


_AREAS = {"auroc": _auroc, "average_precision": _average_precision}
"""Metrics of a ranking of one class's scores, averaged over classes or labels."""


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
    from scipy.special import expit, logit  # takes long to load, and a round asks for no interval

    middle, half = logit(value), Z * error / (value * (1 - value))
    return float(expit(middle - half)), float(expit(middle + half))


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


def _count_classes(predicted: Values, scores: Values, targets: Values) -> Floats:
    """Count right predictions, targets and predictions of each sample and class, `[s, 3, labels, C]`.

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
    return np.stack(counts, 1)


def _count_for_f1(predicted: Values, scores: Values, targets: Values) -> Floats:
    """Count as `_count_classes` does; of several labels the class 1 of each alone."""
    counts = _count_classes(predicted, scores, targets)
    return counts[..., 1:] if np.issubdtype(targets.dtype, np.floating) else counts


def _accuracy(counts: Floats) -> Floats:
    return np.asarray(counts[:, 0].sum((1, 2)) / counts[:, 1].sum((1, 2)))


def _balanced_accuracy(counts: Floats) -> Floats:
    return _mean_of_known(_mean_of_known(counts[:, 0] / counts[:, 1], 2), 1)


def _f1(counts: Floats) -> Floats:
    return _mean_of_known(_mean_of_known(2 * counts[:, 0] / (counts[:, 1] + counts[:, 2]), 2), 1)


def _iou(counts: Floats) -> Floats:
    hits, actual, guessed = counts[:, 0], counts[:, 1], counts[:, 2]
    return _mean_of_known(_mean_of_known(hits / (actual + guessed - hits), 2), 1)


def _mean_of_known(values: Floats, axis: int) -> Floats:
    """Return the mean of what is defined along an axis; NaN where nothing is."""
    known = ~np.isnan(values)
    return np.asarray(np.where(known, values, 0.0).sum(axis) / known.sum(axis))


def _errors(predicted: Values, targets: Values) -> Floats:
    """Return by how much predictions are off `[s, values]`."""
    off = np.asarray(predicted, np.float64) - np.asarray(targets, np.float64)
    return off.reshape(len(off), -1)


def _squares(predicted: Values, scores: Values, targets: Values) -> Floats:
    """Return squared errors, squared targets and targets, these less their mean, `[s, 3, values that vary]`."""
    truth = np.asarray(targets, np.float64).reshape(len(targets), -1)
    truth = truth - truth.mean(0)
    varies = truth.any(0)
    truth = truth[:, varies]
    return np.stack([_errors(predicted, targets)[:, varies] ** 2, truth**2, truth], 1)


def _r2(means: Floats) -> Floats:
    """The share of the variance that is explained, averaged over the values that vary."""
    variance = means[:, 1] - means[:, 2] ** 2
    return _mean_of_known(1 - means[:, 0] / np.where(variance > 0, variance, np.nan), 1)


def _surprise(predicted: Values, scores: Values, targets: Values) -> Floats:
    """Return the summed cross-entropy of each text, and its known tokens, `[s, 2]`."""
    from scipy.special import log_softmax

    found = np.zeros((len(targets), 2))
    for text, (logits, right) in enumerate(zip(scores, targets, strict=True)):
        known = right >= 0
        chances = log_softmax(np.asarray(logits[known], np.float64), axis=1)
        found[text] = -np.take_along_axis(chances, right[known, None], 1).sum(), known.sum()
    return found


BOUNDED: dict[str, Bootstrap | Callable[[Values, Values], tuple[float, float]]] = {
    "accuracy": Bootstrap(_count_classes, _accuracy, is_share=True),
    "balanced_accuracy": Bootstrap(_count_classes, _balanced_accuracy, is_share=True),
    "f1": Bootstrap(_count_for_f1, _f1, is_share=True),
    "iou": Bootstrap(_count_classes, _iou, is_share=True),
    "auroc": _bound_auroc,
    "average_precision": _bound_average_precision,
    "rmse": Bootstrap(lambda p, _, t: (_errors(p, t) ** 2).mean(1), np.sqrt),
    "mae": Bootstrap(lambda p, _, t: np.abs(_errors(p, t)).mean(1), np.asarray),
    "r2": Bootstrap(_squares, _r2),
    "perplexity": Bootstrap(_surprise, lambda means: np.exp(means[:, 0] / means[:, 1])),
}
"""The metrics that have an interval. That of accuracy follows from the number of samples if each has one class."""
