"""What a run reports of its clients: pure functions of arrays.

See docs/methods/conventions.md, conventions 6 and 9.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from coterie.errors import BadInput, unknown
from coterie.grouping.labels import relabel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]


def client_f1(actual: npt.ArrayLike, predicted: npt.ArrayLike, correct: npt.ArrayLike) -> Floats:
    """Each client's F1, averaged over the classes that occur in its labels or its predictions.

    Args:
        actual: test samples of each class `[..., classes]`.
        predicted: how often each class was predicted `[..., classes]`.
        correct: how often rightly `[..., classes]`.

    Returns:
        In 0 … 1, `[...]`; NaN for a client without test samples.
    """
    occurrences = np.asarray(actual, np.float64) + np.asarray(predicted, np.float64)
    hits = np.asarray(correct, np.float64)
    classes = (occurrences > 0).sum(-1)
    found = np.full(classes.shape, np.nan)
    # By how many classes occur: a mean over those alone, and none over zeros that stand for the others.
    for count in np.unique(classes[classes > 0]):
        some = classes == count
        occurs = occurrences[some] > 0
        each = 2 * hits[some][occurs] / occurrences[some][occurs]
        found[some] = each.reshape(-1, count).mean(-1)
    return found


def micro(values: npt.ArrayLike, samples: npt.ArrayLike) -> float:
    """Return the mean weighted by test samples, both `[clients]`; NaN if nobody has any."""
    value, weight = np.asarray(values, np.float64), np.asarray(samples, np.float64)
    known = weight > 0
    return float(value[known] @ weight[known] / weight[known].sum()) if known.any() else float("nan")


def macro(values: npt.ArrayLike) -> float:
    """Return the plain mean over the clients whose value `[clients]` is known (not NaN)."""
    known = _known(values)
    return float(known.mean()) if known.size else float("nan")


def worst10(values: npt.ArrayLike, falls: bool = False) -> float:
    """Return the mean of the worst tenth of the values `[clients]`, rounded down, at least one client.

    The worst are the lowest; where less is better (`falls`), the highest.
    """
    known = np.sort(_known(values))
    known = known[::-1] if falls else known
    return float(known[: max(1, known.size // 10)].mean()) if known.size else float("nan")


def std(values: npt.ArrayLike) -> float:
    """Return the standard deviation over the clients `[clients]`, in the unit of the values."""
    known = _known(values)
    # Of infinite values, as an error after training has diverged, there is none.
    return float(known.std()) if known.size and np.isfinite(known).all() else float("nan")


@dataclass(frozen=True, eq=False)
class ClientScores:
    """The clients' own tests in one round, each `[clients]`; NaN for a client that has none."""

    values: Mapping[str, Floats]
    """By the run's metrics. NaN also where a metric is not defined, as AUROC of samples of one class."""
    loss: Floats
    samples: Floats
    """Test samples."""


@dataclass(frozen=True)
class RunMetric:
    """A metric of a run as tables and pages speak of it: without the function that computes it."""

    name: str
    """Its column in the clients' table."""
    title: str
    """What pages call it: `accuracy`, `RMSE`."""
    explanation: str
    """What it is, for somebody who meets it for the first time."""
    is_share: bool = True
    """From 0 to 1, and shown in per cent."""
    less_is_better: bool = False


@dataclass(frozen=True)
class Metric:
    """One number that summarises an evaluation of all clients: a column of the table of rounds."""

    compute: Callable[[ClientScores], float]
    title: str
    """Its name in tables."""
    meaning: str
    """What it is, in a few words."""
    explanation: str
    """What it is, for somebody who meets it for the first time."""
    is_share: bool = True
    """From 0 to 1, and shown in per cent."""
    less_is_better: bool = False
    is_size: bool = False
    """An error or another size from 0 on, of which a difference says most as a share: 12 % lower."""
    decimals: int | None = None
    """With how many decimals values are shown that are no shares; None for three digits."""


ADAPTED = "adapted_"
"""The beginning of the columns that say of a metric what it is after an adaptation (`evaluation.adapt`)."""

OWN_SAMPLES = "on a client's own held-out samples"
"""What an explanation says of where a metric is measured."""

MACRO = "macro_"
"""The beginning of the columns that are means over clients."""

LOSS = Metric(
    lambda scores: micro(scores.loss, scores.samples),
    "loss",
    "loss over all test samples",
    "the loss on a client's own held-out samples, weighted by their number, so less is better",
    is_share=False,
    less_is_better=True,
    decimals=3,
)


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of a run in order; the first one decides. Columns, measures and words follow from them."""

    of: tuple[RunMetric, ...]

    @classmethod
    def named(cls, names: Sequence[str]) -> RunMetrics:
        """Return the metrics with these names in `coterie.clients.tasks.measures`.

        Raises:
            BadInput: there is no such metric, or none is named.
        """
        if not names:
            raise BadInput("task.metrics is empty; name at least one metric")
        known = known_metrics(names)
        if strange := [name for name in names if name not in known]:
            raise BadInput([unknown("metric", name, known) for name in strange])
        return cls(tuple(known[name] for name in dict.fromkeys(names)))

    @classmethod
    def from_json(cls, tables: Sequence[Mapping[str, Any]]) -> RunMetrics:
        """Return the metrics that `to_json` has written."""
        return cls(tuple(RunMetric(**table) for table in tables))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the metrics as plain tables, so that a run's folder says what its numbers are."""
        return [asdict(metric) for metric in self.of]

    @property
    def deciding(self) -> RunMetric:
        """The metric by which runs are compared."""
        return self.of[0]

    @property
    def headline(self) -> str:
        """The column of the table of rounds by which runs are compared: the mean over clients of the first."""
        return f"{MACRO}{self.deciding.name}"

    @property
    def best(self) -> str:
        """The key of a run's summary under which the best round's headline stands."""
        return f"best_{self.headline}"

    @property
    def further(self) -> tuple[RunMetric, ...]:
        """The metrics that tables show beside the first. That a classifier also has an F1 goes without saying."""
        return () if self == CLASSIFICATION else self.of[1:]

    @property
    def client_columns(self) -> tuple[str, ...]:
        """The columns of scores in the clients' table: the first metric, the loss, and the other metrics."""
        first, *others = (metric.name for metric in self.of)
        return (first, "loss", *others)

    @cached_property
    def columns(self) -> dict[str, Metric]:
        """The columns of scores in the table of rounds, in order."""
        found: dict[str, Metric] = {}
        for metric in self.of:
            found |= _columns_of(metric)
        return {**found, **_extremes_of(self.deciding), "loss": LOSS}

    @cached_property
    def measures(self) -> dict[str, Metric]:
        """What comparisons and published tables can name: every column, and every column after an adaptation."""
        return {**self.columns, **{f"{ADAPTED}{name}": _adapted(column) for name, column in self.columns.items()}}

    @cached_property
    def falling(self) -> tuple[str, ...]:
        """The measures of which less is better."""
        return tuple(name for name, metric in self.measures.items() if metric.less_is_better)

    def summarise(self, scores: ClientScores) -> dict[str, float]:
        """Compute every column from the clients' own tests."""
        return {name: column.compute(scores) for name, column in self.columns.items()}


def _columns_of(metric: RunMetric) -> dict[str, Metric]:
    """Return the two columns of a metric: weighted by test samples, and the mean over clients."""
    name, title, how = metric.name, metric.title, (metric.is_share, metric.less_is_better, _is_size(metric))
    what = metric.explanation if OWN_SAMPLES in metric.explanation else f"{metric.explanation} {OWN_SAMPLES}"
    end = ", so less is better" if metric.less_is_better else ""
    meaning, over = f"{title}, weighted by test samples", f"{what}, weighted by their number{end}"
    if name == "accuracy":  # weighted by test samples, it is that of all samples together
        meaning = "accuracy over all test samples"
        over = "the share of right answers over all held-out samples of all clients"
    return {
        name: Metric(
            lambda scores: micro(scores.values[name], _weights(scores, name)),
            f"{title} over samples",
            meaning,
            over,
            *how,
        ),
        f"{MACRO}{name}": Metric(
            lambda scores: macro(_counted(scores, name)),
            title,
            f"mean {title} over clients",
            f"{what}, averaged over the clients{end}",
            *how,
        ),
    }


def _extremes_of(metric: RunMetric) -> dict[str, Metric]:
    """Return the columns that say how unequal the clients fare in the first metric."""
    name, title, falls = metric.name, metric.title, metric.less_is_better
    return {
        "worst10": Metric(
            lambda scores: worst10(_counted(scores, name), falls),
            "worst 10 %",
            f"mean {title} of the worst tenth of the clients",
            f"the mean {title} of the tenth of the clients that fare worst{', so less is better' * falls}",
            metric.is_share,
            falls,
            _is_size(metric),
        ),
        "std": Metric(
            lambda scores: std(_counted(scores, name)),
            "std",
            f"standard deviation of the {title} over clients",
            f"the standard deviation of the {title} over the clients, so less is better",
            metric.is_share,
            less_is_better=True,
            is_size=not metric.is_share,
        ),
    }


def _is_size(metric: RunMetric) -> bool:
    return metric.less_is_better and not metric.is_share


def _adapted(column: Metric) -> Metric:
    return replace(
        column,
        title=f"{column.title} after adaptation",
        meaning=f"{column.meaning}, after adaptation",
        explanation=f"{column.explanation}, after the client has trained a copy of its model on its own data",
    )


def _weights(scores: ClientScores, name: str) -> Floats:
    """Return the weights of a metric: test samples, and nothing where it is not defined though the loss is."""
    return np.where(np.isnan(scores.values[name]) & np.isfinite(scores.loss), 0.0, scores.samples)


def _counted(scores: ClientScores, name: str) -> Floats:
    """Return the values of a metric `[clients]`, all NaN where a tested client's model gives no numbers.

    A mean over the others would say that all is well.
    """
    values = scores.values[name]
    broken = np.isnan(values) & ~np.isfinite(scores.loss) & (scores.samples > 0)
    return np.full_like(values, np.nan) if broken.any() else values


ACCURACY = RunMetric("accuracy", "accuracy", "the share of right answers")
F1 = RunMetric("f1", "F1", "the mean of precision and recall")

CLASSIFICATION = RunMetrics((ACCURACY, F1))
"""The metrics of a classification that names none, and of run folders that do not say which they have."""

MEASURES = CLASSIFICATION.measures
"""What comparisons of classifications can name."""


def known_metrics(wanted: Sequence[str] = ()) -> dict[str, RunMetric]:
    """Return every metric that a task can name, by name; of those that packages offer, the wanted ones.

    Raises:
        BadInput: what a package offers under a wanted name cannot be used.
    """
    from coterie.clients.tasks.measures import MEASURES

    if problems := [problem for name in wanted if (problem := MEASURES.problem(name)) is not None]:
        raise BadInput(problems)
    others = {m.name: RunMetric(m.name, m.title, m.summary, m.is_share, m.less_is_better) for m in MEASURES}
    return {**others, "accuracy": ACCURACY, "f1": F1}


def agreement(groups: npt.ArrayLike, true_groups: npt.ArrayLike | None) -> tuple[float | None, float | None]:
    """Adjusted Rand index and normalised mutual information between found and true groups.

    Both are `[clients]`; clients without a group (-1) on either side are left out.

    Returns:
        `(ari, nmi)`; `(None, None)` where none are known or no client can be compared.
    """
    if true_groups is None:
        return None, None
    found, true = np.asarray(groups, np.int64), np.asarray(true_groups, np.int64)
    both = (found >= 0) & (true >= 0)
    if not both.any():
        return None, None
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are nearly as many groups as clients
        ari = adjusted_rand_score(true[both], found[both])
        return float(ari), float(normalized_mutual_info_score(true[both], found[both]))


def count_moved(old: npt.ArrayLike | None, new: npt.ArrayLike) -> int:
    """How many clients changed their group, both `[clients]`; 0 where there is no `old`.

    Groups keep no names over a regrouping: they are matched so that as many clients as possible stay. Gaining
    or losing a group altogether (-1) counts as a change.
    """
    if old is None:
        return 0
    before, after = np.asarray(old, np.int64), np.asarray(new, np.int64)
    stay = int(((before < 0) & (after < 0)).sum())
    both = (before >= 0) & (after >= 0)
    if both.any():
        stay += _count_matched(before[both], after[both])
    return int(before.size) - stay


def summary(
    rounds: pl.DataFrame,
    metrics: RunMetrics = CLASSIFICATION,
    last_rounds: int = 1,
    incomplete: Collection[int] = (),
) -> dict[str, Any]:
    """A run in few numbers: the last round's values, the best round, and totals over all rounds.

    Args:
        rounds: the table of rounds (`coterie.runs.folder.tables`), ascending, at least one row.
        metrics: of the run.
        last_rounds: over how many rounds scores are means, up to the last one that was evaluated.
        incomplete: rounds in whose evaluation somebody was missing (`tables.rounds_without_all`). None is the best,
            unless all are incomplete: a mean over other clients is of another thing.

    Returns:
        Every column at its last round, but scores over the last evaluated rounds;
        `rounds` (how many), `best_round` and `best_macro_accuracy` (the earliest of the best; named after the
        metric that decides); and `up_bytes`, `down_bytes`, `passes`, `simulated_seconds`, `seconds`, `moved` and
        `failed` summed, `passes` None where a round did not count them.

    Raises:
        BadInput: no round is finished.
    """
    if not rounds.height:
        raise BadInput("the run has no finished round; there is nothing to sum up yet")
    last: dict[str, Any] = rounds.row(-1, named=True)
    headline = metrics.headline
    evaluated = rounds.filter(pl.col(headline).is_not_null())
    if evaluated.height:
        measured = [name for name in rounds.columns if name in metrics.measures]
        scored = evaluated.filter(pl.col("round") > evaluated["round"][-1] - last_rounds)
        last |= {column: scored[column].mean() for column in measured}
    values = rounds[headline].fill_nan(None)
    like = values.set(rounds["round"].is_in(list(incomplete)), None)
    values = values if like.is_null().all() else like
    best = values.arg_min() if metrics.deciding.less_is_better else values.arg_max()
    best = rounds.height - 1 if best is None else best
    totals = ("up_bytes", "down_bytes", "simulated_seconds", "seconds", "moved", "failed")
    return {
        **last,
        **{column: rounds[column].sum() for column in totals},
        "passes": rounds["passes"].sum() if not rounds["passes"].null_count() else None,
        "rounds": rounds.height,
        "best_round": rounds["round"][best],
        metrics.best: rounds[headline][best],
    }


def _known(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    return array[~np.isnan(array)]


def _count_matched(a: Ints, b: Ints) -> int:
    """Return the most clients that stay where each group `a` keeps at most one group `b`, both `[clients]`.

    Only pairs of groups that share clients are looked at: with many groups, few of all pairs do.
    """
    if np.array_equal(relabel(a), relabel(b)):
        return len(a)
    from scipy.sparse import coo_array, csr_array, eye_array, hstack
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching

    (names, a), (others, b) = np.unique(a, return_inverse=True), np.unique(b, return_inverse=True)
    # Everybody has to be matched, and by no weight of 0: beside the groups b each a has a nobody of its own, and
    # all weights of pairs are greater by 1.
    shared = coo_array((np.ones(len(a)), (a, b)), shape=(len(names), len(others))).tocsr()
    shared.data += 1
    graph = csr_array(hstack([shared, eye_array(len(names))]))
    return int(graph[min_weight_full_bipartite_matching(graph, maximize=True)].sum()) - len(names)
