"""How clients are placed in groups by the losses of these groups' models, from a first guess on (hard EM)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coterie.clients.rules.group_places import PLACES, GroupPlaces
from coterie.clients.rules.local_update import LocalUpdate
from coterie.methods.cross_fit import train_clipped
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.method import ServerView

SETTLING = 3
"""Rounds of training before clients are placed anew for the first time."""
PLACINGS = 10
"""How often they are, at most."""
PASSES = 20
"""Over a client's samples in a round: linear models of few samples take so many to be worth comparing."""


def place_by_likelihood(
    clients: Ids, labels: NDArray[np.int64], server: ServerView, size: int
) -> Exchanges[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the group of each client `[m]` by its samples, and by those outside each half of them `[2, m]`.

    Each group trains a model from what its clients hold; each client goes to the model that loses least on its
    samples, and so on until nobody moves. A group that loses all its clients is left without any. Who does not
    answer stays.

    Args:
        clients: whom to ask `[m]`, ascending.
        labels: of each client, 0 … K-1: the first guess.
        server: what is known of them.
        size: samples in a half.

    Costs up to `(SETTLING + PLACINGS) m P b` bytes each way, and `PLACINGS m K P b` more down.
    """
    models = server.initial(0)[None].repeat(int(labels.max()) + 1, 1)
    halves = np.stack([labels, labels])
    rules = [LocalUpdate(epochs=PASSES)]
    models = yield from train_clipped(rules * (SETTLING - 1), clients, labels, models, server)
    for _ in range(PLACINGS):
        models = yield from train_clipped(rules, clients, labels, models, server)
        replies: Replies = yield Exchange(clients, GroupPlaces(size), {"models": Send.all(models, clients)})
        before, labels, at = labels, labels.copy(), np.searchsorted(clients, replies.clients)
        if len(replies):
            labels[at] = replies.numbers[PLACES[0]].astype(np.int64)
            halves[:, at] = np.stack([replies.numbers[name].astype(np.int64) for name in PLACES[1:]])
        if (labels == before).all():
            break
    return labels, halves
