"""Of what kind clients differ: how often classes are, what inputs are like, what labels mean.

A client's profile is a matrix `[2, C, 1 + d]`: of each class, in either half of its data, how many samples there
are and what their features sum to. The two halves are independent, so a product of what one half departs from all
clients by what the other does is 0 on average where a client is drawn as all others are, however few samples there
are; what remains is the variance between clients. Signs of these products are flipped at random to test that.

* Classes: how often each is.
* Inputs: what a client's inputs depart by from what its classes let expect. Where targets are numbers, these follow
  from the inputs and not the inputs from them, so that inputs are taken as they are.
* Meaning: what the inputs of single classes depart by. If these depart and all inputs together do not, the same
  inputs have other labels.

Where groups are known, what one departs from all other clients by is measured in the same way, and tested by the
groups that as many clients drawn at random make. Numbers as targets are cut into parts, which are classes here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_SHARE = 0.004
"""Share of variance between clients below which a difference is too small to count."""

MEANING_RATIO = 25.0
"""Inputs of single classes depart so many times as much as all together, where labels mean different things."""

UNMOVED = 0.2
"""The inputs of a group do not depart where as much is so likely.

Groups drawn at random depart, too, where all clients differ, so that the test has little power: that inputs are not
found to depart at the error level is then no evidence that they do not.
"""

TRIM = 0.2
"""Share of the clients whose departures are largest, who do not count: so many may be hostile."""

_AT_A_TIME = 100
"""Random groups that are measured at a time."""


@dataclass(frozen=True)
class Share:
    """A share of variance that lies between clients, and the probability of as much where none does."""

    share: float
    """Up to 1; what is estimated from few samples may be below 0."""
    p: float
    """Its p-value."""

    def is_there(self, alpha: float) -> bool:
        """Whether it is more than chance, and enough to count."""
        return self.p <= alpha and self.share >= LEAST_SHARE


@dataclass(frozen=True)
class Skew:
    """Shares of variance between clients: of classes, of inputs beyond classes, of inputs within classes.

    `classes` is None where samples are of no class.
    """

    classes: Share | None
    inputs: Share
    within: Share
    of_group: bool = False
    """Whether a group is held against all others."""

    def kinds(self, alpha: float) -> tuple[str, ...]:
        """Return what differs: `labels`, `features` or `concept`, none or several of them."""
        found = []
        if self.classes is not None and self.classes.is_there(alpha):
            found.append("labels")
        if self.classes is not None and self.within.is_there(alpha) and self._leaves_inputs(alpha):
            found.append("concept")
        elif self.inputs.is_there(alpha):
            found.append("features")
        return tuple(found)

    def _leaves_inputs(self, alpha: float) -> bool:
        unmoved = self.inputs.p > UNMOVED if self.of_group else not self.inputs.is_there(alpha)
        return unmoved or self.within.share > MEANING_RATIO * self.inputs.share


def are_sound(profiles: Floats, size: int) -> NDArray[np.bool_]:
    """Return which profiles `[r, 2, C, 1 + d]` can be those of halves of 1 to `size` samples."""
    finite = np.asarray(np.isfinite(profiles).all(axis=(1, 2, 3)))
    whole = np.where(finite[:, None, None, None], profiles, 0.0)
    counts, sums = whole[..., 0], whole[..., 1:]
    fine = finite & (counts >= 0).all(axis=(1, 2)) & (counts == np.round(counts)).all(axis=(1, 2))
    in_halves = counts.sum(2)
    fine &= ((in_halves >= 1) & (in_halves <= size)).all(1)
    fine &= (np.abs(sums) <= counts[..., None] * (1 + 1e-4) + 1e-4).all(axis=(1, 2, 3))
    return np.asarray(fine)


def find_skew(profiles: Floats, rng: np.random.Generator, draws: int = 999, numbers: bool = False) -> Skew:
    """Return the shares of variance that lie between clients.

    Args:
        profiles: `[n, 2, C, 1 + d]`, of n > 0 clients; features are cosines.
        rng: draws signs.
        draws: how many times.
        numbers: whether classes are parts of targets that are numbers.
    """

    def of_classes(some: Floats) -> tuple[Floats, Floats, float]:
        frequency = some[..., 0] / some[..., 0].sum(2)[:, :, None]
        overall = frequency.mean((0, 1))
        return _products(frequency - overall), np.ones(len(some)), 1 - float((overall**2).sum())

    def of_inputs(some: Floats) -> tuple[Floats, Floats, float]:
        departs, spread = _depart(some)
        return _products(departs.sum(2) / some[..., 0].sum(2)[:, :, None]), np.ones(len(some)), spread

    def of_inputs_within(some: Floats) -> tuple[Floats, Floats, float]:
        departs, spread = _depart(some)
        return _products(departs.reshape(len(some), 2, -1)), some[..., 0].prod(1).sum(1), spread

    classes = _share(profiles, of_classes, rng, draws) if profiles.shape[2] > 1 else None
    inputs = _share(_whole(profiles) if numbers else profiles, of_inputs, rng, draws)
    return Skew(classes, inputs, _share(profiles, of_inputs_within, rng, draws))


def find_group_skew(
    profiles: Floats,
    members: NDArray[np.bool_],
    rng: np.random.Generator,
    draws: int = 999,
    numbers: bool = False,
) -> Skew:
    """Return the shares of variance that lie between a group and all other clients.

    Nobody is left out: in a small group everybody may depart as much as hostile clients would.

    Args:
        profiles: as for `find_skew`.
        members: whether a client is of the group `[n]`; some are, and some are not.
        rng: draws groups of as many clients.
        draws: how many.
        numbers: as for `find_skew`.
    """
    counts, (departs, spread) = profiles[..., 0], _depart(profiles)
    halves = counts.sum(2, keepdims=True)
    beyond, width = _depart(_whole(profiles)) if numbers else (departs.sum(2, keepdims=True), spread)
    of_class = counts.sum((0, 1)) / counts.sum()
    tested, shares = np.empty((1 + draws, 3)), np.empty(3)
    groups = np.array([members, *(rng.permutation(members) for _ in range(draws))], np.float64)
    for at in range(0, len(groups), _AT_A_TIME):
        some = groups[at : at + _AT_A_TIME]
        often, sure = _difference(some, counts, halves)
        classes = _products(often)
        away, _ = _difference(some, beyond, halves)
        inputs = _products(away)[:, 0]
        apart, sure_of_class = _difference(some, departs, counts)
        within = _products(apart)
        in_both = sure_of_class > 0
        known = np.maximum(in_both.sum(1), 1)
        tested[at : at + len(some)] = np.stack(
            [classes * sure[:, 0], inputs * sure[:, 0], (within * sure_of_class).sum(1) / np.sqrt(known)], 1
        )
        if not at:
            own = float((members @ halves.sum((1, 2))) / halves.sum())
            shares[:] = own * (1 - own) * np.array([classes[0], inputs[0], (within * in_both)[0] @ of_class])
    p = (1 + (tested[1:] >= tested[0] - 1e-12).sum(0)) / (1 + draws)
    overall = 1 - float((of_class**2).sum())
    found = [
        Share(float(share / one), float(chance)) if one > 1e-12 else Share(0.0, 1.0)
        for share, chance, one in zip(shares, p, (overall, width, spread), strict=True)
    ]
    return Skew(found[0] if profiles.shape[2] > 1 else None, found[1], found[2], of_group=True)


def _both_sides(groups: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return the sums of values `[n, …]` over the members of groups `[R, n]`, and over all others, `[R, …]`."""
    own = np.tensordot(groups, values, 1)
    return own, values.sum(0) - own


def _difference(groups: Floats, sums: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return by what means over members `[R, 2, C, d]` differ from those over all others, and how sure they are.

    That is the harmonic mean of the samples on both sides, the geometric mean over halves `[R, C]`; 0 where one
    side has none. Times that, products of differences vary alike, however few samples a group has.

    Args:
        groups: `[R, n]`.
        sums: of each client `[n, 2, C, d]`, or `[n, 2, C]` for counts over a half's samples.
        counts: samples of each client `[n, 2, C]`, or `[n, 2, 1]` for all classes together.
    """
    own, their = _both_sides(groups, counts)
    sure = np.sqrt((own * their / np.maximum(own + their, 1)).prod(1))
    inside, outside = _both_sides(groups, sums)
    if sums.ndim > counts.ndim:
        own, their = own[..., None], their[..., None]
    return inside / np.maximum(own, 1) - outside / np.maximum(their, 1), sure


def _whole(profiles: Floats) -> Floats:
    """Return profiles of all classes together `[n, 2, 1, 1 + d]`."""
    return np.asarray(profiles.sum(2, keepdims=True))


def _depart(profiles: Floats) -> tuple[Floats, float]:
    """Return what sums of features depart by from their class `[n, 2, C, d]`, and the spread of one sample's."""
    counts, sums = profiles[..., 0], profiles[..., 1:]
    of_class = counts.sum((0, 1))
    means = sums.sum((0, 1)) / np.maximum(of_class, 1)[:, None]
    spread = sums.shape[3] / 2 - float(of_class @ (means**2).sum(1) / of_class.sum())  # a cosine's square: 1/2
    return sums - counts[..., None] * means, spread


def _products(departures: Floats) -> Floats:
    """Return the inner products `[n, …]` of what both halves depart by `[n, 2, …, d]`."""
    return np.asarray((departures[:, 0] * departures[:, 1]).sum(-1))


def _share(
    profiles: Floats,
    measure: Callable[[Floats], tuple[Floats, Floats, float]],
    rng: np.random.Generator,
    draws: int,
) -> Share:
    """Return the share of variance between clients, and its p-value by signs.

    Those whose products are largest are left out, and what all clients are like is found anew without them.

    Args:
        profiles: of all clients.
        measure: returns products of halves, their weights, and what they would sum to if all variance were between
            clients, for one weight.
        rng: draws signs.
        draws: how many times.
    """
    products, weights, _ = measure(profiles)
    ratios = np.abs(products / np.maximum(weights, 1e-12))
    kept = np.sort(np.argsort(ratios, kind="stable")[: len(profiles) - int(TRIM * len(profiles))])
    products, weights, spread = measure(profiles[kept])
    if spread <= 1e-12 or weights.sum() <= 0:
        return Share(0.0, 1.0)
    signs = rng.choice([-1.0, 1.0], (draws, len(products)))
    p = (1 + int((signs @ products >= products.sum() - 1e-12).sum())) / (1 + draws)
    return Share(float(products.sum() / weights.sum() / spread), p)
