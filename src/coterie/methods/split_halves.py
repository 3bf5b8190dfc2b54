"""How directions of updates from both halves of every client's data are gathered (`halves`, `coterie diagnose`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rules.half_data import HalfDirections, is_sketched
from coterie.errors import count_of
from coterie.grouping.halves import (
    FINER,
    LEAST,
    common_half,
    direction_products,
    find_turned_round,
    half_distances,
    pairing_test,
)
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.half_models import HalfModels, have_directions, make_half_models
from coterie.methods.method import ServerView
from coterie.models.layout import Part

PASSES = 5
"""Passes over a half."""

MOST_MEMBERS = 16
"""Clients of a group who are asked whether they differ."""
MIXED = "clients of one group still differ"
"""How the warning begins."""
MIXED_LEVEL = 0.02
"""How often groups of clients of one population may be said to be mixed, in a run."""


@dataclass(frozen=True, eq=False)
class GatheredHalves:
    """What the halves of clients say.

    Attributes:
        clients: those that answered from every start `[r]`, ascending, without those turned round.
        products: inner products of the directions of their halves `[V, 2 r, 2 r]` (`grouping.halves`).
        size: samples in a half; 0 where hardly any client has two samples, and nothing was asked.
        tested: whose halves have that size `[r]`; the others are not tested, only placed.
        turned_round: ids of clients whose updates point against all others', as those of clients that flip signs.
        models: of the halves of some of the clients, where that was asked for.
    """

    clients: Ids
    products: NDArray[np.float64]
    size: int
    tested: NDArray[np.bool_]
    turned_round: Ids
    models: HalfModels | None = None


def gather_halves(
    clients: Ids,
    server: ServerView,
    starts: int,
    gathered: Callable[[int], None] = lambda start: None,
    most_models: int = 0,
) -> Exchanges[GatheredHalves]:
    """Let clients train on either half of their data, from each of several initial models.

    The halves stay the same, so that averages over the starts are as exchangeable as the halves. The first start is
    the common initial model.

    Args:
        clients: whom to ask `[m]`.
        server: what is known of them.
        starts: how many initial models V; each costs `m P b` bytes down, and `2 m P b` up.
        gathered: is told the number of each start, 1, 2, …, when its answers are there.
        most_models: of how many clients models are made, of the first start: for the others only directions count.
    """
    size, answers = common_half(server.samples[clients]), list[tuple[Ids, NDArray[np.float64]]]()
    models: HalfModels | None = None
    for start in range(starts if size else 0):
        rule = HalfDirections(size, PASSES, start, lengths=bool(most_models) and not start)
        replies: Replies = yield Exchange(clients, rule, {"model": Send.same(server.initial(start), clients)})
        if rule.lengths:
            models = make_half_models(replies, server, size, most_models)
        answers.append(_read_products(replies))
        gathered(start + 1)
    common = clients if answers else clients[:0]
    for answered, _ in answers:
        common = np.intersect1d(common, answered)
    products = _restrict(answers, common)
    turned = find_turned_round(products) if len(products) else np.zeros(len(common), np.bool_)
    kept = common[~turned]
    return GatheredHalves(
        kept,
        _restrict(answers, kept),
        size,
        server.samples[kept] >= 2 * size,
        common[turned],
        None if models is None else models.of(kept),
    )


def compare_halves(
    clients: Ids, groups: Ids, models: Tensor, server: ServerView, part: Part | None = None, draw: int = 0
) -> Exchanges[dict[int, tuple[Ids, NDArray[np.float64]]]]:
    """Return, for each group, which clients have two halves `[r]`, and the distances of these `[2 r, 2 r]`.

    They train on either half from the model of their group. A group is left out where fewer than `LEAST` answered.

    Args:
        clients: whom to ask `[m]`, ascending; each costs `P b` bytes down and `2 P b` up.
        groups: of each of them `[m]`.
        models: of the groups `[K, P]`.
        server: what is known of the clients.
        part: the tensors that are compared, where directions are not sketched; all where not given.
        draw: which of several pairs of halves a client may draw in a round.
    """
    size = common_half(server.samples[clients])
    if not size:
        return {}
    rule = HalfDirections(size, PASSES, draw=draw)
    replies: Replies = yield Exchange(clients, rule, {"model": Send(models, groups)})
    answered, products = _read_products(replies, None if is_sketched(server.layout) else part)
    of, found = groups[np.searchsorted(clients, answered)], {}
    for group in np.unique(of).tolist():
        members = np.flatnonzero((of == group) & (server.samples[answered] >= 2 * size))
        if len(members) >= LEAST:
            found[group] = answered[members], half_distances(products[None], members)
    return found


def warn_of_mixed_groups(
    models: Tensor, groups: NDArray[np.int64], names: NDArray[np.int64], server: ServerView, round: int
) -> Exchanges[list[str]]:
    """Return a warning that names the groups whose clients still differ; none where no group's do.

    At most `MOST_MEMBERS` of each group, drawn at random, train on halves from its model. A group's clients differ
    where a test says so at the level `MIXED_LEVEL` by the number of groups.

    Args:
        models: of the groups `[K, P]`.
        groups: of each client `[n]`; -1 for none.
        names: the number of each client's group for the reader `[n]`.
        server: what is known of the clients.
        round: names the randomness.
    """
    rng = server.stream("mixed groups", round)
    drawn = [rng.permutation(np.flatnonzero(groups == k))[:MOST_MEMBERS] for k in range(len(models))]
    large = [members for members in drawn if len(members) >= LEAST]
    if not large:
        return []
    clients = np.sort(np.concatenate(large))
    compared = yield from compare_halves(clients, groups[clients], models, server)
    level = MIXED_LEVEL / max(1, len(compared))
    found = []
    for group, (members, halves) in compared.items():
        p = pairing_test(halves, rng, max(999, int(np.ceil(FINER / level)) - 1)).p
        if p <= level:
            found.append(f"{names[members[0]]} ({count_of((groups == group).sum(), 'client')}, p = {p:.2g})")
    if not found:
        return []
    return [
        f"{MIXED}: in group {', '.join(found)} two halves of one client's data are more alike than halves of two "
        f"clients' data. More groups than method.clusters = {len(models)} may suit them, or no groups at all; "
        "`coterie diagnose` looks for their number"
    ]


def _restrict(answers: list[tuple[Ids, NDArray[np.float64]]], clients: Ids) -> NDArray[np.float64]:
    """Return the products `[V, 2 r, 2 r]` of some clients, all of whom answered from every start."""
    found = np.empty((len(answers), 2 * len(clients), 2 * len(clients)))
    for start, (answered, products) in enumerate(answers):
        at = np.searchsorted(answered, clients)
        rows = np.stack([2 * at, 2 * at + 1], 1).ravel()
        found[start] = products[np.ix_(rows, rows)]
    return found


def _read_products(replies: Replies, part: Part | None = None) -> tuple[Ids, NDArray[np.float64]]:
    """Return who sent two directions, and their products, in some of the tensors or in all.

    A client with a single sample sends none; a vector of 0, as of training that diverged, is none either.
    """
    if not len(replies):
        return replies.clients, np.empty((0, 0))
    sent = have_directions(replies)
    first, second = (replies.uploads[name][sent] for name in ("first", "second"))
    if part is not None:
        first, second = part.take(first), part.take(second)
    return replies.clients[sent.numpy()], direction_products(first, second)
