"""What the end of a run can say of its groups: which layers tell them apart, and how their inputs differ.

Inputs are looked at in a simulation alone. Real clients are asked for nothing: what a server says of their layers,
it knows from the models that they have sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.data.federation import Federation
from coterie.methods.exchange import Exchange, Replies
from coterie.models.layout import Layout
from coterie.randomness import stream
from coterie.runs.folder.group_traits import GroupTraits, InputMeans, LayerDistances
from coterie.runs.hooks.hook import Hook
from coterie.runs.record import RoundResult

if TYPE_CHECKING:
    from coterie.runs.session import Session

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_GROUPS = 50
"""Groups that are described at most; a page explains no more."""

MOST_CLIENTS = 1000
"""Clients that are looked at, at most; evenly chosen from all."""

MOST_SCALARS = 1 << 14
"""Parameters of a layer that are looked at, at most; evenly chosen from all."""

MOST_SAMPLES = 500
"""Training samples of a client that are averaged, at most; evenly chosen from all."""

MOST_PIXELS = 64
"""Height and width of a mean image, at most; larger images are averaged over squares."""

COARSE = 8
"""Height and width of the images by which groups are held against chance."""

MOST_FEATURES = 1000
"""Features that are kept, at most: those whose means differ most between groups."""

MOST_TESTED = 256
"""Features by which groups are held against chance, at most: those whose means vary most among clients."""

SHUFFLES = 499
"""How often clients are dealt to groups of the same sizes by chance."""


class DescribeGroups(Hook):
    """Keeps what tells the groups of the last round apart, where there are some and nobody was promised privacy."""

    def __init__(self, run: Session) -> None:
        super().__init__(run)
        self._trained: list[tuple[Exchange, Replies]] = []
        self._layers: LayerDistances | None = None

    @classmethod
    def is_on(cls, run: Session) -> bool:
        return run.promise is None

    def _is_last(self, result: RoundResult) -> bool:
        return result.number == self.run.planned and self.run.folder is not None

    def row_limit(self, exchange: Exchange, name: str, number: int) -> float:
        last = number == self.run.planned or self.run.experiment.run.passes is not None
        kept = last and self.run.folder is not None  # of one group nothing is told apart
        return 0.0 if kept and name == "model" and exchange.reduce[name].count > 1 else inf

    def reply(self, exchange: Exchange, replies: Replies, result: RoundResult) -> Replies:
        if (
            self._is_last(result) or self.run.experiment.run.passes is not None
        ):  # which may be reached by this round
            self._trained.append((exchange, replies))
        return replies

    def round_played(self, result: RoundResult) -> None:
        if self._is_last(result):  # now, for the evaluation may write over what clients have sent
            groups = self.run.method.assignment(result.state, self.run.server).groups
            self._layers = measure_layers(self._trained, groups, self.run.layout)
        self._trained.clear()

    def round_ended(self, result: RoundResult) -> None:
        if not self._is_last(result):
            return
        held, groups = self.run.federation, self.run.groups
        assert groups is not None
        inputs = measure_inputs(held, groups) if isinstance(held, Federation) else None
        if inputs is not None or self._layers is not None:
            assert self.run.folder is not None
            self.run.folder.write_group_traits(GroupTraits(result.number, self._layers, inputs))


def measure_layers(
    exchanges: Sequence[tuple[Exchange, Replies]], groups: Ints, layout: Layout
) -> LayerDistances | None:
    """Return how far apart the models of a round are, by layer; None where there are not two groups of them.

    Args:
        exchanges: of the round; of a client that sent several models the last one counts.
        groups: of all clients `[n]`, -1 for none.
        layout: of the models.
    """
    sent: dict[int, Tensor] = {}
    for exchange, replies in exchanges:
        if "model" in exchange.rule.uploads and "model" in replies.uploads:
            sent |= dict(zip(replies.clients.tolist(), replies.models, strict=True))
    clients = np.array(sorted(client for client in sent if groups[client] >= 0), np.int64)
    clients = clients[_spread(len(clients), MOST_CLIENTS)]
    own = groups[clients]
    count = len(np.unique(own))
    if count < 2 or count == len(clients):
        return None
    ratios = []
    for number in range(len(layout.layers)):
        part = layout.of_layers([number]) & layout.trainable
        some = _spread(part.size, MOST_SCALARS)
        points = np.stack([part.take(sent[client]).numpy()[some] for client in clients.tolist()])
        ratios.append(distance_ratio(points.astype(np.float64), own))
    return LayerDistances(layout.layers, np.array(ratios), len(clients))


def distance_ratio(points: Floats, groups: Ints) -> float:
    """Return how far apart two points of different groups are, over two points of one group.

    Both are root mean squares over all pairs. Of points without any structure it is about 1, however many groups
    there are and whatever their sizes.

    Args:
        points: `[n, d]`; NaN where a point is not known.
        groups: `[n]`.

    Returns:
        NaN where a point is not known or all points of each group are equal.
    """
    if not np.isfinite(points).all():
        return float("nan")
    n, total = len(points), len(points) * _scatter(points)
    within, pairs = 0.0, 0.0
    for group in np.unique(groups):
        inside = points[groups == group]
        within += len(inside) * _scatter(inside)
        pairs += len(inside) * (len(inside) - 1) / 2
    others = n * (n - 1) / 2 - pairs
    # What is left by rounding of points that are all equal says nothing.
    if not pairs or not others or within <= 1e-12 * n * float((points**2).sum()):
        return float("nan")
    return float(np.sqrt(max(total - within, 0.0) / others / (within / pairs)))


def _scatter(points: Floats) -> float:
    """Return the sum of squared distances from the mean; times n it is that over all pairs."""
    return float(((points - points.mean(0)) ** 2).sum())


def measure_inputs(federation: Federation, groups: Ints) -> InputMeans | None:
    """Return the mean training input of each group, and whether groups differ in it beyond chance.

    Args:
        federation: the clients `n`.
        groups: of each `[n]`, -1 for none.

    Returns:
        None for tokens, which have no mean, and where there are fewer than two groups.
    """
    if federation.task.tokens or federation.inputs.dtype == torch.int64:
        return None
    clients = np.flatnonzero((groups >= 0) & (federation.samples > 0))
    clients = clients[_spread(len(clients), MOST_CLIENTS)]
    own, shape = groups[clients], federation.features
    numbers = np.unique(own)
    if not 2 <= len(numbers) <= MOST_GROUPS:
        return None
    images = len(shape) == 3 and shape[2] in (1, 3) and min(shape[:2]) >= 4
    means, squares = [], []
    for client in clients.tolist():
        kept = federation.slice(client, "train")[0]
        rows = federation.to_numbers(kept[torch.from_numpy(_spread(len(kept), MOST_SAMPLES))])
        seen = rows.numpy().astype(np.float64)
        # Of a signal the mean over time, for each channel; of an image each pixel.
        axes = (0,) if images or len(shape) == 1 else tuple(range(len(shape)))
        means.append(_shrink(seen.mean(axes), MOST_PIXELS) if images else seen.mean(axes))
        squares.append(means[-1] if images else (seen**2).mean(axes))
    each, square = np.stack(means), np.stack(squares)
    if not np.isfinite(each).all():
        return None
    rows_of = np.stack([*(each[own == group].mean(0) for group in numbers), each.mean(0)])
    if images:
        apart = _hold_against_chance(np.stack([_shrink(mean, COARSE).ravel() for mean in each]), own)
        return InputMeans(numbers, "images", _to_bytes(rows_of), (), np.empty(0), *apart)
    deviation = np.sqrt(np.maximum(square.mean(0) - each.mean(0) ** 2, 0.0))
    varying = deviation > 1e-9 * np.maximum(np.abs(each).max(0), 1e-9)
    if not varying.any():
        return None
    apart = _hold_against_chance(each[:, varying] / deviation[varying], own)
    names, scale, shift = _name_features(federation, prod(deviation.shape))
    differ = np.abs((rows_of[:-1] - rows_of[-1]) / np.where(varying, deviation, np.inf)).max(0)
    most = np.sort(np.argsort(-differ, kind="stable")[:MOST_FEATURES])
    return InputMeans(
        numbers,
        "features",
        (rows_of * scale + shift)[:, most],
        tuple(names[feature] for feature in most),
        (deviation * scale)[most],
        *apart,
    )


def _name_features(federation: Federation, count: int) -> tuple[list[str], Floats, Floats]:
    """Return what features are called, and what turns their values into those that were read."""
    preparation = federation.preparation
    names = list(preparation.input_names)
    if len(names) != count:
        names = [f"feature {number}" for number in range(count)]
    scale, shift = np.ones(count), np.zeros(count)
    if federation.scales is None and len(preparation.mean) == count:
        scale, shift = np.array(preparation.deviation, np.float64), np.array(preparation.mean, np.float64)
    return names, scale, shift


def _hold_against_chance(points: Floats, groups: Ints) -> tuple[float, float, float]:
    """Return the share of the scatter of points `[n, d]` that is between groups `[n]`, its mean by chance, and p.

    The last is NaN where every point is a group of its own.
    """
    if points.shape[1] > MOST_TESTED:
        points = points[:, np.sort(np.argsort(-points.var(0), kind="stable")[:MOST_TESTED])]
    points = points - points.mean(0)
    total = float((points**2).sum())
    if not total:
        return 0.0, 0.0, 1.0
    if len(np.unique(groups)) == len(groups):
        return 1.0, 1.0, float("nan")
    numbers, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    dealt = np.zeros((len(numbers), len(points)))
    dealt[inverse, np.arange(len(points))] = 1 / np.sqrt(sizes[inverse])

    def between(order: Ints) -> float:
        return float(((dealt[:, order] @ points) ** 2).sum()) / total

    rng = stream(0, "inputs of groups")
    seen = between(np.arange(len(points)))
    chance = np.array([between(rng.permutation(len(points))) for _ in range(SHUFFLES)])
    return seen, float(chance.mean()), float((1 + (chance >= seen - 1e-12).sum()) / (1 + SHUFFLES))


def _shrink(image: Floats, most: int) -> Floats:
    """Average an image `[height, width, channels]` over squares, so that no side is longer than `most` pixels."""
    step = ceil(max(image.shape[:2]) / most)
    if step < 2:
        return image
    height, width = (max(side // step, 1) for side in image.shape[:2])
    rows, columns = min(step, image.shape[0]), min(step, image.shape[1])
    whole = image[: height * rows, : width * columns]
    return np.asarray(whole.reshape(height, rows, width, columns, -1).mean((1, 3)))


def _to_bytes(images: Floats) -> Floats:
    """Return images in 0 … 255, the darkest number of all of them black and the brightest white."""
    low, high = images.min(), images.max()
    return np.asarray(np.rint((images - low) / max(high - low, 1e-12) * 255))


def _spread(count: int, most: int) -> Ints:
    """Return at most so many of the numbers below `count`, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64)) if count else np.empty(0, int)
