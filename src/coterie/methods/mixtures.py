"""What methods share whose clients mix K models by shares of their own (FedEM, FedRC, FedSoft).

How the models and the shares begin, what clients are sent, and what comes of what they train.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.methods.exchange import Exchanges, Ids, Replies, Send
from coterie.methods.k_models import begin_from_first, cluster_first_models
from coterie.methods.method import UNKNOWN, Assignment, Cohort
from coterie.methods.server_optimizer import Aggregator

FirstComponents = Literal["kmeans", "plain"]
"""How components start: from the clusters that a local round of all shows, or as they are drawn."""

FIRST_SHARE = 0.9
"""What a client's share of its own cluster's component is at first, beside an equal part of the rest."""


def make_first_components(models: Tensor, cohort: Cohort) -> Exchanges[tuple[Tensor, NDArray[np.float64]]]:
    """Let all clients train the first of the models `[K, P]`, and make a component of each cluster of the results.

    Returns:
        The components `[K, P]`, and shares of them `[n, K]`, 0 for who did not answer.
    """
    clusters, server = len(models), cohort.server
    replies, labels = yield from cluster_first_models(models[0], clusters, cohort)
    shares = np.zeros((server.n, clusters))
    shares[replies.clients] = FIRST_SHARE * np.eye(clusters)[labels] + (1 - FIRST_SHARE) / clusters
    begun = begin_from_first(models, labels)
    return server.aggregation.average_groups(replies.models, labels, begun, replies.samples), shares


def send_components(models: Tensor, shares: NDArray[np.float64], clients: Ids) -> dict[str, Send]:
    """Return what clients are sent: all models `[K, P]`, and its shares to each that has any `[n, K]`."""
    rows = np.where(shares[clients].any(1), clients, -1)
    return {"models": Send.all(models, clients), "shares": Send(torch.from_numpy(shares).float(), rows)}


def average_components(replies: Replies, models: Tensor, aggregation: Aggregator) -> Tensor:
    """Return the mean of each component that clients trained, weighted by samples, `[K, P]`."""
    trained = replies.uploads["models"]
    means = [aggregation.average(trained[:, k], model[None], replies.samples) for k, model in enumerate(models)]
    return torch.cat(means)


def update_shares(shares: NDArray[np.float64], at: NDArray[np.int64], replies: Replies) -> NDArray[np.float64]:
    """Return shares `[n, K]` with those that came back in the rows `at` `[r]`."""
    found = shares.copy()
    for k in range(shares.shape[1]):
        found[at, k] = replies.numbers.get(f"share{k}", np.empty(0))
    return found


def serve_mixtures(models: Tensor, shares: NDArray[np.float64]) -> Assignment:
    """Serve each client the mixture by its shares `[n, K]`; its group is its largest, ties to the first."""
    return Assignment(models, np.where(shares.any(1), shares.argmax(1), UNKNOWN), shares=shares)


def warn_of_one_component(shares: NDArray[np.float64]) -> list[str]:
    """Say so if one component has the largest share at all clients, which leaves one group."""
    clusters = shares.shape[1]
    largest = shares[shares.any(1)].argmax(1)
    if clusters == 1 or len(largest) < 2 or len(np.unique(largest)) > 1:
        return []
    return [f"no groups came about: one of {clusters} components has the largest share at all clients"]
