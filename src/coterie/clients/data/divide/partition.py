"""Partitions: which samples each client holds, as index functions over the labels.

Every partition takes a `Pool` and returns disjoint index arrays, one per client. Most of them only decide
how many samples of each class a client gets (`[clients, classes]` counts); `deal_samples` then hands them out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coterie.catalogue import Catalog
from coterie.clients.data.read.columns import ROLES
from coterie.clients.data.read.datasets import DATASETS, Dataset, has_users
from coterie.errors import BadInput, count_of
from coterie.grouping.label_divergence import label_divergence
from coterie.grouping.labels import relabel
from coterie.randomness import stream

SPLITS = Catalog("split")
"""Partitions (this module) and skews (`coterie.clients.data.divide.skew`) by the name a user writes."""

T = TypeVar("T", bound=Callable[..., Any])


def split(name: str, *, by_class: bool = False) -> Callable[[T], T]:
    """Decorator: list a partition or a skew under `name`; with `by_class` it looks at the class of each sample."""

    def add(target: T) -> T:
        vars(target)["by_class"] = by_class
        return SPLITS.add(name)(target)

    return add


def goes_by_class(name: str) -> bool:
    """Whether a split looks at the class of each sample, which not all tasks have."""
    return bool(vars(SPLITS[name].target)["by_class"])


DEFAULT_CLIENTS = 20
MOST_REDRAWS = 1000

Indices = NDArray[np.int64]
Groups = Annotated[int, Field(ge=1, description="number of true groups; client i is in group i mod groups")]
ClassSets = Annotated[
    Literal["balanced", "windows"],
    Field(
        description="which classes a client holds: random ones, dealt evenly, or the windows i, i + 1, … modulo "
        "the classes, of which there are as many as classes, so that clients with the same data repeat"
    ),
]


@dataclass(frozen=True)
class Pool:
    """What a partition may look at.

    `clients` is None where the user left the number open; `minimum` is the fewest samples a client may have. With
    `redraws_small`, users below it are replaced by others, where there are such.
    """

    data: Dataset
    clients: int | None
    minimum: int
    seed: int
    redraws_small: bool = False

    @property
    def n(self) -> int:
        """The number of clients, for a partition in which any number is possible."""
        return DEFAULT_CLIENTS if self.clients is None else self.clients

    @cached_property
    def class_sizes(self) -> Indices:
        """Samples of each class, `[classes]`."""
        return np.bincount(self.data.labels, minlength=self.data.classes)

    def generator(self) -> np.random.Generator:
        return stream(self.seed, "partition")


@dataclass(frozen=True)
class Partition:
    """Disjoint sample indices of each client, and the true groups that the partition makes.

    `untrained` are further samples of each client, of which it gets the shares of its validation and test alone.
    """

    parts: list[Indices]
    true_groups: Indices | None = None
    few_shot: NDArray[np.bool_] | None = None
    names: tuple[str, ...] | None = None
    untrained: list[Indices] | None = None
    notes: tuple[str, ...] = ()


@split("iid")
def iid(pool: Pool) -> Partition:
    """Every client gets an equal random share of the samples."""
    return Partition(np.array_split(pool.generator().permutation(len(pool.data.labels)), pool.n))


@split("dirichlet", by_class=True)
def dirichlet(
    pool: Pool,
    *,
    alpha: Annotated[
        float, Field(gt=0, description="concentration; small values mean few classes per client")
    ] = 0.5,
    sizes: Annotated[
        Literal["vary", "equal"],
        Field(description="each class is cut over the clients; or each equally large client draws its own classes"),
    ] = "vary",
) -> Partition:
    """Each class is cut over the clients by a Dirichlet draw (Hsu et al., 2019).

    The draw is repeated until every client has the minimum number of samples. With `sizes = "equal"` the draw is
    over the classes, one for each client, and all have the same number of samples (Acar et al., FedDyn, 2021).

    Raises:
        BadInput: no draw of `MOST_REDRAWS` gave every client its minimum.
    """
    rng, n, total = pool.generator(), pool.n, len(pool.data.labels)
    if sizes == "equal":
        shares = rng.dirichlet(np.full(pool.data.classes, alpha), size=n)
        return Partition(deal_samples(pool, _draw_equal_counts(pool, shares, rng), rng))
    if n * pool.minimum <= total:
        for _ in range(MOST_REDRAWS):
            shares = rng.dirichlet(np.full(n, alpha), size=pool.data.classes).T
            edges = np.floor(np.cumsum(shares, axis=0) * pool.class_sizes + 1e-9).astype(np.int64)
            edges[-1] = pool.class_sizes
            counts = np.diff(edges, axis=0, prepend=0)
            if counts.sum(axis=1).min() >= pool.minimum:
                return Partition(deal_samples(pool, counts, rng))
    raise BadInput(
        f"split = 'dirichlet(alpha={alpha:g})' cannot give each of {n} clients min_samples = {pool.minimum} of the "
        f"{total} samples ({MOST_REDRAWS} draws); raise alpha, lower min_samples or use fewer clients"
    )


@split("classes", by_class=True)
def by_classes(
    pool: Pool,
    *,
    per_client: Annotated[int, Field(ge=1, description="classes each client holds")] = 2,
    sets: ClassSets = "balanced",
) -> Partition:
    """Every client holds exactly `per_client` classes; a class is shared evenly by the clients that hold it.

    Windows plant groups: clients whose numbers are equal modulo the number of classes.
    """
    _at_most(pool, "classes", "per_client", per_client)
    rng = pool.generator()
    holds, true_groups = _choose_classes(pool, np.full(pool.n, per_client), sets, rng)
    return Partition(deal_samples(pool, _evenly(pool.class_sizes, holds), rng), true_groups)


@split("shards", by_class=True)
def shards(
    pool: Pool, *, per_client: Annotated[int, Field(ge=1, description="shards each client is dealt")] = 2
) -> Partition:
    """Samples sorted by label are cut into equal shards, which are dealt at random (McMahan et al., 2017)."""
    rng, pieces = pool.generator(), pool.n * per_client
    if pieces > len(pool.data.labels):
        raise BadInput(
            f"split = 'shards(per_client={per_client})' needs {count_of(pieces, 'sample')} for "
            f"{count_of(pool.n, 'client')}, and {pool.data.name} has {len(pool.data.labels)}; use fewer clients or "
            "shards"
        )
    cut = np.array_split(_by_class(pool, rng), pieces)
    dealt = rng.permutation(pieces).reshape(pool.n, per_client)
    return Partition([np.concatenate([cut[piece] for piece in own]) for own in dealt])


@split("by-user")
def by_user(pool: Pool) -> Partition:
    """Every client is one real user of the data; with fewer clients than users, the users are drawn at random."""
    if pool.data.users is None or pool.data.user_names is None:
        raise BadInput(without_users(pool.data.name))
    users = len(pool.data.user_names)
    n = users if pool.clients is None else pool.clients
    if n > users:
        raise BadInput(
            f"clients = {n} is not possible; {pool.data.name} has {count_of(users, 'user')}, so clients is at most "
            f"{users}"
        )
    rng = pool.generator()
    chosen = rng.choice(users, n, replace=False)
    notes: tuple[str, ...] = ()
    if pool.redraws_small:
        chosen, notes = _redraw_small(pool, chosen, rng)
    chosen = np.sort(chosen)
    order = np.argsort(pool.data.users, kind="stable")
    edges = np.searchsorted(pool.data.users[order], np.arange(users + 1))
    true_groups = None if pool.data.user_groups is None else relabel(pool.data.user_groups[chosen])
    names = tuple(pool.data.user_names[user] for user in chosen)
    return Partition([order[edges[u] : edges[u + 1]] for u in chosen], true_groups, names=names, notes=notes)


def _redraw_small(pool: Pool, chosen: Indices, rng: np.random.Generator) -> tuple[Indices, tuple[str, ...]]:
    """Put others into the place of users with too few samples, while there are any; say how many."""
    assert pool.data.users is not None
    sizes = np.bincount(pool.data.users, minlength=len(pool.data.user_names or ()))
    small = np.flatnonzero(sizes[chosen] < pool.minimum)
    others = np.setdiff1d(np.flatnonzero(sizes >= pool.minimum), chosen)
    count = min(len(small), len(others))
    if not count:
        return chosen, ()
    chosen = chosen.copy()
    chosen[small[:count]] = rng.permutation(others)[:count]
    who = "user that was drawn has" if count == 1 else "users that were drawn have"
    note = f"{count} {who} fewer than data.min_samples = {pool.minimum} samples; other users replace them"
    return chosen, (note,)


@split("label-groups", by_class=True)
def label_groups(
    pool: Pool,
    *,
    groups: Groups = 4,
    share: Annotated[float, Field(gt=0, le=1, description="share of a client's data in its group's class")] = 0.5,
) -> Partition:
    """A share of each client's data is its group's own class, the rest the other classes (LayerCFL's beta).

    Group g's class is g. All clients have the same size, the largest the data allow.
    """
    _at_most(pool, "label-groups", "groups", groups)
    group = np.arange(pool.n) % groups
    weights = np.full((pool.n, pool.data.classes), (1 - share) / (pool.data.classes - 1))
    weights[np.arange(pool.n), group] = share
    rng = pool.generator()
    return Partition(deal_samples(pool, _mixture_counts(pool, weights), rng), group)


@split("label-blocks", by_class=True)
def label_blocks(pool: Pool, *, groups: Groups = 2) -> Partition:
    """The classes are cut into one block per group; a client holds the classes of its group's block only."""
    _at_most(pool, "label-blocks", "groups", groups)
    if groups > pool.n:
        raise BadInput(
            f"split = 'label-blocks(groups={groups})' needs at least {groups} clients; clients = {pool.n}"
        )
    group = np.arange(pool.n) % groups
    block = np.empty(pool.data.classes, np.int64)
    for number, members in enumerate(np.array_split(np.arange(pool.data.classes), groups)):
        block[members] = number
    counts = _evenly(pool.class_sizes, group[:, None] == block[None, :])
    return Partition(deal_samples(pool, counts, pool.generator()), group)


@split("primary-secondary", by_class=True)
def primary_secondary(
    pool: Pool,
    *,
    level: Annotated[
        Literal["low", "mid", "high"], Field(description="how different the clients' labels are")
    ] = "mid",
) -> Partition:
    """A primary class (40 to 60 %), a secondary class (20 to 40 %), the rest uniform (DC-PFL).

    A hundred candidates are drawn, and the range of their mean label divergence is cut in three equal intervals;
    the candidate nearest to the middle of the interval named by `level` is taken.
    """
    n, classes = pool.n, pool.data.classes
    if n < 2 or classes < 3:
        raise BadInput(
            f"split = 'primary-secondary' needs at least 2 clients and 3 classes; there are {n} and {classes}"
        )
    rng = pool.generator()
    candidates = np.stack([_primary_secondary_weights(n, classes, rng) for _ in range(100)])
    divergence = np.array([label_divergence(weights) for weights in candidates])
    position = {"low": 1, "mid": 3, "high": 5}[level] / 6
    wanted = divergence.min() + position * (divergence.max() - divergence.min())
    weights = candidates[np.argmin(np.abs(divergence - wanted))]
    return Partition(deal_samples(pool, _mixture_counts(pool, weights), rng))


def _primary_secondary_weights(n: int, classes: int, rng: np.random.Generator) -> NDArray[np.float64]:
    first, second = rng.uniform(0.4, 0.6, n), rng.uniform(0.2, 0.4, n)
    primary = rng.integers(classes, size=n)
    secondary = (primary + rng.integers(1, classes, size=n)) % classes
    weights = np.repeat(((1 - first - second) / (classes - 2))[:, None], classes, axis=1)
    weights[np.arange(n), primary], weights[np.arange(n), secondary] = first, second
    return np.maximum(weights, 0)


@split("few-shot", by_class=True)
def few_shot(
    pool: Pool,
    *,
    share: Annotated[float, Field(ge=0, le=1, description="share of the clients that are few-shot")] = 0.3,
    classes: Annotated[int, Field(ge=1, description="random classes of a regular client")] = 5,
    few_classes: Annotated[int, Field(ge=1, description="random classes of a few-shot client")] = 2,
    samples_per_class: Annotated[
        int | None,
        Field(ge=1, description="samples of each class held, the same for everybody; default: the most possible"),
    ] = None,
    sets: ClassSets = "balanced",
    held_out: Annotated[
        Literal["own", "regular"],
        Field(description="validation and test of a few-shot client: own classes, or as many as a regular one's"),
    ] = "own",
) -> Partition:
    """Equal samples of a few classes; a share of the clients has fewer classes (FedCPS).

    With `held_out = "regular"` a few-shot client has the classes of a regular one, and samples to train on of
    `few_classes` of them alone.
    """
    _at_most(pool, "few-shot", "classes", classes)
    rng, n = pool.generator(), pool.n
    is_few = np.zeros(n, bool)
    is_few[rng.choice(n, int(share * n + 0.5), replace=False)] = True
    trained = np.where(is_few, few_classes, classes)
    dealt_classes = trained if held_out == "own" else np.full(n, classes)
    holds, true_groups = _choose_classes(pool, dealt_classes, sets, rng)
    most = int(np.min(pool.class_sizes[holds.any(axis=0)] // holds.sum(axis=0)[holds.any(axis=0)]))
    each = most if samples_per_class is None else samples_per_class
    if each > most or each == 0:
        raise BadInput(
            f"few-shot.samples_per_class = {each} is not possible for {n} clients; {pool.data.name} allows {most}: "
            "use fewer clients, classes or samples_per_class"
        )
    dealt = deal_samples(pool, holds * each, rng)
    if held_out == "own":
        return Partition(dealt, true_groups, is_few)
    trains = _narrow_classes(holds, trained, sets, rng)
    own = [row[pool.data.labels[samples]] for row, samples in zip(trains, dealt, strict=True)]
    parts = [samples[mine] for samples, mine in zip(dealt, own, strict=True)]
    untrained = [samples[~mine] for samples, mine in zip(dealt, own, strict=True)]
    return Partition(parts, true_groups, is_few, untrained=untrained)


def without_users(name: str) -> str:
    """The sentence for `by-user` on data without users."""
    with_users = sorted(filter(has_users, DATASETS.names()), reverse=True)
    instead = f"{', '.join(with_users[:-1])} and {with_users[-1]} have them"
    if name not in DATASETS:
        names = ROLES["client"].names
        instead = (
            "add an array or column with the user of each sample, named "
            f"{', '.join(names[:-1])} or {names[-1]}, or take --split iid"
        )
    return f"split = 'by-user' needs data with users and {name} has none; {instead}"


def deal_samples(pool: Pool, counts: NDArray[Any], rng: np.random.Generator) -> list[Indices]:
    """Hand out samples at random: client i gets `counts[i, c]` of class c; what is left over goes to nobody.

    `counts` is `[clients, classes]`, its column sums at most the class sizes.
    """
    order = _by_class(pool, rng)
    starts = np.cumsum(pool.class_sizes) - pool.class_sizes
    stops = starts + np.cumsum(counts, axis=0)
    return [
        np.concatenate([order[stop - count : stop] for stop, count in zip(row, own, strict=True)])
        for row, own in zip(stops, counts, strict=True)
    ]


def _by_class(pool: Pool, rng: np.random.Generator) -> Indices:
    """All indices sorted by label, in random order within a label."""
    order = rng.permutation(len(pool.data.labels))
    return order[np.argsort(pool.data.labels[order], kind="stable")]


def _choose_classes(
    pool: Pool, wanted: Indices, sets: Literal["balanced", "windows"], rng: np.random.Generator
) -> tuple[NDArray[np.bool_], Indices | None]:
    """Return which classes each client holds, `[clients, classes]`, and the groups that windows plant."""
    if sets == "balanced":
        return _balanced_classes(pool, wanted, rng), None
    first = np.arange(pool.n)
    offset = (np.arange(pool.data.classes)[None, :] - first[:, None]) % pool.data.classes
    return offset < wanted[:, None], first % pool.data.classes


def _draw_equal_counts(pool: Pool, shares: NDArray[np.float64], rng: np.random.Generator) -> Indices:
    """Return counts `[clients, classes]` of equal clients whose samples' classes are drawn from `shares`.

    Who draws a class of which nothing is left draws again among the others.
    """
    n, size = len(shares), len(pool.data.labels) // len(shares)
    counts, left = np.zeros((n, pool.data.classes), np.int64), pool.class_sizes.copy()
    slots = rng.permutation(np.repeat(np.arange(n), size))  # one for each sample that somebody still needs
    while len(slots):
        open_shares = np.where(left > 0, np.maximum(shares, 1e-12), 0.0)
        ends = np.cumsum(open_shares / open_shares.sum(axis=1, keepdims=True), axis=1)
        drawn = np.minimum((rng.random(len(slots))[:, None] >= ends[slots]).sum(axis=1), np.flatnonzero(left)[-1])
        again = np.zeros(len(slots), bool)
        for c in np.flatnonzero(left):
            own = np.flatnonzero(drawn == c)
            again[own[left[c] :]] = True
            np.add.at(counts[:, c], slots[own[: left[c]]], 1)
            left[c] -= min(len(own), left[c])
        slots = slots[again]
    return counts


def _narrow_classes(
    holds: NDArray[np.bool_], wanted: Indices, sets: Literal["balanced", "windows"], rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Return `wanted` of the classes that each client holds: random ones, or a window's first."""
    clients, classes = holds.shape
    offset = (np.arange(classes)[None, :] - np.arange(clients)[:, None]) % classes
    order = offset if sets == "windows" else rng.random(holds.shape)
    rank = np.argsort(np.argsort(np.where(holds, order, np.inf), axis=1), axis=1)
    return holds & (rank < wanted[:, None])


def _balanced_classes(pool: Pool, wanted: Indices, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which classes each client holds, `[clients, classes]`: random among those held least so far."""
    holds = np.zeros((len(wanted), pool.data.classes), bool)
    used = np.zeros(pool.data.classes, np.int64)
    for client, count in enumerate(wanted):
        own = np.lexsort((rng.random(pool.data.classes), used))[:count]
        holds[client, own] = True
        used[own] += 1
    return holds


def _evenly(sizes: Indices, holds: NDArray[np.bool_]) -> Indices:
    """Counts `[clients, classes]` that share each class evenly among its holders."""
    holders = np.maximum(holds.sum(axis=0), 1)
    rank = np.cumsum(holds, axis=0) - 1
    counts: Indices = np.where(holds, sizes // holders + (rank < sizes % holders), 0)
    return counts


def _mixture_counts(pool: Pool, weights: NDArray[np.float64]) -> Indices:
    """Counts for equal clients with class proportions `weights` `[clients, classes]`, as large as possible."""
    demand = weights.sum(axis=0)
    used = demand > 0
    size = int(min(len(pool.data.labels) // len(weights), np.min(pool.class_sizes[used] / demand[used])))
    # Rounding to whole samples can overdraw a class by at most one sample per client: a few steps down suffice.
    while True:
        exact = weights * size
        counts = np.floor(exact).astype(np.int64)
        missing = size - counts.sum(axis=1)
        rank = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1)
        counts += rank < missing[:, None]
        if (counts.sum(axis=0) <= pool.class_sizes).all():
            return counts
        size -= 1


def _at_most(pool: Pool, split: str, key: str, value: int) -> None:
    if value > pool.data.classes:
        raise BadInput(f"{split}.{key} = {value} is not possible; {pool.data.name} has {pool.data.classes} classes")
