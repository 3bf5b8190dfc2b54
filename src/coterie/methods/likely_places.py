"""How many groups there are, and who is in which, by the losses of the groups' models (hard EM)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.clients.rules.fold import HalfUpdate
from coterie.clients.rules.group_places import HELD_OUT, PLACES, GroupPlaces
from coterie.grouping.labels import relabel
from coterie.methods.cross_fit import train_clipped
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.method import ServerView
from coterie.models.layout import Layout

SMALL = 1000
"""Parameters of a linear model, at most, for so many to be trained in no time."""
SETTLING, BETWEEN = 8, 3
"""Rounds of training before clients are placed for the first time, and between two placings."""
PLACINGS = 8
"""How often they are, at most."""
PASSES = 20
"""Over a client's samples in a round: linear models of few samples take so many to be worth comparing."""
PATIENCE = 2
"""Numbers of groups in a row that may predict no better than the best so far, before the search ends."""
ERRORS = 1.5
"""Standard errors by which the best number of groups must predict better than a smaller one, or give way to it."""


@dataclass(frozen=True, eq=False)
class Placed:
    """Where clients are.

    Attributes:
        labels: the group of each client by its samples `[m]`.
        halves: the same by its samples outside each half `[2, m]`.
        held_out: the mean loss of the samples of its halves `[m]`, each half under the model of a group that was
            trained, and chosen, without it.
    """

    labels: NDArray[np.int64]
    halves: NDArray[np.int64]
    held_out: NDArray[np.float64]

    @property
    def count(self) -> int:
        """How many groups have a client."""
        return len(np.unique(self.labels))

    def relabelled(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return canonical `labels`, and `halves` by the same names; nobody is in a group without a label."""
        numbers, found = np.full(int(max(self.labels.max(), self.halves.max())) + 1, -1), relabel(self.labels)
        numbers[self.labels] = found
        return found, np.where(numbers[self.halves] < 0, found, numbers[self.halves])


def is_small_and_linear(layout: Layout) -> bool:
    """Whether models are linear, and of so few parameters that dozens can be trained to tell groups apart."""
    return len(layout.layers) == 1 and layout.size <= SMALL


def choose_groups(
    clients: Ids, guesses: Iterable[NDArray[np.int64]], server: ServerView, size: int
) -> Exchanges[Placed]:
    """Return the groups that predict held-out samples best, or fewer where these predict as well.

    Args:
        clients: whom to ask `[m]`, ascending.
        guesses: groups of each client `[m]` to begin with, 0 … K-1, for K = 1, 2, …
        server: what is known of them.
        size: samples in a half.
    """
    found, best = list[Placed](), 0
    for guess in guesses:
        found.append((yield from place_by_likelihood(clients, guess, server, size)))
        if found[-1].held_out.mean() < found[best].held_out.mean():
            best = len(found) - 1
        if len(found) > best + PATIENCE:
            break
    for placed in found[:best]:
        behind = placed.held_out - found[best].held_out
        if behind.mean() <= ERRORS * behind.std(ddof=1) / np.sqrt(len(behind)):
            return placed
    return found[best]


def place_by_likelihood(clients: Ids, guess: NDArray[np.int64], server: ServerView, size: int) -> Exchanges[Placed]:
    """Return where clients go from a first guess `[m]`, until nobody moves.

    For either half, each group trains a model on what its clients hold outside that half; each client goes to the
    model that loses least on its own samples outside it. A group that loses all its clients is left without any.
    Who does not answer stays.

    Costs up to `2 (SETTLING + PLACINGS BETWEEN) m P b` bytes each way, and `2 PLACINGS m K P b` more down.
    """
    models = [server.initial(0)[None].repeat(int(guess.max()) + 1, 1)] * 2
    labels, halves, held_out = guess.copy(), np.stack([guess, guess]), np.zeros(len(clients))
    for turn in range(PLACINGS):
        for half in (0, 1):
            rules = [HalfUpdate(size, half, PASSES, number) for number in range(BETWEEN if turn else SETTLING)]
            models[half] = yield from train_clipped(rules, clients, halves[half], models[half], server)
        asked = {"models": Send.all(torch.cat(models), clients)}
        replies: Replies = yield Exchange(clients, GroupPlaces(size), asked)
        if not len(replies):
            break
        before, halves, at = halves, halves.copy(), np.searchsorted(clients, replies.clients)
        labels[at], halves[0, at], halves[1, at] = (replies.numbers[name].astype(np.int64) for name in PLACES)
        held_out[at] = replies.numbers[HELD_OUT]
        if (halves == before).all():
            break
    return Placed(labels, halves, held_out)
