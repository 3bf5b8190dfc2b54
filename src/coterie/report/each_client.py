"""Each client of a run by name: its scores, and what it gains over each baseline, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.errors import count_of
from coterie.report.gains import (
    MOST_CLIENTS,
    Ends,
    Floats,
    bound_gains,
    bound_scores,
    count_gains,
    explain_intervals,
    floats,
    gain_over,
    is_counted,
    say_visible,
    write_gain,
)
from coterie.report.numbers import MISSING, capital, join_words, measured
from coterie.report.tables import Table
from coterie.report.uncertainty import wilson_interval
from coterie.report.why_groups import settled_rounds
from coterie.runs.folder.baselines import LOCAL, TITLES, TUNED
from coterie.runs.folder.reading import RunResults

MEAN, MAJORITY = "own training mean", "own majority class"

CONSTANTS = {
    **dict.fromkeys(("accuracy", "balanced_accuracy", "f1", "iou"), MAJORITY),
    "auroc": "chance (0.5)",
    "average_precision": "chance",
    "perplexity": "own token counts",
}
"""What the best constant answer is called, by the metric; of a number it is a mean."""

ABOUT = {
    MEAN: "Own training mean: the {metric} of always predicting the mean of the client's training targets",
    MAJORITY: "Own majority class: the {metric} of always predicting what is most common in the client's training "
    "samples",
    "chance": "Chance: the {metric} of giving every sample the same score, which is how common each class is",
    "own token counts": "Own token counts: the {metric} of predicting each token as often as it occurs in the "
    "client's training samples",
}
"""What a constant answer is, in words."""


WHAT_MODEL = {
    TUNED: "a copy of FedAvg's model that each client has fine-tuned on its own training samples",
    TITLES[LOCAL]: "a model of the client's own training samples alone",
}
"""What model a client has by a baseline."""


@dataclass(frozen=True, eq=False)
class Baseline:
    """What each client would score otherwise."""

    name: str
    scores: Floats
    """By the run's first metric `[clients]`; NaN where it is not known."""
    ends: Ends | None
    """Of the interval of each score; None where there is none."""
    fixed: bool = False
    """An answer that needs no model."""


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


def describe_clients(run: RunResults, others: Sequence[RunResults] = ()) -> EachClient | None:
    """Say how each client fares in the last round that was evaluated; None where none was.

    Args:
        run: the run.
        others: each a baseline, where it has the same clients with the same test samples.
    """
    last, metric = run.last, run.metrics.deciding
    if not last.height or not last[metric.name].count():
        return None
    baselines, apart = _find_baselines(run, others)
    scores, samples = floats(last[metric.name]), last["test_samples"].to_numpy().astype(np.int64)
    low, high = _beside(run, run, "low", "high")
    counted, own = is_counted(metric, low), bound_scores(metric, scores, samples, low, high)
    gains = [gain_over(metric, scores, baseline.scores) for baseline in baselines]
    bounds = [bound_gains(metric, scores, own, baseline.scores, baseline.ends) for baseline in baselines]
    # Models decide who comes first. Where there are none, it is the client's own most common class.
    first = next((i for i, baseline in enumerate(baselines) if not baseline.fixed), 0)
    worth = gains[first] if gains else scores * (-1 if metric.less_is_better else 1)
    order = np.argsort(np.where(np.isnan(worth), np.inf, worth), kind="stable")
    table = _table(run, baselines, gains, bounds, order[:MOST_CLIENTS])
    sentences = [count_gains(b.name, g, ends) for b, g, ends in zip(baselines, gains, bounds, strict=True)]
    cautions = _caution(run, counted, scores, samples, bounds, baselines)
    if alone := sum(int((b.scores == 1).sum()) for b in baselines if b.fixed and counted):
        sentences.insert(
            0,
            f"{count_of(alone, 'client')} of {last.height:,} {'has' if alone == 1 else 'have'} only one "
            "class in its tests: what such a client gains over another model, a constant answer gains as well.",
        )
    if apart:
        cautions.append(
            f"Not compared with {join_words(apart)}, whose clients have other test samples or another metric."
        )
    sorted_by = 1 + first if gains else None
    return EachClient(table, sorted_by, sentences, cautions, max(last.height - MOST_CLIENTS, 0))


def _find_baselines(run: RunResults, others: Sequence[RunResults]) -> tuple[list[Baseline], list[str]]:
    """Return what each client is held against, and the labels of runs that it cannot be held against."""
    last, found, apart = run.last, list[Baseline](), list[str]()
    for other in others:
        if not _are_same_clients(run, other):
            apart.append(other.label)
            continue
        metric = run.metrics.deciding
        tested = other.last.select("client", "test_samples", pl.col(metric.name).alias("score"))
        beside = last.select("client").join(tested, on="client", how="left", maintain_order="left")
        scores, counts = floats(beside["score"]), beside["test_samples"].fill_null(0).to_numpy().astype(np.int64)
        ends = bound_scores(metric, scores, counts, *_beside(run, other, "low", "high"))
        found.append(Baseline(other.label, scores, ends))
    if (constant := find_constant(run)) is not None:
        found.append(constant)
    return found, apart


def _beside(run: RunResults, other: RunResults, *columns: str) -> list[Floats]:
    """Return columns of a run's intervals for the clients of another, in their order."""
    known = run.last.select("client").join(other.intervals, on="client", how="left", maintain_order="left")
    return [floats(known[column]) for column in columns]


def score_constant(run: RunResults) -> tuple[str, float] | None:
    """Return what the best constant answer is called, and its mean over clients; None where nobody knows it."""
    constant = find_constant(run)
    if constant is None or np.isnan(constant.scores).all():
        return None
    return constant.name, float(np.nanmean(constant.scores))


def find_constant(run: RunResults) -> Baseline | None:
    """Return each client's own best constant answer; None where nobody knows it."""
    counted = is_counted(run.metrics.deciding, _beside(run, run, "low")[0])
    return _most_common_class(run) if counted else _constant_answer(run)


def _constant_answer(run: RunResults) -> Baseline | None:
    """Return what each client's best constant answer from its training targets scores; None where nobody knows."""
    score, low, high = _beside(run, run, "constant", "constant_low", "constant_high")
    if np.isnan(score).all():
        return None
    name = CONSTANTS.get(run.metrics.deciding.name, MEAN)
    return Baseline(name, score, (low, high), fixed=True)


def _are_same_clients(run: RunResults, other: RunResults) -> bool:
    """Say whether the clients of two runs are scored alike on the same samples, as far as the folders tell."""
    if not other.last.height or run.metrics.deciding != other.metrics.deciding:
        return False
    one, two = run.folder.experiment(), other.folder.experiment()
    same = one.get("data") == two.get("data") and one.get("run", {}).get("seed") == two.get("run", {}).get("seed")
    tested = [r.last.select("client", "test_samples").sort("client") for r in (run, other)]
    return same and tested[0].equals(tested[1])


def _most_common_class(run: RunResults) -> Baseline | None:
    """Return the share of each client's most common class among its training samples; None where nobody says."""
    known = run.last.select("client").join(
        run.federation.select("client", "labels"), on="client", how="left", maintain_order="left"
    )
    labels = pl.col("labels")
    counts = known.select(labels.list.sum().alias("all"), labels.list.max().alias("most"))
    if not counts["all"].fill_null(0).sum():
        return None
    samples = counts["all"].fill_null(0).to_numpy().astype(np.int64)
    share = floats(counts["most"].cast(pl.Float64)) / np.where(samples > 0, samples, np.nan)
    return Baseline(MAJORITY, share, wilson_interval(share, samples), fixed=True)


def _table(
    run: RunResults,
    baselines: Sequence[Baseline],
    gains: Sequence[Floats],
    bounds: Sequence[Ends | None],
    order: NDArray[np.int64],
) -> Table:
    last, metrics = run.last, run.metrics
    clients, groups = last["client"].to_list(), last["group"].to_list()
    values = [last[metric.name].to_list() for metric in metrics.of]
    samples = last["test_samples"].to_list()
    since = dict(settled_rounds(run).iter_rows()) if run.clustered else {}
    moved = len(set(since.values())) > 1
    # Gains stand beside the names: they are what the order is by, and a phone shows them without scrolling.
    header = ["Client", *(f"Gain over {baseline.name}" for baseline in baselines)]
    header += [capital(metric.title) for metric in metrics.of]
    header += [*(["Group"] if run.clustered else []), *(["In it since round"] if moved else []), "Test samples"]
    rows = []
    for i in order.tolist():
        row = [run.names.get(clients[i], f"client {clients[i]}")]
        row += [
            write_gain(metrics.deciding, gain[i], None if b is None else (b[0][i], b[1][i]))
            for gain, b in zip(gains, bounds, strict=True)
        ]
        row += [measured(metric, column[i]) for metric, column in zip(metrics.of, values, strict=True)]
        if run.clustered:
            row.append(str(groups[i]) if groups[i] >= 0 else MISSING)
        if moved:
            row.append(str(since[clients[i]]) if groups[i] >= 0 else MISSING)
        rows.append([*row, f"{samples[i]:,}"])
    return Table(header, rows)


def _caution(
    run: RunResults,
    counted: bool,
    scores: Floats,
    samples: NDArray[np.int64],
    bounds: Sequence[Ends | None],
    baselines: Sequence[Baseline],
) -> list[str]:
    """Say what the intervals are, and what could be seen at all."""
    metric = run.metrics.deciding
    tested = samples[(samples > 0) & ~np.isnan(scores)]
    several = len(run.metrics.of) > 1 and baselines and not counted
    decides = f"Gains are by {metric.title}, the first of the run's metrics, which decides." if several else ""
    visible = say_visible(metric, tested, next(filter(None, bounds), None))
    known = any(ends is not None for ends in bounds)
    intervals = explain_intervals(metric, counted=counted, known=known) if baselines else ""
    fixed = next((baseline.name for baseline in baselines if baseline.fixed), "")
    if fixed in ABOUT:
        intervals += (
            f" {ABOUT[fixed].format(metric=metric.title)}. A model that gains nothing over it has learned nothing "
            "that the client did not know."
        )
    models_of = [f"{b.name} is {WHAT_MODEL[b.name]}" for b in baselines if b.name in WHAT_MODEL]
    told = f"{', '.join(models_of)}." if models_of else ""
    return list(filter(None, [" ".join(filter(None, [decides, visible])), intervals, told]))
