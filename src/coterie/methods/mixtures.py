"""What methods share whose clients mix K models by shares of their own (FedEM, FedRC, FedSoft).

How the models and the shares begin, what clients are sent, and what comes of what they train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.mixture import MixtureShares
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.k_models import (
    begin_from_first,
    cluster_first_models,
    describe_first_clustering,
    warn_of_sketches,
)
from coterie.methods.method import UNKNOWN, Assignment, Cohort, Method, Needs, ServerView
from coterie.methods.registry import Grid

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


def component_means(models: Tensor, cohort: Cohort) -> Reduce:
    """Return that of each component that clients train `[K, P]` the mean is wanted, weighted by samples."""
    return Reduce(cohort.clients, cohort.server.samples[cohort.clients], None, len(models))


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
    return [f"no groups came about: the same one of {clusters} components has the largest share at every client"]


class HasShares(Protocol):
    """A state with components `[K, P]`, and each client's shares of them `[n, K]`, 0 for who never took part."""

    @property
    def models(self) -> Tensor: ...

    @property
    def shares(self) -> NDArray[np.float64]: ...


M = TypeVar("M", bound=HasShares)


@dataclass(frozen=True)
class MixtureMethod(Method[M]):
    """A method whose clients predict by the mixture of what K models predict, by shares of their own."""

    family = "clustered, soft"

    clusters: Annotated[int, Field(ge=1, description="number of components K"), Grid(2, 3, 4)] = 3
    init: Annotated[
        FirstComponents,
        Field(description="initial models: from the groups of a local round of all, by K-means; or drawn"),
    ] = "kmeans"

    @property
    def needs(self) -> Needs:
        return Needs(models=describe_first_clustering(self.init, self.clusters))

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Warn of K-means on sketches."""
        return warn_of_sketches(server) if self.init == "kmeans" else []

    def final_warnings(self, state: M, server: ServerView, rounds: int) -> list[str]:
        """Say so if one component has the largest share everywhere, which leaves one group."""
        return warn_of_one_component(state.shares)

    def begins_with_groups(self, cohort: Cohort) -> bool:
        """Whether this round finds the first components, and trains no mixture."""
        return cohort.round == 1 and self.init == "kmeans" and self.clusters > 1

    def assignment(self, state: M, server: ServerView) -> Assignment:
        return serve_mixtures(state.models, state.shares)

    def send_to_newcomers(self, state: M, clients: Ids) -> dict[str, Send]:
        """Return what newcomers are sent to find their shares."""
        return {"models": Send.all(state.models, clients)}

    def newcomer(self, state: M, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers find their shares of the components as they are; nothing is trained."""
        replies: Replies = yield Exchange(clients, MixtureShares(), self.send_to_newcomers(state, clients))
        none, answered = np.zeros((len(clients), self.clusters)), np.isin(clients, replies.clients)
        return serve_mixtures(state.models, update_shares(none, np.flatnonzero(answered), replies))
