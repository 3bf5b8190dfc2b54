"""What each client gains over another model, how sure that is by its own test samples, and how it is written."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.errors import count_of
from coterie.report.numbers import FINEST, MISSING, signed, significant
from coterie.report.uncertainty import (
    DRAWS,
    join_intervals,
    wilson_interval,
    worst_tenth_interval,
    worst_tenth_of_intervals,
)
from coterie.runs.folder.metrics import ACCURACY, RunMetric

MOST_CLIENTS = 1000
"""A page lists at most so many clients: those who lose most."""

HOW = {
    "auroc": "the variance of DeLong et al. 1988, on logits",
    "average_precision": "the number of samples of a class, on logits (Boyd et al. 2013)",
}
"""Where the interval of a score comes from that is no bootstrap, by the metric."""

SAME = 1e-9
"""Scores that differ by less are equal."""

Floats = NDArray[np.float64]

Ends = tuple[Floats, Floats]
"""The lower and the upper end of each client's interval, each `[clients]`; NaN where there is none."""


def is_counted(metric: RunMetric, low: Floats) -> bool:
    """Say whether a score is a share of right answers, whose interval follows from the number of samples.

    Args:
        metric: that decides.
        low: the lower ends that the run keeps `[clients]`; all NaN where it keeps none, as none is needed.
    """
    return metric == ACCURACY and bool(np.isnan(low).all())


def bound_scores(
    metric: RunMetric, scores: Floats, samples: NDArray[np.int64], low: Floats, high: Floats
) -> Ends | None:
    """Return the interval of each client's score; None where no client has one.

    Args:
        metric: by which they are scored.
        scores: `[clients]`.
        samples: that they were tested on `[clients]`.
        low: the lower ends that the run keeps `[clients]`; all NaN where it keeps none.
        high: the upper ends.
    """
    if is_counted(metric, low):
        return wilson_interval(scores, samples)
    return None if np.isnan(low).all() else (low, high)


def bound_worst_tenth(
    metric: RunMetric, scores: Floats, samples: NDArray[np.int64], low: Floats, high: Floats, draws: int = DRAWS
) -> tuple[float, float]:
    """Return between what the mean of the worst tenth of the clients lies; NaN where some client has no interval.

    Args:
        metric: by which clients are scored.
        scores: of the clients who were tested and have one `[clients]`.
        samples: that they were tested on, at least one each `[clients]`.
        low: the lower ends that the run keeps `[clients]`; all NaN where it keeps none.
        high: the upper ends.
        draws: of the bootstrap at most.
    """
    if not len(scores):
        return float("nan"), float("nan")
    if is_counted(metric, low):
        return worst_tenth_interval(scores, samples, draws)
    if not np.isfinite([scores, low, high]).all():  # the tenth of some clients is not that of all
        return float("nan"), float("nan")
    if metric.less_is_better:
        ends = worst_tenth_of_intervals(-scores, -high, -low, draws)
        return max(-ends[1], 0.0), -ends[0]  # no error is below zero
    found = worst_tenth_of_intervals(scores, low, high, draws)
    return (max(found[0], 0.0), min(found[1], 1.0)) if metric.is_share else found


def gain_over(metric: RunMetric, scores: Floats, others: Floats) -> Floats:
    """Return by how much each client fares better, in percentage points where the metric is a share `[clients]`."""
    with np.errstate(invalid="ignore"):  # what two models gain over each other is not known where both diverged
        gain = _times(metric) * (-1 if metric.less_is_better else 1) * (scores - others)
    return np.where(np.abs(gain) < SAME * _times(metric), 0.0, gain)


def bound_gains(
    metric: RunMetric, scores: Floats, ends: Ends | None, others: Floats, other_ends: Ends | None
) -> Ends | None:
    """Return the interval of what each client gains, from the interval of either score; None where one lacks.

    Of shares of right answers that is Newcombe's: R. G. Newcombe, Interval estimation for the difference between
    independent proportions: comparison of eleven methods, Statistics in Medicine 17 (1998), method 10.
    """
    if ends is None or other_ends is None:
        return None
    mine, theirs = (scores, *ends), (others, *other_ends)
    first, second = (theirs, mine) if metric.less_is_better else (mine, theirs)
    with np.errstate(invalid="ignore"):
        low, high = join_intervals(*first, *second)
    return _times(metric) * low, _times(metric) * high


def write_gain(metric: RunMetric, gain: float | None, interval: tuple[float, float] | None = None) -> str:
    """Write what a client gains, and between what that lies."""
    if gain is None or np.isnan(gain):
        return MISSING
    text = f"{round(gain, 1) + 0.0:+.1f}" if metric.is_share else signed(gain)
    if gain == 0:
        text = "0"
    if interval is None or not np.isfinite(interval).all():
        return text
    if metric.is_share:
        low, high = (f"{end:+.0f}" for end in interval)
    else:  # as many decimals as give the interval's width two digits
        count = int(np.clip(1 - np.floor(np.log10(max(interval[1] - interval[0], 1e-6))), 0, FINEST))
        text, low, high = (f"{round(value, count) + 0.0:+,.{count}f}" for value in (gain, *interval))
    return f"{text} {write_interval(low, high)}"


def write_interval(low: str, high: str) -> str:
    """Write an interval that is never torn apart: it goes to the next line as a whole."""
    return f"({low}\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}{high})"


def count_gains(name: str, gains: Floats, ends: Ends | None) -> str:
    """Say how many gain and lose over a baseline of that name, and how many of them by more than chance."""
    known = gains[~np.isnan(gains)]
    words = f"Against {name}: {(known > 0).sum():,} gain, {(known < 0).sum():,} lose"
    if same := int((known == 0).sum()):
        words += f", {same:,} {'is' if same == 1 else 'are'} equal"
    if silent := len(gains) - len(known):
        words += f", for {silent:,} it is not known"
    if ends is None or not len(known):
        return f"{words}."
    up, down = int((ends[0] > 0).sum()), int((ends[1] < 0).sum())
    if not up and not down:
        return f"{words}; none of this is beyond chance."
    return f"{words}; {up:,} of the gains and {down:,} of the losses are beyond chance."


def say_visible(metric: RunMetric, samples: NDArray[np.int64], ends: Ends | None) -> str:
    """Say what gain could be seen at all of one client: half as wide as intervals are; nothing where none is known.

    Args:
        metric: by which clients are scored.
        samples: that they were tested on `[clients]`.
        ends: of the intervals of gains.
    """
    if ends is None or np.isnan(ends).all():
        return ""
    half = float(np.nanmedian(ends[1] - ends[0])) / 2
    size = f"{half:.0f} points" if metric.is_share else f"{significant(half, 2)} in {metric.title}"
    said = f"A client here has {count_of(int(np.median(samples)), 'test sample')} (median)."
    return f"{said} For one client a difference below about {size} may be chance."


def explain_intervals(metric: RunMetric, *, counted: bool, known: bool) -> str:
    """Say where the intervals of gains come from.

    Args:
        metric: by which clients are scored.
        counted: whether scores are shares of right answers.
        known: whether there are intervals.
    """
    if not known:
        return (
            f"No interval can be given: for {metric.title} it takes the score of every test sample. A simulation "
            "computes intervals when a run ends, for the metrics that it knows. Real clients, and clients who were "
            "promised privacy, report only their scores."
        )
    if counted:
        begun, how, source = "Gains are in percentage points. ", " (Newcombe 1998, method 10)", ""
    else:
        by = HOW.get(metric.name, "a bootstrap of 1,000 draws at most; with few samples that is too narrow")
        begun, how, source = "", f", by {by}", " (Zou and Donner 2008)"
    return (
        f"{begun}In brackets: a 95 % interval from the client's own test samples{how}. It is slightly too wide, "
        f"because it treats the two models as if they were tested on different samples{source}. Of 20 clients "
        "without any difference, the interval of about one leaves out zero by chance."
    )


def floats(series: pl.Series) -> Floats:
    """Return a column as numbers, NaN where one is missing."""
    return series.cast(pl.Float64).fill_null(np.nan).to_numpy()


def _times(metric: RunMetric) -> float:
    return 100.0 if metric.is_share else 1.0
