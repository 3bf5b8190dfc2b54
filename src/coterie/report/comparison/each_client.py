"""Each client of a comparison by name: what it gains by each method, and by which it would do best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.errors import count_of
from coterie.report.comparison.client_gains import (
    OTHER,
    are_same_people,
    count_by_method,
    labels_of,
    mean_if_known,
    pair_clients,
)
from coterie.report.comparison.view import View
from coterie.report.gains import (
    SAME,
    Ends,
    Floats,
    bound_gains,
    count_gains,
    explain_intervals,
    floats,
    is_counted,
    say_visible,
    write_gain,
)
from coterie.report.numbers import MISSING, capital, join_words, measured
from coterie.report.tables import Table
from coterie.runs.folder.metrics import RunMetric

ENDS = ("score", "low", "high")
"""The columns of a score and its interval."""


@dataclass(frozen=True, eq=False)
class MethodView:
    """What the table of clients shows of one method."""

    method: str
    title: str
    """The heading of the column of its scores."""
    says: str
    """How many gain and lose by it."""
    cells: Sequence[Sequence[str]]
    """What stands in each row right of the client's name."""


@dataclass(frozen=True, eq=False)
class ClientsByMethod:
    """The part of a comparison's page that says how each client fares."""

    table: Table
    """One row a client with what the first choice shows, who loses most first."""
    choices: Sequence[MethodView]
    """One a method: the one that the page recommends, then the others by their mean gain."""
    cautions: Sequence[str]
    """How far it can be trusted."""
    left_out: int
    """Clients for whom there is no room."""


@dataclass(frozen=True, eq=False)
class _Scores:
    """What each client scores with one method."""

    values: Floats
    """`[clients]`; NaN where it is not known."""
    ends: Ends
    """Of the interval of each score."""

    def gain_bounds(self, metric: RunMetric, others: _Scores) -> Ends | None:
        """Return the interval of what each client gains over other scores; None where nobody has one."""
        found = bound_gains(metric, self.values, self.ends, others.values, others.ends)
        return None if found is None or np.isnan(found[0]).all() else found


@dataclass(frozen=True, eq=False)
class _Best:
    """By which method each client does best."""

    names: Sequence[str]
    """The method of each, and how many more are as good; `MISSING` where no method works."""
    scores: _Scores
    """With that; NaN where no method works."""
    worth: Floats
    """`[clients]`: that score, the more the better; -inf where no method works."""
    own: Mapping[str, _Scores]
    """What each method scores over the same seeds as the best."""


def describe_clients(view: View, most: int) -> ClientsByMethod | None:
    """Say what each client gains over the baseline by every method; None where nobody gains or loses by any.

    Args:
        view: the setting.
        most: clients that are listed at most: those who lose most by the method that the page recommends.
    """
    found, metric = pair_clients(view), view.metrics.deciding
    if not (found["gain"] != 0).any():
        return None
    keys = ["client"] if are_same_people(view) else ["seed", "client"]
    people = found.group_by(keys, maintain_order=True).agg(pl.col("name").first(), pl.col("test_samples").max())
    methods = sorted(count_by_method(found)["method"], key=lambda method: method != view.best)
    pairs = {method: _place(people, found.filter(pl.col("method") == method), keys) for method in methods}
    gains = floats(pairs[methods[0]]["gain"])
    order = np.argsort(np.where(np.isnan(gains), np.inf, gains), kind="stable")[:most]
    best = _find_best(view, people, keys, [methods[0], view.baseline, *methods[1:]])
    labels = labels_of(found)
    choices = [_choose(view, method, pairs[method], best, order, len(labels) > 1) for method in methods]
    several = len(methods) > 1
    header = ["Client", f"Gain over {view.baseline}", choices[0].title, _title(view, view.baseline)]
    header += ["Group"] if len(labels) > 1 else []
    header += [*(["Best with", f"{capital(metric.title)} with that"] if several else []), "Test samples"]
    rows = []
    for i, cells in zip(order.tolist(), choices[0].cells, strict=True):
        person = people.row(i, named=True)
        of_seed = f", seed {person['seed']}" if "seed" in person and len(view.seeds) > 1 else ""
        reached = [best.names[i], measured(metric, best.scores.values[i])] if several else []
        rows.append([f"{person['name']}{of_seed}", *cells, *reached, f"{person['test_samples'] or 0:,.0f}"])
    cautions = _caution(view, people, pairs[methods[0]], methods)
    return ClientsByMethod(Table(header, rows), choices, cautions, people.height - len(order))


def _place(people: pl.DataFrame, frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the rows of a frame in the order of the people, with nulls where it lacks one."""
    return people.select(keys).join(frame, on=keys, how="left", maintain_order="left")


def _read_scores(frame: pl.DataFrame, columns: Sequence[str] = ENDS) -> _Scores:
    values, low, high = (floats(frame[column]) for column in columns)
    return _Scores(values, (low, high))


def _title(view: View, method: str) -> str:
    return f"{capital(view.metrics.deciding.title)} with {method}"


def _choose(
    view: View, method: str, pair: pl.DataFrame, best: _Best, order: NDArray[np.int64], grouped: bool
) -> MethodView:
    """Write what the table shows of one method, from its clients and the baseline's side by side."""
    metric, own, other = view.metrics.deciding, _read_scores(pair), _read_scores(pair, OTHER)
    gains, ends = floats(pair["gain"]), own.gain_bounds(metric, other)
    labels = pair["label"].to_list()
    cells = [
        [
            write_gain(metric, gains[i], None if ends is None else (ends[0][i], ends[1][i])),
            measured(metric, own.values[i]),
            measured(metric, other.values[i]),
            *([labels[i] or MISSING] if grouped else []),
        ]
        for i in order.tolist()
    ]
    said = [count_gains(view.baseline, gains, ends), _say_better(metric, method, best)]
    return MethodView(method, _title(view, method), " ".join(filter(None, said)), cells)


def _find_best(view: View, people: pl.DataFrame, keys: list[str], methods: Sequence[str]) -> _Best:
    """Find the method by which each client does best; of several that are as good, the first."""
    scored = view.scored
    if "seed" not in keys:
        scored = scored.filter(pl.col("seed").is_in(_common_seeds(view, methods)))
    over_seeds = scored.group_by("method", *keys, maintain_order=True).agg(
        pl.len().alias("seeds"), *map(mean_if_known, ENDS)
    )
    frames = [_place(people, over_seeds.filter(pl.col("method") == method), keys) for method in methods]
    scores = [_read_scores(frame) for frame in frames]
    seeds = np.array([floats(frame["seeds"].fill_null(0)) for frame in frames])
    values = np.array([score.values for score in scores])
    # A mean over some of the seeds is not held against one over all of them.
    values[seeds < seeds.max(0)] = np.nan
    worth = _weigh(view.metrics.deciding, values)
    equal = worth >= worth.max(0) - SAME
    first, clients = equal.argmax(0), np.arange(people.height)
    works = np.isfinite(worth.max(0))
    names = [
        (methods[one] if count == 1 else f"{methods[one]} and {count - 1:,} more") if works_here else MISSING
        for one, count, works_here in zip(first, equal.sum(0), works, strict=True)
    ]
    low, high = (np.array([score.ends[end] for score in scores])[first, clients] for end in (0, 1))
    own = {method: _Scores(of, score.ends) for method, of, score in zip(methods, values, scores, strict=True)}
    reached = np.where(works, values[first, clients], np.nan)
    return _Best(names, _Scores(reached, (low, high)), worth.max(0), own)


def _common_seeds(view: View, methods: Sequence[str]) -> list[int]:
    """Return the seeds that every one of the methods has finished."""
    of = [set(view.cells.filter(pl.col("method") == method)["seed"]) for method in methods]
    return sorted(set.intersection(*of))


def _weigh(metric: RunMetric, values: Floats) -> Floats:
    """Turn scores into what is more the better the model is; -inf where a score is not known."""
    return np.where(np.isnan(values), -np.inf, values * (-1 if metric.less_is_better else 1))


def _say_better(metric: RunMetric, method: str, best: _Best) -> str:
    """Say for how many clients another method is better, and for how many by more than chance."""
    own = best.own[method]
    known = ~np.isnan(own.values)
    if not known.any():
        return ""
    better = known & (best.worth > _weigh(metric, own.values) + SAME)
    if not better.any():
        return f"No client has a better method here than {method}."
    of = count_of(int(known.sum()), "client")
    said = f"For {better.sum():,} of {of} another method here is better than {method}"
    ends = best.scores.gain_bounds(metric, own)
    if ends is None:
        return f"{said}."
    sure = int((better & (ends[0] > 0)).sum())
    return f"{said}, for {f'{sure:,}' if sure else 'none'} of them by more than chance."


def _caution(view: View, people: pl.DataFrame, pair: pl.DataFrame, methods: Sequence[str]) -> list[str]:
    """Say what the intervals are of, and what could be seen at all."""
    metric, own, other = view.metrics.deciding, _read_scores(pair), _read_scores(pair, OTHER)
    counted, ends = is_counted(metric, floats(view.clients["low"])), own.gain_bounds(metric, other)
    samples = people["test_samples"].fill_null(0).to_numpy().astype(np.int64)
    visible = say_visible(metric, samples[samples > 0], ends)
    less = f"A gain is how much lower the {metric.title} is." if metric.less_is_better else ""
    said = [
        " ".join(filter(None, [less, visible])),
        explain_intervals(metric, counted=counted, known=ends is not None),
    ]
    if len(view.seeds) > 1 and "seed" not in people.columns:
        said.append(
            "Scores and gains are means over the seeds. An interval is as wide as for one seed, because all seeds "
            "may test a client on the same samples."
        )
    elif len(view.seeds) > 1:
        said.append(
            "Each seed draws other clients, so a row is a client of one seed, and its interval is of that seed's "
            "test samples."
        )
    if ends is not None:
        said[-1] += " An interval does not cover training from another seed."
    if len(methods) > 1 and "seed" not in people.columns:
        common = _common_seeds(view, [view.baseline, *methods])
        if len(common) < len(view.seeds):
            said.append(
                f"The best method of a client is by the seeds that all methods have finished: {join_words(common)}."
            )
    if len(methods) > 1:
        said[-1] += (
            f" The best of {len(methods) + 1} methods for a client is chosen on its test samples, so part of its "
            "lead is luck. The fewer samples, the larger that part."
        )
    return list(filter(None, said))
