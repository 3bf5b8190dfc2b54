"""How directions of updates from both halves of every client's data are gathered (`halves`, `coterie diagnose`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.clients.rules.half_data import HalfDirections
from coterie.grouping.halves import common_half, direction_products, find_turned_round
from coterie.methods.exchange import Exchange, Ids, Replies, Round, Send
from coterie.methods.method import ServerView

PASSES = 5
"""Passes over a half."""


@dataclass(frozen=True, eq=False)
class GatheredHalves:
    """What the halves of clients say.

    Attributes:
        clients: those that answered from every start `[r]`, ascending.
        products: inner products of the directions of their halves `[V, 2 r, 2 r]` (`grouping.halves`).
        size: samples in a half; 0 where hardly any client has two samples, and nothing was asked.
        small: whose halves are smaller `[r]`; they are not tested, only placed.
        turned_round: whose updates point against all others' `[r]`; they are not tested either.
    """

    clients: Ids
    products: NDArray[np.float64]
    size: int
    small: NDArray[np.bool_]
    turned_round: NDArray[np.bool_]

    @property
    def tested(self) -> NDArray[np.bool_]:
        """Whose halves are held against each other `[r]`."""
        return ~self.small & ~self.turned_round


def gather_halves(
    clients: Ids, server: ServerView, starts: int, gathered: Callable[[int], None] = lambda start: None
) -> Round[GatheredHalves]:
    """Let clients train on either half of their data, from each of several initial models.

    The halves stay the same, so that averages over the starts are as exchangeable as the halves. The first start is
    the common initial model.

    Args:
        clients: whom to ask `[m]`.
        server: what is known of them.
        starts: how many initial models V; each costs `m P b` bytes down, and `2 m P b` up.
        gathered: is told the number of each start, 1, 2, …, when its answers are there.
    """
    size, answers = common_half(server.samples[clients]), list[tuple[Ids, NDArray[np.float64]]]()
    for start in range(starts if size else 0):
        rule = HalfDirections(size, PASSES, start)
        replies: Replies = yield Exchange(clients, rule, {"model": Send.same(server.initial(start), clients)})
        answers.append(_read_products(replies))
        gathered(start + 1)
    common = clients if answers else clients[:0]
    for answered, _ in answers:
        common = np.intersect1d(common, answered)
    products = np.empty((len(answers), 2 * len(common), 2 * len(common)))
    for start, (answered, found) in enumerate(answers):
        at = np.searchsorted(answered, common)
        rows = np.stack([2 * at, 2 * at + 1], 1).ravel()
        products[start] = found[np.ix_(rows, rows)]
    small = server.samples[common] < 2 * size
    turned = find_turned_round(products) if len(products) else np.zeros(len(common), np.bool_)
    return GatheredHalves(common, products, size, small, turned)


def _read_products(replies: Replies) -> tuple[Ids, NDArray[np.float64]]:
    """Return who sent both directions, and their products; a client with a single sample sends none."""
    if not len(replies):
        return replies.clients, np.empty((0, 0))
    first, second = replies.uploads["first"], replies.uploads["second"]
    sent = ~(first[:, 0].isnan() | second[:, 0].isnan())
    return replies.clients[sent.numpy()], direction_products(first[sent], second[sent])
