"""Why these groups: what the clients of each have in common, as far as the run's folder tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.experiments.folder.reading import Run
from coterie.randomness import stream
from coterie.report.charts.groups import keep_group_numbers
from coterie.report.numbers import MISSING, join_words, percent
from coterie.report.tables import Table

MOST_GROUPS = 50
"""The page explains at most so many groups."""

MOST_CLASSES = 3
"""Classes that are named of each group."""

SHUFFLES = 499
"""How often clients are dealt to groups of the same sizes by chance."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WhyGroups:
    """The part of a page that says what tells the groups apart."""

    table: Table
    """One row a group."""
    sentences: Sequence[str]


def explain_groups(run: Run) -> WhyGroups | None:
    """Say what the clients of each group of the last evaluation have in common; None for fewer than two groups."""
    known = run.last.filter(pl.col("group") >= 0).select("client", "group")
    if known["group"].n_unique() < 2 or known["group"].n_unique() > MOST_GROUPS:
        return None
    known = known.join(_settled(run), on="client", how="left", maintain_order="left")
    people = run.people.select("client", "train", "labels")
    known = known.join(people, on="client", how="left", maintain_order="left")
    labelled = bool(known["labels"].null_count() == 0 and known["labels"].list.len().n_unique() == 1)
    groups = known["group"].to_numpy().astype(np.int64)
    counts = np.array(known["labels"].to_list(), np.float64) if labelled else np.zeros((known.height, 0))
    labelled = bool(counts.size and (counts.sum(1) > 0).all())
    header = ["Group", "Clients", "Training samples, median", "Settled in round, median"]
    if labelled:
        header = ["Group", "Classes it has more of", "Labels unlike all", *header[1:]]
    rows = []
    for group in np.unique(groups):
        inside = known.filter(pl.col("group") == group)
        sizes, since = inside["train"].median(), inside["since"].median()
        labels = _describe_labels(counts, groups == group) if labelled else []
        rows.append([str(group), *labels, f"{inside.height:,}", _write(sizes), _write(since)])
    return WhyGroups(
        Table(header, rows, texts=2 if labelled else 1), [_judge(counts, groups) if labelled else _SILENT]
    )


_SILENT = (
    "The run's folder does not say which labels its clients hold: they are numbers, or real clients who did not "
    "report them. So the page cannot say whether labels tell the groups apart."
)


def _write(value: object) -> str:
    return MISSING if not isinstance(value, int | float) else f"{value:,.0f}"


def _settled(run: Run) -> pl.DataFrame:
    """Return since which evaluated round each client is in its last group: client, since."""
    history = keep_group_numbers(run.clients.select("round", "client", "group")).sort("client", "round")
    last = pl.col("group").last().over("client")
    changed = history.filter(pl.col("group") != last).group_by("client").agg(pl.col("round").max().alias("before"))
    rounds = history.select("round").unique().sort("round")
    following = rounds.with_columns(since=pl.col("round").shift(-1)).rename({"round": "before"})
    first = rounds["round"].min()
    return (
        history.select("client")
        .unique()
        .sort("client")
        .join(changed, on="client", how="left", maintain_order="left")
        .join(following, on="before", how="left", maintain_order="left")
        .select("client", pl.col("since").fill_null(first))
    )


def _shares(counts: Floats) -> Floats:
    """Return the mean over clients of the shares of their classes, `[classes]`."""
    return np.asarray((counts / counts.sum(1, keepdims=True)).mean(0))


def _describe_labels(counts: Floats, inside: NDArray[np.bool_]) -> list[str]:
    """Write how far a group's label shares are from those of all clients, and the classes it has more of."""
    own, every = _shares(counts[inside]), _shares(counts)
    more = [c for c in np.argsort(every - own, kind="stable")[:MOST_CLASSES].tolist() if own[c] - every[c] >= 0.01]
    named = [f"{c} ({own[c]:.0%}, all {every[c]:.0%})" for c in more]
    return [join_words(named) if named else "none", percent(np.abs(own - every).sum() / 2)]


def label_distance(counts: Floats, groups: NDArray[np.int64]) -> float:
    """Return the mean over clients of the total variation between the label shares of their group and of all.

    Args:
        counts: samples of each class `[clients, classes]`, at least one of every client.
        groups: `[clients]`.
    """
    shares = counts / counts.sum(1, keepdims=True)
    every, total = shares.mean(0), 0.0
    for group in np.unique(groups):
        inside = groups == group
        total += inside.sum() * np.abs(shares[inside].mean(0) - every).sum() / 2
    return float(total / len(groups))


def _judge(counts: Floats, groups: NDArray[np.int64]) -> str:
    """Say whether labels tell the groups apart, by a permutation test over clients."""
    seen, rng = label_distance(counts, groups), stream(0, "labels of groups")
    chance = np.array([label_distance(counts, rng.permutation(groups)) for _ in range(SHUFFLES)])
    p = (1 + (chance >= seen - 1e-12).sum()) / (1 + SHUFFLES)
    usual = (
        f"{percent(seen)} of a group's labels differ from all clients', where {percent(chance.mean())} do by chance"
    )
    if p <= 0.05:
        return f"Labels tell the groups apart: {usual} (permutation test over clients, p = {p:.3f})."
    return (
        f"Labels do not tell the groups apart: {usual} (permutation test over clients, p = {p:.2f}). If the groups "
        "are real, it is by the inputs, or by what labels mean."
    )
