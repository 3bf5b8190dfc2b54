"""FedEM: each client's data are a mixture of K distributions, with shares of its own (Marfoq et al., NeurIPS 2021).

Marfoq, Neglia, Bellet, Kameni and Vidal. https://arxiv.org/abs/2108.10252

Algorithm 1, every round:
    1. The server sends all K models.
    2. Each client finds how likely each sample comes from each component, and so its shares.  (E-step)
    3. It trains each model, its samples weighted by these, and uploads all of them.           (M-step)
    4. The server averages each model over the clients, weighted by samples.
A client predicts by the mixture of what the K models predict, by its shares.
Decisions where the paper is silent, and cost: docs/methods/fedem.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.mixture import MixtureShares, MixtureUpdate
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.k_models import cluster_first_models, draw_models, warn_of_sketches
from coterie.methods.method import UNKNOWN, Assignment, Cohort, Method, ServerView
from coterie.methods.privacy import PrivacySupport
from coterie.methods.registry import METHODS, Grid

FIRST = 0.9
"""What a client's share of its own group's component is at first, beside an equal part of the rest."""


@state("fedem")
@dataclass(frozen=True, eq=False)
class FedEMState:
    """The components `[K, P]`, and each client's shares of them `[n, K]`, 0 for who never took part."""

    models: Tensor
    shares: NDArray[np.float64]


@METHODS.add("fedem")
@dataclass(frozen=True)
class FedEM(Method[FedEMState]):
    """Each client mixes K models that all train together, by shares of its own (Marfoq et al., 2021).

    The groups in the tables are the clients with the same largest share. Per round: `m K (P b + 4)` bytes
    each way.
    """

    clusters: Annotated[int, Field(ge=1, description="number of components K"), Grid(2, 3, 4)] = 3
    init: Annotated[
        Literal["kmeans", "plain"],
        Field(description="initial models: from the groups of a local round of all, by K-means; or drawn"),
    ] = "kmeans"

    @property
    def privacy_support(self) -> PrivacySupport:
        told = "its clients tell their shares, and train several models on the same samples"
        return PrivacySupport("its clients send several models, and tell their shares", told, told)

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Warn of K-means on sketches."""
        return warn_of_sketches(server) if self.init == "kmeans" else []

    def start(self, server: ServerView) -> FedEMState:
        return FedEMState(draw_models(server, self.clusters), np.zeros((server.n, self.clusters)))

    def round(self, state: FedEMState, cohort: Cohort) -> Exchanges[FedEMState]:
        if cohort.round == 1 and self.init == "kmeans" and self.clusters > 1:
            replies, labels = yield from cluster_first_models(state.models[0], self.clusters, cohort)
            shares = state.shares.copy()
            shares[replies.clients] = FIRST * np.eye(self.clusters)[labels] + (1 - FIRST) / self.clusters
            average_groups = cohort.server.aggregation.average_groups
            return FedEMState(average_groups(replies.models, labels, state.models, replies.samples), shares)
        clients = cohort.clients
        send = {
            "models": Send.all(state.models, clients),
            "shares": Send(
                torch.from_numpy(state.shares).float(), np.where(state.shares[clients].any(1), clients, -1)
            ),
        }
        replies = yield Exchange(clients, MixtureUpdate(self.clusters), send)  # steps 1 to 3
        average, trained = cohort.server.aggregation.average, replies.uploads["models"]
        models = [average(trained[:, k], model[None], replies.samples) for k, model in enumerate(state.models)]
        shares = state.shares.copy()
        shares[replies.clients] = _read_shares(replies, self.clusters)
        return FedEMState(torch.cat(models), shares)  # step 4

    def assignment(self, state: FedEMState, server: ServerView) -> Assignment:
        return _mix(state.models, state.shares)

    def newcomer(self, state: FedEMState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers find their shares of the components as they are; nothing is trained."""
        replies: Replies = yield Exchange(clients, MixtureShares(), {"models": Send.all(state.models, clients)})
        shares = np.zeros((len(clients), self.clusters))
        shares[np.isin(clients, replies.clients)] = _read_shares(replies, self.clusters)
        return _mix(state.models, shares)

    def final_warnings(self, state: FedEMState, server: ServerView, rounds: int) -> list[str]:
        """Say so if one component has the largest share everywhere, which leaves one group."""
        groups = _mix(state.models, state.shares).groups
        found = groups[groups != UNKNOWN]
        if self.clusters == 1 or len(found) < 2 or len(np.unique(found)) > 1:
            return []
        return [f"no groups came about: one of {self.clusters} components has the largest share at all clients"]


def _mix(models: Tensor, shares: NDArray[np.float64]) -> Assignment:
    """Serve the mixtures by `shares` `[n, K]`; groups are their largest, ties to the first."""
    return Assignment(models, np.where(shares.any(1), shares.argmax(1), UNKNOWN), shares=shares)


def _read_shares(replies: Replies, clusters: int) -> NDArray[np.float64]:
    return np.array([replies.numbers.get(f"share{k}", np.empty(0)) for k in range(clusters)]).T
