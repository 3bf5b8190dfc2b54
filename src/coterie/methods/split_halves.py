"""How directions of updates from both halves of every client's data are gathered (`halves`, `coterie diagnose`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.clients.rules.half_data import HalfDirections
from coterie.grouping.halves import common_half, direction_products, find_turned_round
from coterie.methods.exchange import Exchange, Ids, Replies, Round, Send
from coterie.methods.half_models import HalfModels, have_directions, make_half_models
from coterie.methods.method import ServerView

PASSES = 5
"""Passes over a half."""


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
) -> Round[GatheredHalves]:
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


def _restrict(answers: list[tuple[Ids, NDArray[np.float64]]], clients: Ids) -> NDArray[np.float64]:
    """Return the products `[V, 2 r, 2 r]` of some clients, all of whom answered from every start."""
    found = np.empty((len(answers), 2 * len(clients), 2 * len(clients)))
    for start, (answered, products) in enumerate(answers):
        at = np.searchsorted(answered, clients)
        rows = np.stack([2 * at, 2 * at + 1], 1).ravel()
        found[start] = products[np.ix_(rows, rows)]
    return found


def _read_products(replies: Replies) -> tuple[Ids, NDArray[np.float64]]:
    """Return who sent two directions, and their products.

    A client with a single sample sends none; a vector of 0, as of training that diverged, is none either.
    """
    if not len(replies):
        return replies.clients, np.empty((0, 0))
    first, second = replies.uploads["first"], replies.uploads["second"]
    sent = have_directions(replies)
    return replies.clients[sent.numpy()], direction_products(first[sent], second[sent])
