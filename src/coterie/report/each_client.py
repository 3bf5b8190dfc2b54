"""Each client of a run by name: its scores, and what it gains over each baseline, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.experiments.folder.metrics import ACCURACY, RunMetric
from coterie.experiments.folder.reading import Run
from coterie.report.numbers import FINEST, MISSING, capital, count_of, join_words, measured, signed, significant
from coterie.report.tables import Table
from coterie.report.uncertainty import (
    difference_interval,
    join_intervals,
    least_visible_difference,
    worst_tenth_of_intervals,
)
from coterie.report.why_groups import settled_rounds

MOST_CLIENTS = 1000
"""The page lists at most so many clients: those who lose most."""

MEAN, MAJORITY = "own training mean", "own majority class"

CONSTANTS = {
    **dict.fromkeys(("accuracy", "balanced_accuracy", "f1", "iou"), MAJORITY),
    "auroc": "chance (0.5)",
    "average_precision": "chance",
    "perplexity": "own token counts",
}
"""What the best constant answer is called, by the metric; of a number it is a mean."""

ABOUT = {
    MEAN: "The own training mean is the {metric} of answering with the mean of the client's training targets",
    MAJORITY: "The own majority class is the {metric} of always answering with what is most common in the client's "
    "training samples",
    "chance": "Chance is the {metric} of a score that is the same for every sample, or how common each class is",
    "own token counts": "The own token counts are the {metric} of expecting each token as often as it is in the "
    "client's training samples",
}
"""What a constant answer is, in words."""

HOW = {
    "auroc": "the variance of DeLong et al. 1988, on logits",
    "average_precision": "the number of samples of a class, on logits (Boyd et al. 2013)",
}
"""Where the interval of a score comes from that is no bootstrap, by the metric."""

SAME = 1e-9
"""Scores that differ by less are equal."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Baseline:
    """What each client would score otherwise."""

    name: str
    scores: Floats
    """By the run's first metric `[clients]`; NaN where it is not known."""
    samples: NDArray[np.int64]
    """On which that was counted `[clients]`."""
    fixed: bool = False
    """An answer that needs no model."""
    ends: tuple[Floats, Floats] | None = None
    """Of the interval of each score, each `[clients]`; None where the samples say it."""


@dataclass(frozen=True, eq=False)
class EachClient:
    """The part of a page that says how each client fares."""

    table: Table
    """One row a client, who loses most first."""
    sorted_by: int | None
    """The column by which rows ascend; None where another order puts the worst first."""
    sentences: Sequence[str]
    """What the table says."""
    cautions: Sequence[str]
    """How far it can be trusted."""
    left_out: int
    """Clients for whom there is no room."""


def describe_clients(run: Run, others: Sequence[Run] = ()) -> EachClient | None:
    """Say how each client fares in the last round that was evaluated; None where none was.

    Args:
        run: the run.
        others: each a baseline, where it has the same clients with the same test samples.
    """
    last, metric = run.last, run.metrics.deciding
    if not last.height or not last[metric.name].count():
        return None
    baselines, apart = _find_baselines(run, others)
    scores = _floats(last[metric.name])
    samples = last["test_samples"].to_numpy().astype(np.int64)
    counted = is_counted(run)
    gains = [_gains(run, scores, baseline) for baseline in baselines]
    bounds: list[tuple[Floats, Floats] | None]
    if counted:
        bounds = [_bounds(scores, samples, baseline) for baseline in baselines]
    else:
        own = _ends(run, run)
        bounds = [_bounds_of_ends(run, scores, own, baseline) for baseline in baselines]
    # Models decide who comes first. Where there are none, it is the client's own most common class.
    first = next((i for i, baseline in enumerate(baselines) if not baseline.fixed), 0)
    worth = gains[first] if gains else scores * (-1 if metric.less_is_better else 1)
    order = np.argsort(np.where(np.isnan(worth), np.inf, worth), kind="stable")
    table = _table(run, baselines, gains, bounds, order[:MOST_CLIENTS])
    sentences = [_count(b, g, interval) for b, g, interval in zip(baselines, gains, bounds, strict=True)]
    cautions = _caution(run, scores, samples, bounds, baselines)
    if alone := _count_of_one_class(baselines) if counted else 0:
        sentences.insert(
            0,
            f"{count_of(alone, 'client')} of {last.height:,} {'has' if alone == 1 else 'have'} one class alone in "
            "training: what such a client gains over another model, a constant answer gains, too.",
        )
    if apart:
        cautions.append(
            f"Not held against {join_words(apart)}, whose clients have other test samples or another metric."
        )
    sorted_by = 1 + first if gains else None
    return EachClient(table, sorted_by, sentences, cautions, max(last.height - MOST_CLIENTS, 0))


def is_counted(run: Run) -> bool:
    """Say whether a score is a share of right answers, whose interval follows from the number of samples."""
    return run.metrics.deciding == ACCURACY and not run.intervals.height


def bound_worst_tenth(metric: RunMetric, values: Floats, low: Floats, high: Floats) -> tuple[float, float]:
    """Return between what the mean of the worst tenth lies, from each client's interval `[clients]`."""
    if metric.less_is_better:
        ends = worst_tenth_of_intervals(-values, -high, -low)
        return max(-ends[1], 0.0), -ends[0]  # no error is below zero
    found = worst_tenth_of_intervals(values, low, high)
    return (max(found[0], 0.0), min(found[1], 1.0)) if metric.is_share else found


def _find_baselines(run: Run, others: Sequence[Run]) -> tuple[list[Baseline], list[str]]:
    """Return what each client is held against, and the labels of runs that it cannot be held against."""
    last, found, apart = run.last, list[Baseline](), list[str]()
    for other in others:
        if not _are_same_clients(run, other):
            apart.append(other.label)
            continue
        score = other.last.select("client", "test_samples", pl.col(run.metrics.deciding.name).alias("score"))
        beside = last.select("client").join(score, on="client", how="left", maintain_order="left")
        counts = beside["test_samples"].fill_null(0).to_numpy().astype(np.int64)
        found.append(Baseline(other.label, _floats(beside["score"]), counts, ends=_ends(run, other)))
    constant = _most_common_class(run) if is_counted(run) else _constant_answer(run)
    if constant is not None:
        found.append(constant)
    return found, apart


def _beside(run: Run, other: Run, *columns: str) -> list[Floats]:
    """Return columns of a run's intervals for the clients of another, in their order."""
    known = run.last.select("client").join(other.intervals, on="client", how="left", maintain_order="left")
    return [_floats(known[column]) for column in columns]


def _ends(run: Run, other: Run) -> tuple[Floats, Floats] | None:
    """Return the ends of the intervals of another run's scores; None where it keeps none."""
    low, high = _beside(run, other, "low", "high")
    return None if np.isnan(low).all() else (low, high)


def _constant_answer(run: Run) -> Baseline | None:
    """Return what each client's best constant answer from its training targets scores; None where nobody knows."""
    score, low, high = _beside(run, run, "constant", "constant_low", "constant_high")
    if np.isnan(score).all():
        return None
    name = CONSTANTS.get(run.metrics.deciding.name, MEAN)
    return Baseline(name, score, run.last["test_samples"].to_numpy().astype(np.int64), fixed=True, ends=(low, high))


def _count_of_one_class(baselines: Sequence[Baseline]) -> int:
    return sum(int((baseline.scores == 1).sum()) for baseline in baselines if baseline.fixed)


def _are_same_clients(run: Run, other: Run) -> bool:
    """Say whether the clients of two runs are scored alike on the same samples, as far as the folders tell."""
    if not other.last.height or run.metrics.deciding != other.metrics.deciding:
        return False
    one, two = run.folder.experiment(), other.folder.experiment()
    same = one.get("data") == two.get("data") and one.get("run", {}).get("seed") == two.get("run", {}).get("seed")
    tested = [r.last.select("client", "test_samples").sort("client") for r in (run, other)]
    return same and tested[0].equals(tested[1])


def _most_common_class(run: Run) -> Baseline | None:
    """Return the share of each client's most common class among its training samples; None where nobody says."""
    known = run.last.select("client").join(
        run.people.select("client", "labels"), on="client", how="left", maintain_order="left"
    )
    labels = pl.col("labels")
    counts = known.select(labels.list.sum().alias("all"), labels.list.max().alias("most"))
    if not counts["all"].fill_null(0).sum():
        return None
    samples = counts["all"].fill_null(0).to_numpy().astype(np.int64)
    most = _floats(counts["most"].cast(pl.Float64))
    return Baseline("own majority class", most / np.where(samples > 0, samples, np.nan), samples, fixed=True)


def _floats(series: pl.Series) -> Floats:
    return series.cast(pl.Float64).fill_null(np.nan).to_numpy()


def _gains(run: Run, scores: Floats, baseline: Baseline) -> Floats:
    """Return by how much each client fares better, in points where the metric is a share."""
    metric = run.metrics.deciding
    times = (100 if metric.is_share else 1) * (-1 if metric.less_is_better else 1)
    gain = times * (scores - baseline.scores)
    return np.where(np.abs(gain) < SAME * abs(times), 0.0, gain)


def _bounds(scores: Floats, samples: NDArray[np.int64], baseline: Baseline) -> tuple[Floats, Floats]:
    low, high = difference_interval(scores, samples, baseline.scores, baseline.samples)
    return 100 * low, 100 * high


def _bounds_of_ends(
    run: Run, scores: Floats, own: tuple[Floats, Floats] | None, baseline: Baseline
) -> tuple[Floats, Floats] | None:
    """Return the interval of what each client gains, from the interval of either score; None where one lacks."""
    if own is None or baseline.ends is None:
        return None
    metric, mine, others = run.metrics.deciding, (scores, *own), (baseline.scores, *baseline.ends)
    first, second = (others, mine) if metric.less_is_better else (mine, others)
    low, high = join_intervals(*first, *second)
    times = 100 if metric.is_share else 1
    return times * low, times * high


def _table(
    run: Run,
    baselines: Sequence[Baseline],
    gains: Sequence[Floats],
    bounds: Sequence[tuple[Floats, Floats] | None],
    order: NDArray[np.int64],
) -> Table:
    last, metrics = run.last, run.metrics
    clients, groups = last["client"].to_list(), last["group"].to_list()
    values = [last[metric.name].to_list() for metric in metrics.of]
    samples = last["test_samples"].to_list()
    since = settled_rounds(run) if run.clustered else {}
    moved = len(set(since.values())) > 1
    # Gains stand beside the names: they are what the order is by, and a phone shows them without scrolling.
    header = ["Client", *(f"Gain over {baseline.name}" for baseline in baselines)]
    header += [capital(metric.title) for metric in metrics.of]
    header += [*(["Group"] if run.clustered else []), *(["In it since round"] if moved else []), "Test samples"]
    rows = []
    for i in order.tolist():
        row = [run.names.get(clients[i], f"client {clients[i]}")]
        row += [
            _write_gain(metrics.deciding.is_share, gain[i], None if b is None else (b[0][i], b[1][i]))
            for gain, b in zip(gains, bounds, strict=True)
        ]
        row += [measured(metric, column[i]) for metric, column in zip(metrics.of, values, strict=True)]
        if run.clustered:
            row.append(str(groups[i]) if groups[i] >= 0 else MISSING)
        if moved:
            row.append(str(since[clients[i]]) if groups[i] >= 0 else MISSING)
        rows.append([*row, f"{samples[i]:,}"])
    return Table(header, rows)


def _write_gain(is_share: bool, gain: float, interval: tuple[float, float] | None) -> str:
    if np.isnan(gain):
        return MISSING
    text = f"{round(gain, 1) + 0.0:+.1f}" if is_share else signed(gain)
    if gain == 0:
        text = "0"
    if interval is None or np.isnan(interval[0]):
        return text
    if is_share:
        low, high = (f"{end:+.0f}" for end in interval)
    else:  # as many decimals as give the interval's width two digits
        count = int(np.clip(1 - np.floor(np.log10(max(interval[1] - interval[0], 1e-6))), 0, FINEST))
        text, low, high = (f"{round(value, count) + 0.0:+,.{count}f}" for value in (gain, *interval))
    # An interval is never torn apart; it goes to the next line as a whole.
    return f"{text} ({low}\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}{high})"


def _count(baseline: Baseline, gains: Floats, bounds: tuple[Floats, Floats] | None) -> str:
    """Say how many gain and lose over a baseline, and how many of them by more than chance."""
    known = gains[~np.isnan(gains)]
    words = f"Against {baseline.name}: {(known > 0).sum():,} gain, {(known < 0).sum():,} lose"
    if same := int((known == 0).sum()):
        words += f", {same:,} {'is' if same == 1 else 'are'} equal"
    if silent := len(gains) - len(known):
        words += f", for {silent:,} it is not known"
    if bounds is None or not len(known):
        return f"{words}."
    up, down = int((bounds[0] > 0).sum()), int((bounds[1] < 0).sum())
    if not up and not down:
        return f"{words}; for nobody is that more than chance."
    return f"{words}; by more than chance {up:,} gain and {down:,} lose."


def _caution(
    run: Run,
    scores: Floats,
    samples: NDArray[np.int64],
    bounds: Sequence[tuple[Floats, Floats] | None],
    baselines: Sequence[Baseline],
) -> list[str]:
    """Say what the intervals are, and what could be seen at all."""
    metric = run.metrics.deciding
    deciding = f"Gains are by {metric.title}, the first of the run's metrics, which decides. "
    if not is_counted(run):
        seen = f"{visible_gain} " if (visible_gain := _say_visible(run, bounds)) else ""
        several = len(run.metrics.of) > 1 and baselines
        return [f"{deciding if several else ''}{seen}{_explain_ends(run, bounds, baselines)}"]
    tested = samples[(samples > 0) & ~np.isnan(scores)]
    if not len(tested):
        return []
    median = int(np.median(tested))
    # Around what both score; a baseline that is far worse leaves more room for chance.
    means = [
        np.nanmean(of) for of in (scores, *(b.scores for b in baselines if not b.fixed)) if not np.isnan(of).all()
    ]
    visible = least_visible_difference(float(np.mean([means[0], np.mean(means[1:] or means)])), median)
    said = [
        f"A client here has {count_of(median, 'test sample')} (median). "
        + (
            "With so few no difference at all can be told from chance for one client."
            if np.isnan(visible)
            else f"For one client a difference below about {100 * visible:.0f} points cannot be told from chance."
        )
    ]
    if baselines:
        said.append(
            "Gains are in percentage points. In brackets: an interval of 95% from the client's own test samples "
            "(Newcombe 1998, method 10). Both "
            "models are taken as tested on separate samples, so it is rather too wide. Of 20 clients without any "
            "difference, about one falls outside by chance. The own majority class is the share of the client's "
            "most common class in its training samples: a model that gains nothing over it has learned nothing "
            "that the client did not know."
        )
    return said


def _say_visible(run: Run, bounds: Sequence[tuple[Floats, Floats] | None]) -> str:
    """Say what gain could be seen at all of a client: half of what its interval is wide."""
    widths = [(high - low)[~np.isnan(high - low)] for low, high in filter(None, bounds)]
    if not widths or not len(widths[0]):
        return ""
    metric, median = run.metrics.deciding, float(np.median(widths[0])) / 2
    least = f"{median:.0f} points" if metric.is_share else f"{significant(median, 2)} in {metric.title}"
    tested = int(np.median(run.last["test_samples"].to_numpy()))
    return (
        f"A client here has {count_of(tested, 'test sample')} (median); for one client a difference below about "
        f"{least} cannot be told from chance."
    )


def _explain_ends(run: Run, bounds: Sequence[tuple[Floats, Floats] | None], baselines: Sequence[Baseline]) -> str:
    """Say where the intervals of gains come from, where they do not follow from the number of samples."""
    metric = run.metrics.deciding
    if all(ends is None for ends in bounds):
        return (
            f"No interval can be given: for {metric.title} one needs the score of every test sample. A simulation "
            "computes it when a run ends, of the metrics that it knows; real clients, and those who were promised "
            "privacy, say no more than their scores."
        )
    how = HOW.get(metric.name, "a bootstrap of 1,000 draws at most; with few samples that is too narrow")
    said = (
        f"In brackets: an interval of 95% from the client's own test samples, by {how}. Both models are taken as "
        "tested on separate samples (Zou and Donner 2008), so it is rather too wide. Of 20 clients without any "
        "difference, about one falls outside by chance."
    )
    fixed = next((baseline.name for baseline in baselines if baseline.fixed), "")
    if fixed in ABOUT:
        said += (
            f" {ABOUT[fixed].format(metric=metric.title)}: a model that gains nothing over it has learned nothing "
        )
        said += "that the client did not know."
    return said
