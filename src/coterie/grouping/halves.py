"""Are clients draws from one population, and if not, how many groups are they? A test on halves of their data.

Each client trains from a common start on each half of its own samples. If all clients draw from one population, all
halves are exchangeable: it makes no difference whether a half is paired with its own other half or with a
stranger's. So the mean distance between own halves is held against random pairings of the same halves: a
permutation test (Pitman, 1937), exact at any number of samples. It is exact where all halves are of one size.

Groups are found down the tree of average linkage: one that rejects within itself is divided into its two branches,
and one that does not stays whole. How many there are follows, from one up to as many as clients.

Halves lie in pairs: client `i` has the rows `2 i` and `2 i + 1`. A matrix of products is one of inner products of
directions, `[2 n, 2 n]`; there is one for each of V starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.grouping.affinity import inner_products
from coterie.grouping.cluster import dendrogram, nearest_group
from coterie.grouping.labels import relabel

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

LEAST = 4
"""Members of a group that can be tested: three have 15 pairings of their halves, and none below 5 %."""

AGAINST = -0.7
"""A client whose updates agree with all others this many times as well as the median client's was turned round."""
MOST_TURNED = 0.2
"""The share of clients of whom more are a group of their own, and not hostile."""

FINER = 4.0
"""How many times finer than the level that it is held against a p-value is computed, at least."""

LARGEST = 3.0
"""How many times the median loss one counts for at most."""

_CHUNK = 1 << 21
"""Places of random pairings drawn at a time."""


@dataclass(frozen=True)
class PairingTest:
    """The outcome of a test: the p-value, and the mean distance of own halves and of random pairings."""

    p: float
    own: float
    random: float


@dataclass(frozen=True)
class Division:
    """A test of one branch of the tree: how many clients it has, its p-value, and at most what p divides it."""

    clients: int
    p: float
    level: float
    """The largest p that divides the branch."""


@dataclass(frozen=True, eq=False)
class HalfGroups:
    """Which groups there are.

    Attributes:
        labels: of each client `[n]`, canonical.
        tests: what was tested, all clients first.
        all_differ: no groups describe the clients; each is its own group.
    """

    labels: Labels
    tests: tuple[Division, ...]
    all_differ: bool

    @property
    def count(self) -> int:
        """The number of groups K."""
        return len(np.unique(self.labels))


def common_half(samples: Labels, share: float = 0.8, most: int = 256) -> int:
    """Return how many samples a half has, so that `share` of the clients can fill two; at most `most`.

    Halves of different sizes are not exchangeable, whatever the clients hold: the test would find the sizes.

    Args:
        samples: of each client `[n]`.
        share: of the clients, who can be tested.
        most: what costs no more than the answer is worth.

    Returns:
        The size; 0 where there are no clients, or more than `1 - share` of them have one sample or none.
    """
    if not len(samples):
        return 0
    able = np.sort(samples)[::-1][int(np.ceil(share * len(samples))) - 1]
    return int(min(able // 2, most))


def direction_products(first: Tensor, second: Tensor) -> Floats:
    """Return the inner products `[2 n, 2 n]` of the directions of updates from first and second halves `[n, P]`.

    Lengths do not count: a client cannot weigh more by sending more. An update of 0 has no direction, and stays 0.
    """
    rows = torch.stack([first, second], 1).flatten(0, 1)
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    return inner_products(rows.div_(torch.where(lengths > 0, lengths, 1.0).to(rows.dtype)))


def half_distances(products: Floats, clients: Labels | None = None) -> Floats:
    """Return the distances `[2 m, 2 m]` of halves: one less the cosine about their mean, averaged over the starts.

    Args:
        products: `[V, 2 n, 2 n]`.
        clients: of whom `[m]`; all where not given.
    """
    if clients is not None:
        rows = _halves_of(clients)
        products = products[:, rows[:, None], rows]
    found = np.zeros(products.shape[1:])
    for of_start in products:
        means = of_start.mean(0)
        centred = of_start - means - means[:, None] + means.mean()
        lengths = np.sqrt(np.maximum(centred.diagonal(), 1e-12))
        found += 1 - centred / lengths / lengths[:, None]
    return found / max(1, len(products))


def client_distances(halves: Floats) -> Floats:
    """Return the distances `[n, n]` of clients: the means over both halves of both, from `[2 n, 2 n]`."""
    n = len(halves) // 2
    found = halves.reshape(n, 2, n, 2).mean((1, 3))
    np.fill_diagonal(found, 0.0)
    return np.asarray((found + found.T) / 2)


def loss_distances(losses: Floats) -> Floats:
    """Return the distances `[2 n, 2 n]` of halves by what the models of some lose on the samples of others.

    It is the mean loss of either's model on the samples of the other. In a sum over pairs, as in a test, neither
    how hard samples are counts nor how good a model is in general. No loss counts for less than 0, nor for more
    than `LARGEST` times the median one, so that nobody weighs more by telling what no model loses.

    Args:
        losses: `[2 n, 2 n]`, of the samples of each half (rows) under the model of each (columns); a half's own
            model counts nowhere.
    """
    others = losses[~np.eye(len(losses), dtype=bool)]
    told = np.clip(losses, 0.0, LARGEST * float(np.median(others)) if others.size else 0.0)
    np.fill_diagonal(told, 0.0)
    return np.asarray((told + told.T) / 2)


def pairing_test(halves: Floats, rng: np.random.Generator, draws: int = 999) -> PairingTest:
    """Test whether own halves are nearer to each other than halves paired at random.

    The p-value is (1 + as near or nearer) / (1 + draws): under the null hypothesis it is at most `a` with a
    probability of at most `a` (Phipson and Smyth, 2010).

    Args:
        halves: distances `[2 n, 2 n]`.
        rng: draws the pairings.
        draws: how many.
    """
    if len(halves) < 2:
        return PairingTest(1.0, 0.0, 0.0)
    own, means = _pair(halves, rng, draws)
    return _compare(own, means)


def _compare(own: float, means: Floats) -> PairingTest:
    nearer = int((means <= own + 1e-12).sum())  # sums of the same pairs in another order are ties
    return PairingTest((1 + nearer) / (1 + len(means)), own, float(means.mean()))


def _pair(halves: Floats, rng: np.random.Generator, draws: int) -> tuple[float, Floats]:
    """Return the mean distance of own halves, and that of each of some random pairings `[draws]`."""
    size = len(halves)
    own = float(halves[np.arange(0, size, 2), np.arange(1, size, 2)].mean())
    means, at_a_time = np.empty(draws), max(1, _CHUNK // size)
    for at in range(0, draws, at_a_time):
        some = means[at : at + at_a_time]
        order = rng.random((len(some), size)).argsort(1)
        some[:] = halves[order[:, ::2], order[:, 1::2]].mean(1)
    return own, means


def _differ_in_small_groups(halves: Floats, groups: list[Labels], alpha: float, rng: np.random.Generator) -> bool:
    """Return whether members of groups that are too small for a test of their own differ, all such groups together.

    Halves are paired at random within each group, so that groups that differ from each other do not count. It is
    also true where they are so few that no outcome could say so.
    """
    small = [members for members in groups if 1 < len(members) < LEAST]
    pairings = math.prod(math.prod(range(1, 2 * len(members), 2)) for members in small)
    if 1 / pairings > alpha:
        return True
    own, means = 0.0, np.zeros(max(999, int(np.ceil(FINER / alpha)) - 1))
    for members in small:
        rows = _halves_of(members)
        found = _pair(halves[np.ix_(rows, rows)], rng, len(means))
        own, means = own + len(members) * found[0], means + len(members) * found[1]
    return _compare(own, means).p <= alpha


def find_groups(
    products: Floats,
    alpha: float,
    rng: np.random.Generator,
    draws: int = 999,
    tested: NDArray[np.bool_] | None = None,
) -> HalfGroups:
    """Return the groups that do not reject within themselves, as large as possible, at the error level `alpha`.

    Down the tree of average linkage, m of the n clients are divided where their p-value is at most `alpha m / n`.
    So the probability of dividing any branch of one population is at most `alpha` for a given tree (Meinshausen,
    Biometrika 2008, Theorem 1), and exactly so for all clients together. Clients far from all others leave the tree
    first, and leave the other groups as they were. Branches of fewer than `LEAST` stay. Where most clients end in
    such, these are tested together; if members of one branch differ, or each is alone, everybody differs.

    Args:
        products: `[V, 2 n, 2 n]`.
        alpha: above 0.
        rng: draws the pairings.
        draws: of a test at least; a small branch, whose p-value must be smaller, has more.
        tested: whose halves count `[n]`; all where not given. The others join the nearest group.
    """
    n = products.shape[1] // 2
    counted = np.arange(n) if tested is None else np.flatnonzero(tested)
    if len(counted) < LEAST:
        return HalfGroups(np.zeros(n, np.int64), (), False)
    halves = half_distances(products, counted)
    apart = client_distances(halves)
    left, tests, groups = [_branches(apart)], list[Division](), list[Labels]()
    while left:
        branch = left.pop(0)
        members = np.sort(np.array(branch.pre_order(), np.int64))
        if len(members) >= LEAST:
            rows, level = _halves_of(members), alpha * len(members) / len(counted)
            enough = max(draws, int(np.ceil(FINER / level)) - 1)
            test = pairing_test(halves[np.ix_(rows, rows)], rng, enough)
            tests.append(Division(len(members), test.p, level))
            if test.p <= level:
                left += [branch.left, branch.right]
                continue
        groups.append(members)
    whole = sum(len(members) for members in groups if len(members) >= LEAST)
    if 2 * whole < len(counted) and not _differ_in_small_groups(halves, groups, alpha, rng):
        whole += sum(len(members) for members in groups if 1 < len(members) < LEAST)
    if len(groups) > 1 and 2 * whole < len(counted):
        return HalfGroups(np.arange(n), tuple(tests), True)
    labels = np.zeros(len(counted), np.int64)
    for group, members in enumerate(groups):
        labels[members] = group
    everybody, others = np.zeros(n, np.int64), np.setdiff1d(np.arange(n), counted)
    everybody[counted] = labels
    if len(others):
        apart = client_distances(half_distances(products))
        everybody[others] = nearest_group(apart[np.ix_(others, counted)], labels)
    return HalfGroups(relabel(everybody), tuple(tests), False)


def _branches(distances: Floats) -> Any:
    """Return the root of the tree of average linkage, of distances `[n, n]`."""
    from scipy.cluster.hierarchy import to_tree

    return to_tree(dendrogram(distances))


def membership_shares(products: Floats, labels: Labels, rng: np.random.Generator, resamples: int = 20) -> Floats:
    """Return how surely each client is of each group `[n, K]`: shares of votes, which sum to 1.

    A vote is of one half, from one start, for the group whose members are nearest on average, in one resample of
    each group (bootstrap); a client never counts as its own neighbour. A client alone in its group has no votes
    for it to be compared with, and is of that group.

    Args:
        products: `[V, 2 n, 2 n]`.
        labels: of each client `[n]`, 0 … K-1, each with a member.
        rng: draws the resamples.
        resamples: how many.
    """
    n, groups = len(labels), int(labels.max(initial=0)) + 1
    member = labels[:, None] == np.arange(groups)
    alone, client = member.sum(0)[labels] == 1, np.arange(2 * n) // 2
    votes = np.zeros((n, groups))
    for of_start in products:
        apart = half_distances(of_start[None]).reshape(2 * n, n, 2).mean(2)  # from halves to clients
        for _ in range(resamples):
            counts = np.zeros((n, groups))
            for group in range(groups):
                members = np.flatnonzero(member[:, group])
                counts[members, group] = rng.multinomial(len(members), np.full(len(members), 1 / len(members)))
            others = np.where(client[:, None] == np.arange(n), 0.0, 1.0)  # [2 n, n]
            sums, sizes = (apart * others) @ counts, others @ counts
            # Where a resample of its group is the client alone, its whole group stands for it.
            means = np.where(sizes > 0, sums, (apart * others) @ member) / np.maximum(
                np.where(sizes > 0, sizes, others @ member), 1
            )
            means[np.repeat(alone, 2), np.repeat(labels[alone], 2)] = -np.inf
            np.add.at(votes, (client, means.argmin(1)), 1.0)
    return np.asarray(votes / np.maximum(votes.sum(1, keepdims=True), 1))


def resampled_counts(
    products: Floats,
    alpha: float,
    rng: np.random.Generator,
    resamples: int = 20,
    share: float = 0.9,
    draws: int = 199,
) -> Labels:
    """Return the number of groups found among random subsets of the clients, and of the starts `[resamples]`.

    It is 0 where everybody differs.

    Args:
        products: `[V, 2 n, 2 n]`, of clients who are tested.
        alpha: as in `find_groups`.
        rng: draws subsets and pairings.
        resamples: how many.
        share: of the clients, drawn without replacement; starts are drawn with replacement.
        draws: of each test.
    """
    starts, n = len(products), products.shape[1] // 2
    found = np.zeros(resamples, np.int64)
    for at in range(resamples):
        clients = np.sort(rng.permutation(n)[: max(1, round(share * n))])
        some = products[rng.integers(0, starts, starts)]
        rows = _halves_of(clients)
        groups = find_groups(some[:, rows[:, None], rows], alpha, rng, draws)
        found[at] = 0 if groups.all_differ else groups.count
    return found


def find_turned_round(products: Floats) -> NDArray[np.bool_]:
    """Return whose updates point against everybody else's `[n]`, as those of a client that flips signs do.

    Honest clients share what every start has to learn first, whatever their group. A client is turned round where
    the mean product of its directions with all others' is below `AGAINST` times the median client's. Where labels
    mean the opposite in a group, its clients are like that, too; so nobody is where it would be more than
    `MOST_TURNED` of all.
    """
    n = products.shape[1] // 2
    if n < LEAST:
        return np.zeros(n, np.bool_)
    between = products.mean(0).reshape(n, 2, n, 2).mean((1, 3))
    agreement = (between.sum(1) - between.diagonal()) / (n - 1)
    median = float(np.median(agreement))
    turned = np.asarray(agreement < AGAINST * median) if median > 0 else np.zeros(n, np.bool_)
    return turned if turned.sum() <= MOST_TURNED * n else np.zeros(n, np.bool_)


def _halves_of(clients: Labels) -> Labels:
    """Return the rows `[2 m]` of the halves of clients `[m]`."""
    return np.stack([2 * clients, 2 * clients + 1], 1).ravel()
