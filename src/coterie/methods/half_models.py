"""How halves of clients are told apart by what their models do, beside by their directions (`coterie diagnose`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rules.half_losses import HalfLosses
from coterie.grouping.divergence import js_divergences
from coterie.grouping.halves import loss_distances
from coterie.methods.exchange import Exchange, Exchanges, Ids, Outputs, Replies, Send
from coterie.methods.method import ServerView


@dataclass(frozen=True, eq=False)
class HalfModels:
    """Models of the halves of some clients: client `clients[i]` has the rows `2 i` and `2 i + 1`.

    They are the initial model and as far from it, each in its own direction, as the median client went: so nobody's
    says more by being farther away.
    """

    clients: Ids
    """`[m]`, ascending; all of them have two whole halves."""
    models: Tensor
    """`[2 m, P]`."""

    def of(self, clients: Ids) -> HalfModels:
        """Return the models of those who are among `clients`."""
        rows = np.repeat(np.isin(self.clients, clients), 2)
        return HalfModels(self.clients[rows[::2]], self.models[torch.from_numpy(rows)])


def make_half_models(replies: Replies, server: ServerView, size: int, most: int) -> HalfModels:
    """Return the models of halves of at most `most` clients, drawn at random, from what `HalfDirections` answered.

    Args:
        replies: to the first start, with `length`.
        server: what is known of the clients.
        size: samples in a half.
        most: as above.
    """
    start = server.initial(0)
    if not len(replies):
        return HalfModels(replies.clients, start[None][:0])
    able = np.flatnonzero(have_directions(replies).numpy() & (server.samples[replies.clients] >= 2 * size))
    drawn = np.sort(server.stream("half models").permutation(able)[:most])
    pairs = torch.stack([replies.uploads[name][torch.from_numpy(drawn)] for name in ("first", "second")], 1)
    ways = pairs.flatten(0, 1)
    ways /= torch.linalg.vector_norm(ways, dim=1, keepdim=True)
    length = float(np.median(replies.numbers["length"][able])) if len(able) else 0.0
    return HalfModels(replies.clients[drawn], start + length * ways)


def have_directions(replies: Replies) -> Tensor:
    """Return who sent two directions `[r]`.

    A client with a single sample sends none; a vector of 0, as of training that diverged, is none either.
    """
    lengths = torch.stack([replies.uploads[name].norm(dim=1) for name in ("first", "second")])
    return ((lengths > 0) & lengths.isfinite()).all(0)  # NaN is where nothing crossed


def compare_losses(halves: HalfModels, size: int) -> Exchanges[NDArray[np.float64]]:
    """Return the distances `[2 r, 2 r]` of halves by the losses of their models under each other's samples.

    Each client is sent the models of all, `m` times `2 m P b` bytes down, and tells `4 m` losses.

    Args:
        halves: whose models; clients that do not answer are left out.
        size: samples in a half.
    """
    clients, models = halves.clients, halves.models
    if not len(clients):
        return np.empty((0, 0))
    send = {"models": Send.all(models, clients)}
    replies: Replies = yield Exchange(clients, HalfLosses(size, len(models)), send)
    if not len(replies):
        return np.empty((0, 0))
    columns = np.repeat(np.isin(clients, replies.clients), 2)
    return loss_distances(replies.uploads["losses"].double().numpy().reshape(-1, len(models))[:, columns])


def compare_predictions(halves: HalfModels, inputs: Tensor) -> Exchanges[NDArray[np.float64]]:
    """Return the distances `[2 m, 2 m]` of halves: Jensen-Shannon divergences of what their models predict.

    Nothing crosses: the models are at the server, and so are the `inputs` `[s, *features]`.
    """
    if not len(halves.clients):
        return np.empty((0, 0))
    outputs: Tensor = yield Outputs(halves.models, inputs)
    return js_divergences(outputs)
