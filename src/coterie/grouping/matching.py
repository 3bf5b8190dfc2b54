"""Means and distances that do not depend on the order in which a model lists its hidden units.

The units of a layer can be listed in any order without changing what the network computes, as long as the next
layer lists its inputs alike. Matched averaging (Yurochkin et al., 2019; Wang et al., 2020; FeSEM-MA,
docs/methods/fesem-ma.md) finds the order of every client's units in which they correspond, layer after layer.

The file has three parts: the means and distances, the layers whose units can be reordered, and a cheap test that
they are in order already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.errors import BadInput
from coterie.grouping.aggregate import group_means, mean
from coterie.models.layout import Entry, Layout

Units = NDArray[np.float32]
"""The units of one layer `[width, D]`: all that is trained of each."""


Places = NDArray[np.int64]
"""For each unit of a model, which unit of the centre it is `[width]`."""


def align_units(models: Tensor, centre: Tensor, layout: Layout) -> Tensor:
    """Models `[n, P]` with their hidden units in the order of the centre's `[P]`.

    Layer after layer, the order with the smallest sum of squared differences. The squared distance of what is
    returned to the centre is Dist_MA (docs/methods/fesem-ma.md, D3). Where no unit moves, these are the models
    themselves.

    Raises:
        BadInput: the network is no chain (see `hidden_layers`).
    """
    chain = hidden_layers(layout)
    sure = in_order(models, centre, chain)
    if sure.all():
        return models
    wanted = [hidden.units(centre).astype(np.float64) for hidden in chain]
    found = models
    for i in np.flatnonzero(~sure.all(1)):
        model, moved = models[i], False
        for hidden, units, known in zip(chain, wanted, sure[i], strict=True):
            if known and not moved:  # in another order of its inputs a layer's units are other ones
                continue
            # The squares of the two are the same in any order: what is left to minimise is the product.
            places = _assign(hidden.units(model).astype(np.float64) @ units.T)
            moved = bool((places != np.arange(hidden.width)).any())
            if moved:
                model = reorder_units(model, layout, hidden, places)
        if model.data_ptr() != models[i].data_ptr():
            found = models.clone() if found is models else found
            found[i] = model
    return found


def average_matched(
    models: Tensor,
    groups: NDArray[np.int64],
    previous: Tensor,
    layout: Layout,
    rng: np.random.Generator,
    sweeps: int = 5,
    weights: ArrayLike | None = None,
) -> Tensor:
    """The matched mean of each group's models, in the order of units of the group's first model.

    Args:
        models: `[r, P]`, rows in ascending client id.
        groups: the group of each row `[r]`, 0 … K-1; rows with -1 count nowhere.
        previous: `[K, P]`; a group without members keeps its row (docs/methods/conventions.md, convention 7).
        layout: of the models.
        rng: draws the orders of the sweeps.
        sweeps: how often every client is taken out, in random order, and matched anew.
        weights: `[r]`, positive, of the mean and not of the matching; uniform where not given.

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
            means[k] = _mean(models, members, layout, rng, sweeps, own)
    return means


def _mean(
    models: Tensor,
    members: NDArray[np.int64],
    layout: Layout,
    rng: np.random.Generator,
    sweeps: int,
    weights: NDArray[np.float64] | None,
) -> Tensor:
    """The matched mean of the rows `members` of `models`, with the `weights` of these alone."""
    chain, rows = hidden_layers(layout), [models[i] for i in members.tolist()]
    for hidden in chain:
        places = _match(rows, hidden, rng, sweeps)
        if any((own != np.arange(hidden.width)).any() for own in places):
            rows = [reorder_units(row, layout, hidden, own) for row, own in zip(rows, places, strict=True)]
    if rows[0].data_ptr() == models[members[0]].data_ptr():  # no unit has moved: without a copy of the rows
        groups, shares = np.full(len(models), -1, np.int64), np.ones(len(models))
        groups[members] = 0
        shares[members] = 1.0 if weights is None else weights
        return group_means(models, groups, models[:1], shares)[0]
    stacked = torch.stack(rows)
    return mean(stacked, stacked[:1], weights)[0]


def _match(models: Sequence[Tensor], hidden: Hidden, rng: np.random.Generator, sweeps: int) -> list[Places]:
    """The unit of the centre that every unit of every model is: the maximum a posteriori, by sweeps.

    The model behind it is `x_iu ~ N(theta_g, sigma^2)`, `theta_g ~ N(mu0, sigma0^2)`. Every client has as many
    units as the centre (docs/methods/fesem-ma.md, D1), so every assignment has the same prior, and neither the
    deviations nor mu0 change which is best.
    """
    places: list[Places] = [np.arange(hidden.width) for _ in models]
    if len(models) == 1:
        return places
    orders = [rng.permutation(len(models)) for _ in range(sweeps)]
    if stays_in_order(models, hidden):
        return places

    def units(i: int) -> NDArray[np.float64]:
        # Of one model at a time: those of all in float64 take twice the memory of the models.
        return hidden.units(models[i]).astype(np.float64)

    sums = units(0)  # of what is matched to each unit of the centre
    for i in range(1, len(models)):
        own = units(i)
        places[i] = _assign(own @ sums.T)
        sums[places[i]] += own
    for order in orders:
        moved = False
        for i in order:
            own, before = units(i), places[i]
            sums[before] -= own
            places[i] = _assign(own @ sums.T)
            sums[places[i]] += own
            moved = moved or not np.array_equal(places[i], before)
        if not moved:  # nor would anybody in the next sweep
            break
    return places


def _assign(scores: NDArray[np.float64]) -> Places:
    """For each row of scores `[n, m]`, n <= m, a column of its own: those with the largest sum."""
    from scipy.optimize import linear_sum_assignment

    return np.asarray(linear_sum_assignment(scores, maximize=True)[1])


def reorder_units(model: Tensor, layout: Layout, hidden: Hidden, places: Places) -> Tensor:
    """`model` `[P]` with unit u of a hidden layer moved to place `places[u]`."""
    moved, where = model.clone(), torch.from_numpy(places)
    for entry in hidden.owned:
        rows_of(entry, moved, hidden.width)[where] = rows_of(entry, model, hidden.width)
    # Both kinds store a unit's inputs side by side: convolutions channels-last, dense layers by channel.
    inputs, shape = slice(hidden.onward.start, hidden.onward.stop), (-1, hidden.width, hidden.block)
    moved[inputs].view(shape)[:, where] = model[inputs].view(shape)
    return moved


@dataclass(frozen=True)
class Hidden:
    """A layer whose units can be reordered: what each owns, and what the next layer has for it."""

    width: int
    """How many units it has."""
    owned: tuple[Entry, ...]
    """Weight, bias, norm and running statistics, of each of which unit u has the u-th slice."""
    onward: Entry
    """The weight of the next layer."""
    block: int
    """Inputs of a dense next layer that come from one unit: the pixels of a flattened channel."""

    @property
    def trained(self) -> tuple[Entry, ...]:
        """What is trained of `owned`."""
        return tuple(e for e in self.owned if e.role != "buffer")

    def units(self, model: Tensor) -> Units:
        """The trainable numbers of every unit of `model` `[P]`."""
        return np.asarray(torch.cat([rows_of(e, model, self.width) for e in self.trained], 1).numpy())


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
                f"a norm after layer {layout.layers[number]} does not have one number for each output of that layer"
            )
        found.append(Hidden(width, owned, onward, block))
    return tuple(found)


def rows_of(entry: Entry, model: Tensor, width: int) -> Tensor:
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


# Whether units are in order: a unit that is less than half as far from a unit of the centre as that is from any
# other is nearest to it. Where each unit of a layer is nearest to its own, no other order has as small a sum of
# squared differences, and neither products between all units nor an assignment are needed. A test that fails says
# nothing.

_MODELS = 8
"""Models compared at a time."""

_RELATIVE, _ABSOLUTE = 1e-3, 1e-5
"""Of a distance, and of the longest unit: far more than what float32 may cost."""


def in_order(models: Tensor, centre: Tensor, chain: Sequence[Hidden]) -> NDArray[np.bool_]:
    """Which layers of models `[n, P]` surely list their units as a centre `[P]` does, `[n, layers]`.

    Of each layer for itself, its inputs as they are listed.
    """
    near = [_nearest(centre, hidden) for hidden in chain]
    found = np.zeros((len(models), len(chain)), np.bool_)
    for at in range(0, len(models), _MODELS):
        some = models[at : at + _MODELS]
        away = some - centre
        for number, hidden in enumerate(chain):
            sure = 2 * _lengths(away, hidden) < near[number]
            if not sure.all():
                sure[~sure] = _nearest_to_own(some, centre, hidden, ~sure)
            found[at : at + _MODELS, number] = sure.all(1).numpy()
    return found


def _nearest_to_own(models: Tensor, centre: Tensor, hidden: Hidden, which: Tensor) -> Tensor:
    """Whether units of models `[r, P]` are surely nearest to their own, for those in `which` `[r, width]`."""
    units = torch.cat([_units(models, e, hidden.width)[which] for e in hidden.trained], 1)
    others = torch.cat([_units(centre[None], e, hidden.width)[0] for e in hidden.trained], 1)
    squares, own = others.square().sum(1), which.nonzero()[:, 1]
    scores = units @ others.T - squares / 2  # the greater, the nearer
    mine = scores.gather(1, own[:, None])[:, 0]
    best = scores.scatter_(1, own[:, None], -torch.inf).amax(1)
    return mine - best > _ABSOLUTE * (units.square().sum(1) + squares.max())


def stays_in_order(models: Sequence[Tensor], hidden: Hidden) -> bool:
    """Whether matching a layer of models `[P]` surely leaves its units where they are, whatever the sweeps.

    One after the other is matched to the mean of those before it, and in a sweep to the mean of the others: each
    time its units must be nearest to their own. How far apart the units of such a mean are is known from those of
    the mean of all, by how far they are from them.
    """
    first, last = min(e.start for e in hidden.trained), max(e.stop for e in hidden.trained)
    count, rows = len(models), [model[first:last] for model in models]
    total = torch.zeros(last - first)
    for row in rows:
        total += row
    centre = total / count
    near = _nearest(centre, hidden, first)

    def sure(own: Tensor, shift: Tensor) -> bool:
        return bool((2 * own + shift + shift.max() < near).all())

    so_far = rows[0].clone()
    for i, row in enumerate(rows):
        length = _lengths((row - centre)[None], hidden, first)[0]
        if not sure(length * count / (count - 1), length / (count - 1)):
            return False
        if i:
            middle = so_far / i
            shift = _lengths((middle - centre)[None], hidden, first)[0]
            if not sure(_lengths((row - middle)[None], hidden, first)[0], shift):
                return False
            so_far += row
    return True


def _nearest(centre: Tensor, hidden: Hidden, first: int = 0) -> Tensor:
    """How far each unit of a centre is from the nearest other one at least `[width]`."""
    units = torch.cat([_units(centre[None], e, hidden.width, first)[0] for e in hidden.trained], 1).double()
    products = units @ units.T
    squares = products.diagonal()
    apart = (squares[:, None] + squares - 2 * products).clamp_(min=0.0).sqrt_()
    apart.fill_diagonal_(torch.inf)
    return (apart.amin(1) * (1 - _RELATIVE) - _ABSOLUTE * squares.max().sqrt()).float()


def _lengths(away: Tensor, hidden: Hidden, first: int = 0) -> Tensor:
    """Lengths `[r, width]` of the units of differences `[r, size]`, whose columns begin at `first`."""
    squares = torch.zeros(len(away), hidden.width)
    for e in hidden.trained:
        squares += torch.linalg.vector_norm(_units(away, e, hidden.width, first), dim=2).square_()
    return squares.sqrt_()


def _units(models: Tensor, entry: Entry, width: int, first: int = 0) -> Tensor:
    """What each unit has of a tensor, `[r, width, size / width]`, of models `[r, size]` from column `first` on."""
    return models[:, entry.start - first : entry.stop - first].view(len(models), width, -1)
