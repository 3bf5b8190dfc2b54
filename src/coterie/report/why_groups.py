"""Why these groups: what the clients of each have in common, as far as the run's folder tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.errors import count_of
from coterie.randomness import stream
from coterie.report.charts.groups import keep_group_numbers
from coterie.report.drawing.marks import stretches
from coterie.report.drawing.png import embed_png
from coterie.report.numbers import MISSING, alike, decimals, join_words, percent
from coterie.report.tables import Table
from coterie.runs.folder.group_traits import InputMeans, LayerDistances
from coterie.runs.folder.reading import RunResults

MOST_GROUPS = 50
"""The page explains at most so many groups."""

MOST_CLASSES = 3
"""Classes that are named of each group."""

MOST_FEATURES = 10
"""Features in the table of means."""

MOST_COLUMNS = 6
"""Groups in the table of means of features; it would leave the page with more."""

MOST_LAYERS = 12
"""Layers in the table of layers."""

PICTURE_SIDE = 112
"""Pixels of a mean image's longer side, at most, where it has fewer."""

SHUFFLES = 499
"""How often clients are dealt to groups of the same sizes by chance."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MeanImage:
    """A picture of what a group's inputs look like."""

    title: str
    source: str
    """The picture itself, as a `data:` address."""
    width: int
    """Pixels; its height follows."""
    height: int


@dataclass(frozen=True, eq=False)
class WhyGroups:
    """The part of a page that says what tells the groups apart."""

    table: Table
    """One row a group."""
    sentences: Sequence[str]
    pictures: Sequence[MeanImage] = ()
    """The mean image of each group, that of all clients last."""
    features: Table | None = None
    """The mean of features in each group, first those that differ most."""
    inputs: Sequence[str] = ()
    """What the groups' inputs tell."""
    layers: Table | None = None
    """One row a layer, first those that tell the groups apart most."""
    about_layers: str = ""


def explain_groups(run: RunResults) -> WhyGroups | None:
    """Say what the clients of each group of the last evaluation have in common; None for fewer than two groups."""
    known = run.last.filter(pl.col("group") >= 0).select("client", "group")
    if known["group"].n_unique() < 2 or known["group"].n_unique() > MOST_GROUPS:
        return None
    known = known.join(settled_rounds(run), on="client", how="left", maintain_order="left")
    federation = run.federation.select("client", "train", "labels")
    known = known.join(federation, on="client", how="left", maintain_order="left")
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
        labels = _describe_labels(counts, groups == group, run.class_names) if labelled else []
        rows.append([str(group), *labels, f"{inside.height:,}", _write(sizes), _write(since)])
    traits = run.group_traits
    inputs, layers = (None, None) if traits is None else (traits.inputs, traits.layers)
    return WhyGroups(
        Table(header, rows, texts=2 if labelled else 1),
        [_judge(counts, groups) if labelled else _SILENT, _say_settled(known["since"], run)],
        _draw_means(inputs, groups) if inputs is not None and inputs.kind == "images" else (),
        _tabulate_features(inputs) if inputs is not None and inputs.kind == "features" else None,
        [] if inputs is None else [_judge_inputs(inputs)],
        None if layers is None else _tabulate_layers(layers),
        "" if layers is None else _judge_layers(layers),
    )


def settled_rounds(run: RunResults) -> pl.DataFrame:
    """Return since which evaluated round each client is in its last group: client, since."""
    history = keep_group_numbers(run.clients.select("round", "client", "group"))
    return stretches(history, "client", "group").group_by("client").agg(since=pl.col("start").max())


def _say_settled(since: pl.Series, run: RunResults) -> str:
    """Say when clients came to stay in their group."""
    rounds, settled = run.clients["round"].to_numpy(), since.to_numpy()
    first, last, latest = rounds.min(), rounds.max(), settled.max()
    early = int((settled == first).sum())
    if early == len(since):
        return f"All {len(since):,} clients have been in their group since round {first}."
    return (
        f"{early:,} of {len(since):,} clients have been in their group since round {first}, the first that was "
        f"evaluated. The last change of a group was in round {latest} of {last}."
    )


def _draw_means(inputs: InputMeans, groups: NDArray[np.int64]) -> list[MeanImage]:
    sizes = {int(group): int((groups == group).sum()) for group in inputs.groups}
    titles = [f"Group {group}, {count_of(sizes[int(group)], 'client')}" for group in inputs.groups]
    height, width = inputs.means.shape[1:3]
    scale = max(PICTURE_SIDE // max(height, width), 1)
    return [
        MeanImage(title, embed_png(mean), width * scale, height * scale)
        for title, mean in zip([*titles, "All clients"], inputs.means, strict=True)
    ]


def _tabulate_features(inputs: InputMeans) -> Table:
    """Tabulate the features that differ most, in units of the file and in standard deviations."""
    shown = inputs.means[:-1][:MOST_COLUMNS]
    away = _standardise(inputs)
    order = np.argsort(-np.abs(away).max(0), kind="stable")[:MOST_FEATURES]
    header = ["Feature", "All", *(f"Group {group}" for group in inputs.groups[:MOST_COLUMNS]), "Differs most in"]
    rows = []
    for feature in order.tolist():
        group = int(np.abs(away[:, feature]).argmax())
        by = f"group {inputs.groups[group]}, by {decimals(away[group, feature])} SD"
        means = np.array([inputs.means[-1, feature], *shown[:, feature]])
        means[np.abs(means) <= 1e-9 * np.abs(means).max()] = 0.0  # it is but rounding
        rows.append([inputs.names[feature], *alike(*means.tolist()), by])
    return Table(header, rows)


def _standardise(inputs: InputMeans) -> Floats:
    """Return how far each group's means are from those of all, in standard deviations `[K, F]`."""
    varies = inputs.deviation > 0
    return np.asarray(
        np.where(varies, (inputs.means[:-1] - inputs.means[-1]) / np.where(varies, inputs.deviation, 1.0), 0.0)
    )


def _judge_inputs(inputs: InputMeans) -> str:
    what = "images" if inputs.kind == "images" else "inputs"
    if np.isnan(inputs.p):
        return f"Every client is a group of its own, so mean {what} cannot be compared with chance."
    usual = (
        f"{percent(inputs.apart)} of the differences between clients' mean {what} are between groups, and "
        f"chance gives {percent(inputs.chance)} (permutation test over clients, p = {inputs.p:.3f})"
    )
    if inputs.p > 0.05:
        return (
            f"Mean {what} do not tell the groups apart: {usual}. How inputs vary, or what labels mean, may still "
            "tell them apart; `coterie diagnose` tests both."
        )
    return f"Mean {what} tell the groups apart: {usual}."


def _tabulate_layers(layers: LayerDistances) -> Table:
    order = np.argsort(np.where(np.isnan(layers.ratio), np.inf, -layers.ratio), kind="stable")[:MOST_LAYERS]
    rows = [
        [layers.layers[i], MISSING if np.isnan(layers.ratio[i]) else f"{layers.ratio[i]:.3g} times"]
        for i in order.tolist()
    ]
    return Table(["Layer", "As far apart as two clients of one group"], rows)


def _judge_layers(layers: LayerDistances) -> str:
    """Say which layer tells the groups apart most."""
    about = (
        f"Measured on the models that {count_of(layers.clients, 'client')} sent in the last round. The ratio is 1 "
        "where groups do not differ, and grows as groups train models of their own"
    )
    if np.isnan(layers.ratio).all():
        return f"{about}. Here it is unknown: no layer was sent by all, or clients of one group sent the same."
    most = int(np.nanargmax(layers.ratio))
    return (
        f"In layer {layers.layers[most]} the groups differ most: two clients of different groups are "
        f"{layers.ratio[most]:.3g} times as far apart as two of one group. {about}."
    )


_SILENT = (
    "The run's folder does not say which labels its clients hold: the labels are numbers, or the clients are real "
    "and did not report them. So the page cannot say whether labels tell the groups apart."
)


def _write(value: object) -> str:
    return MISSING if not isinstance(value, int | float) else f"{value:,.0f}"


def _shares(counts: Floats) -> Floats:
    """Return the mean over clients of the shares of their classes, `[classes]`."""
    return np.asarray((counts / counts.sum(1, keepdims=True)).mean(0))


def _describe_labels(counts: Floats, inside: NDArray[np.bool_], names: Sequence[str]) -> list[str]:
    """Write how far a group's label shares are from those of all clients, and the classes it has more of.

    Classes without `names` for all of them are called by their numbers.
    """
    own, every = _shares(counts[inside]), _shares(counts)
    more = [c for c in np.argsort(every - own, kind="stable")[:MOST_CLASSES].tolist() if own[c] - every[c] >= 0.01]
    called = names if len(names) == len(every) else range(len(every))
    named = [f"{called[c]} ({own[c]:.0%}, all {every[c]:.0%})" for c in more]
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
        f"the total variation distance between a group's labels and all clients' is {percent(seen)}, and "
        f"{percent(chance.mean())} by chance"
    )
    if p <= 0.05:
        return f"Labels tell the groups apart: {usual} (permutation test over clients, p = {p:.3f})."
    return (
        f"Labels do not tell the groups apart: {usual} (permutation test over clients, p = {p:.2f}). If the groups "
        "are real, they differ in the inputs, or in what labels mean."
    )
