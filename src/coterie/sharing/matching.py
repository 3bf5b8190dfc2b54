"""Means and distances that do not care in which order a model lists its hidden units.

The units of a layer can be listed in any order without changing what the network computes, as long as the next
layer lists its inputs alike. Matched averaging (Yurochkin et al., 2019; Wang et al., 2020; FeSEM-MA,
specification 2.8) finds the order of every client's units in which they correspond, layer after layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from coterie.models.layout import Entry, Layout
from coterie.problems import BadInput
from coterie.sharing.aggregate import mean

Units = NDArray[np.float32]
"""The units of one layer `[width, D]`: all that is trained of each."""
Places = NDArray[np.int64]
"""For each unit of a model, which unit of the centre it is `[width]`."""


@dataclass(frozen=True)
class Matching:
    """The model behind the matching: `x_iu ~ N(theta_g, sigma^2)`, `theta_g ~ N(mu0, sigma0^2)`.

    With no new units allowed, every assignment of a client's units counts the same prior: the matching depends on
    `sweeps` alone, and `shrink` on the deviations and `bias_mean`.
    """

    sigma: float = 1.0
    sigma0: float = 1.0
    gamma0: float = 1.0
    """Mass of the Indian buffet process: how readily a unit becomes a new one."""
    bias_mean: float = 0.1
    """mu0 of a bias; that of every other number is 0."""
    sweeps: int = 5
    """How often every client is taken out, in random order, and matched anew."""
    most: int = 10
    """How many clients with a global unit count at most, as in the authors' code."""
    shrink: bool = False
    """Posterior means in the place of plain ones: with equal deviations, J / (J + 1) of them (B19)."""


@dataclass(frozen=True)
class Hidden:
    """A layer whose units can be reordered: what each owns, and what the next layer has for it."""

    width: int
    owned: tuple[Entry, ...]
    """Weight, bias, norm and running statistics, of each of which unit u has the u-th slice."""
    onward: Entry
    """The weight of the next layer."""
    block: int
    """Inputs of a dense next layer that come from one unit: the pixels of a flattened channel."""

    def units(self, model: Tensor) -> Units:
        """The trainable numbers of every unit of `model` `[P]`."""
        trained = [_rows(e, model, self.width) for e in self.owned if e.role != "buffer"]
        return np.asarray(torch.cat(trained, 1).numpy())

    def prior(self, bias_mean: float) -> NDArray[np.float64]:
        """mu0 of a unit `[D]`."""
        trained = [e for e in self.owned if e.role != "buffer"]
        return np.concatenate(
            [np.full(e.size // self.width, bias_mean * (e.role == "bias"), np.float64) for e in trained]
        )


def hidden_layers(layout: Layout) -> tuple[Hidden, ...]:
    """The layers before the last, in forward order.

    A layout shows shapes and no connections: of a shortcut it sees that a layer does not fit the one before it.

    Raises:
        BadInput: the network is no chain of convolutions and dense layers, or a norm in it keeps no running
            statistics, so that it cannot be told from one that mixes the units of a group.
    """
    weights = [_weight(layout, number) for number in range(len(layout.layers))]
    found = []
    for number, (weight, onward) in enumerate(pairwise(weights)):
        width = weight.shape[0]
        owned = tuple(e for e in layout.entries if e.layer == number)
        block, rest = divmod(onward.shape[1], width)
        flattened = weight.kind == "conv" and onward.kind == "dense"
        if rest or not block or (block > 1 and not flattened) or (weight.kind, onward.kind) == ("dense", "conv"):
            _refuse(
                f"layer {layout.layers[number + 1]} takes {onward.shape[1]} inputs, and layer "
                f"{layout.layers[number]} before it has {width} outputs"
            )
        norms = [e for e in owned if e.kind == "norm"]
        if norms and not any(e.role == "buffer" for e in norms):
            _refuse(f"{norms[0].name} belongs to a norm without running statistics, which may mix units")
        if any(e.size % width for e in owned):
            _refuse(
                f"a norm after layer {layout.layers[number]} has other numbers than one for each of its outputs"
            )
        found.append(Hidden(width, owned, onward, block))
    return tuple(found)


def aligned(models: Tensor, centre: Tensor, layout: Layout) -> Tensor:
    """Models `[n, P]` with their hidden units in the order of the centre's `[P]`.

    Layer after layer, the order with the smallest sum of squared differences. The squared distance of what is
    returned to the centre is Dist_MA (specification B17).

    Raises:
        BadInput: the network is no chain (see `hidden_layers`).
    """
    chain = hidden_layers(layout)
    wanted = [hidden.units(centre).astype(np.float64) for hidden in chain]
    found = torch.empty_like(models)
    for i, model in enumerate(models):
        for hidden, units in zip(chain, wanted, strict=True):
            # The squares of the two are the same in any order: what is left to minimise is the product.
            _, places = linear_sum_assignment(hidden.units(model).astype(np.float64) @ units.T, maximize=True)
            model = _placed(model, layout, hidden, places, layout, hidden.width)
        found[i] = model
    return found


def matched_means(
    models: Tensor,
    groups: NDArray[np.int64],
    previous: Tensor,
    layout: Layout,
    rng: np.random.Generator,
    matching: Matching = Matching(),
    weights: ArrayLike | None = None,
    class_counts: NDArray[np.int64] | None = None,
) -> Tensor:
    """The matched mean of each group's models, in the order of units of the group's first model.

    Args:
        models: `[r, P]`, rows in ascending client id.
        groups: the group of each row `[r]`, 0 … K-1; rows with -1 count nowhere.
        previous: `[K, P]`; a group without members keeps its row (specification 0.2, convention 7).
        layout: of the models.
        rng: draws the orders of the sweeps.
        matching: the model behind the matching.
        weights: `[r]`, positive, of the mean and not of the matching; uniform where not given.
        class_counts: `[r, C]`, samples of each class: weights of the rows of the last layer, as FedMA has them.

    Returns:
        A new matrix `[K, P]`, float32.

    Raises:
        BadInput: the network is no chain (see `hidden_layers`).
    """
    means = previous.clone()
    for k in range(len(previous)):
        members = np.flatnonzero(groups == k)
        if len(members):
            own = None if weights is None else np.asarray(weights, np.float64)[members]
            counts = None if class_counts is None else class_counts[members]
            means[k], _ = _mean(models[torch.from_numpy(members)], layout, rng, matching, own, counts, grow=False)
    return means


def grown_mean(
    models: Tensor,
    layout: Layout,
    rng: np.random.Generator,
    matching: Matching = Matching(),
    class_counts: NDArray[np.int64] | None = None,
) -> tuple[Tensor, Layout]:
    """The matched mean `[P']` of all models `[J, P]` where units that match none become new ones, and its layout.

    A global unit is the mean of the units that are it; a model without it has weights of 0 from it. No method
    uses this: centres must have the width of the clients' networks to be sent and compared (B15). It is for
    experiments with one centre, whose network is then built as wide as the layout says.

    Raises:
        BadInput: the network is no chain (see `hidden_layers`).
    """
    return _mean(models, layout, rng, matching, None, class_counts, grow=True)


def _mean(
    models: Tensor,
    layout: Layout,
    rng: np.random.Generator,
    matching: Matching,
    weights: ArrayLike | None,
    class_counts: NDArray[np.int64] | None,
    grow: bool,
) -> tuple[Tensor, Layout]:
    members, having = len(models), []
    for number in range(len(hidden_layers(layout))):
        hidden = hidden_layers(layout)[number]  # anew, for the layer before it may have grown
        units = [hidden.units(model) for model in models]
        places = _matched(units, hidden.prior(matching.bias_mean), rng, matching, grow)
        having.append(np.bincount(np.concatenate(places)))
        width = len(having[-1])
        into = _widened(layout, hidden, width)
        pairs = zip(models, places, strict=True)
        models = torch.stack([_placed(model, layout, hidden, own, into, width) for model, own in pairs])
        layout = into
    (centre,) = mean(models, models[:1], weights)
    prior, own = matching.sigma0**-2, matching.sigma**-2
    for hidden, have in zip(hidden_layers(layout), having, strict=True):
        count = torch.from_numpy(have)[:, None]
        for entry in hidden.owned:
            total = _rows(entry, centre, hidden.width).double() * members  # who lacks a unit has added 0
            if matching.shrink and entry.role != "buffer":
                mu0 = matching.bias_mean if entry.role == "bias" else 0.0
                theta = (mu0 * prior + total * own) / (prior + count * own)
            else:
                theta = total / count
            _rows(entry, centre, hidden.width)[:] = theta
    if class_counts is not None:
        _weigh_classes(centre, models, layout, class_counts)
    return centre, layout


def _matched(
    units: Sequence[Units],
    prior: NDArray[np.float64],
    rng: np.random.Generator,
    matching: Matching,
    grow: bool,
) -> list[Places]:
    """Which global unit every unit of every model is: the maximum a posteriori, by sweeps (specification 2.8)."""
    width = len(units[0])
    places: list[Places] = [np.arange(width) for _ in units]
    if len(units) == 1:
        return places
    known = _Known(units[0], prior, len(units), matching)
    for i in range(1, len(units)):
        places[i] = known.add(units[i], grow)
    for _ in range(matching.sweeps):
        for i in rng.permutation(len(units)):
            known.take_out(units[i], places[i])
            if not known.count.all():  # units that only this client had
                kept = np.cumsum(known.count > 0) - 1
                places = [kept[p] for p in places]
                known.sums, known.count = known.sums[known.count > 0], known.count[known.count > 0]
            places[i] = known.add(units[i], grow)
    return places


class _Known:
    """The global units of one layer, as those of the clients that are already matched make them.

    `sums` `[G, D]` are `s_g = mu0 / sigma0^2 + sum x / sigma^2`, `count` `[G]` the clients that have each.
    """

    def __init__(self, first: Units, prior: NDArray[np.float64], members: int, matching: Matching) -> None:
        self._precision, self._own = matching.sigma0**-2, matching.sigma**-2
        self._start = prior * self._precision
        self._members = members
        self._most = matching.most
        self._gamma0 = matching.gamma0
        self.sums = self._start + first.astype(np.float64) * self._own
        self.count = np.ones(len(first), np.int64)

    def add(self, units: Units, grow: bool) -> Places:
        """Match a client's units and count them in."""
        x = units.astype(np.float64) * self._own
        scores = self._existing(x)
        if grow:
            scores = np.hstack([scores, self._new(x)])
        _, places = linear_sum_assignment(scores, maximize=True)
        # A new unit is the less likely the more there are, so those that were taken are the first ones.
        fresh = int(places.max()) + 1 - len(self.count)
        if fresh > 0:
            self.sums = np.vstack([self.sums, np.tile(self._start, (fresh, 1))])
            self.count = np.concatenate([self.count, np.zeros(fresh, np.int64)])
        self.sums[places] += x
        self.count[places] += 1
        return np.asarray(places, np.int64)

    def take_out(self, units: Units, places: Places) -> None:
        """Count a client out."""
        self.sums[places] -= units.astype(np.float64) * self._own
        self.count[places] -= 1

    def _existing(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """How well each unit fits each global one `[width, G]`; `x` is divided by sigma^2."""
        before = self._precision + self.count * self._own
        squares = (self.sums**2).sum(1)
        joined = squares + 2 * x @ self.sums.T + (x**2).sum(1, keepdims=True)
        capped = np.minimum(self.count, self._most)
        popular = 2 * np.log(capped / (self._members - capped))
        return np.asarray(joined / (before + self._own) - squares / before + popular)

    def _new(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """How well each unit does as the first, second, … new one `[width, width]`."""
        alone = ((self._start + x) ** 2).sum(1, keepdims=True) / (self._precision + self._own)
        alone -= (self._start**2).sum() / self._precision
        rank = np.arange(1, len(x) + 1)
        return np.asarray(alone - 2 * np.log(rank) + 2 * np.log(self._gamma0 / self._members))


def _weigh_classes(centre: Tensor, models: Tensor, layout: Layout, counts: NDArray[np.int64]) -> None:
    """Rows of the last layer as means weighted by the samples of their class; uniform for one nobody has."""
    seen = counts.sum(0) > 0
    share = np.where(seen, counts, 1).astype(np.float64)
    share /= share.sum(0)
    last = [e for e in layout.entries if e.layer == len(layout.layers) - 1]
    for entry in last:
        rows = torch.zeros_like(_rows(entry, centre, counts.shape[1]), dtype=torch.float64)
        for model, own in zip(models, torch.from_numpy(share), strict=True):
            rows += _rows(entry, model, counts.shape[1]) * own[:, None]
        _rows(entry, centre, counts.shape[1])[:] = rows


def _placed(model: Tensor, layout: Layout, hidden: Hidden, places: Places, into: Layout, width: int) -> Tensor:
    """`model` with unit u of a hidden layer moved to place `places[u]` of a layout with `width` units there."""
    moved = torch.zeros(into.size)
    where = torch.from_numpy(places)
    for old, new in zip(layout.entries, into.entries, strict=True):
        if old in hidden.owned:
            _rows(new, moved, width)[where] = _rows(old, model, hidden.width)
        elif old == hidden.onward:
            # Both kinds store a unit's inputs side by side: convolutions channels-last, dense layers by channel.
            block = hidden.block
            new_inputs = moved[new.start : new.stop].view(-1, width, block)
            new_inputs[:, where] = model[old.start : old.stop].view(-1, hidden.width, block)
        else:
            moved[new.start : new.stop] = model[old.start : old.stop]
    return moved


def _widened(layout: Layout, hidden: Hidden, width: int) -> Layout:
    """The layout with `width` units in a hidden layer."""
    entries, start = [], 0
    for entry in layout.entries:
        out, *inner = entry.shape
        if entry in hidden.owned:
            out = out // hidden.width * width
        elif entry == hidden.onward:
            inner[0] = hidden.block * width
        entries.append(replace(entry, shape=(out, *inner), start=start))
        start = entries[-1].stop
    return Layout(tuple(entries))


def _rows(entry: Entry, model: Tensor, width: int) -> Tensor:
    """The slice of a tensor that each of `width` units owns, as a view `[width, size / width]` of `model` `[P]`."""
    return model[entry.start : entry.stop].view(width, -1)


def _weight(layout: Layout, number: int) -> Entry:
    """The weight of a layer that is a convolution or dense."""
    own = [e for e in layout.entries if e.layer == number and e.kind != "norm"]
    weights = [e for e in own if e.kind in ("conv", "dense") and e.role == "weight"]
    if len(weights) != 1:
        _refuse(f"layer {layout.layers[number]} is neither a convolution nor dense")
    return weights[0]


def _refuse(why: str) -> NoReturn:
    raise BadInput(
        f"units of this network cannot be matched: {why}; "
        "it must be a chain of convolutions and dense layers, such as mlp, cnn, lenet or vgg16"
    )
