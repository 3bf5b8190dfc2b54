"""FedSoft: own models, pulled to K cluster models by shares of the samples (Ruan and Joe-Wong, AAAI 2022).

https://arxiv.org/abs/2112.06053

Algorithm 1, every round:
    1. The server sends all K cluster models c_k.
    2. In every tau-th round each client finds for which share u_ik of its samples c_k has the smallest loss.
    3. It trains its own model under pulls of strength lam u_ik to each c_k, keeps it, and uploads it.
    4. The server averages the uploads for each cluster, client i with the weight u_ik n_i.
A client is evaluated with its own model.
Decisions where the paper is silent, and cost: docs/methods/fedsoft.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.soft_clusters import SampleShares, SoftClusterUpdate
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.k_models import draw_models
from coterie.methods.method import Assignment, Cohort, Needs, ServerView
from coterie.methods.mixtures import (
    MixtureMethod,
    make_first_components,
    serve_mixtures,
    update_shares,
)
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS, Grid


@state("fedsoft")
@dataclass(frozen=True, eq=False)
class FedSoftState:
    """The cluster models `[K, P]`, and each client's shares of them `[n, K]`, 0 for who never took part."""

    models: Tensor
    shares: NDArray[np.float64]


@METHODS.add("fedsoft")
@dataclass(frozen=True)
class FedSoft(MixtureMethod[FedSoftState]):
    """Own models under pulls to K cluster models, by shares of the samples (Ruan and Joe-Wong, 2022).

    The groups in the tables are the clients with the same largest share. Per round: down `m K P b`, up
    `m (P b + 4 K)` bytes; shares go down too where they are not found anew.
    """

    clusters: Annotated[int, Field(ge=1, description="number of clusters K"), Grid(2, 3, 4)] = 4
    lam: Annotated[
        float, Field(ge=0, description="strength of the pull to the cluster models"), Grid(0.01, 0.1, 1.0)
    ] = 0.1
    every: Annotated[int, Field(ge=1, description="rounds from one estimate of the shares to the next (tau)")] = 2

    own_step = "each of its cluster models is a mixture of single clients' models"

    needs = Needs(models="its server counts each model in every group, by shares that are no whole numbers")

    privacy_support = hides_nothing(
        "its server receives single clients' shares, and mixes their models by them",
        "its clients report for which share of their samples each model is the best",
    )

    def start(self, server: ServerView) -> FedSoftState:
        return FedSoftState(draw_models(server, self.clusters), np.zeros((server.n, self.clusters)))

    def round(self, state: FedSoftState, cohort: Cohort) -> Exchanges[FedSoftState]:
        models, shares, clients = state.models, state.shares, cohort.clients
        if self.begins_with_groups(cohort):
            return FedSoftState(*(yield from make_first_components(models, cohort)))
        known = shares[clients].any(1) if (cohort.round - 1) % self.every else np.zeros(len(clients), np.bool_)
        told = np.where(known, clients, -1)
        send = {
            "models": Send.all(models, clients),
            "shares": Send(torch.from_numpy(shares).float(), told),
        }  # step 1
        replies: Replies = yield Exchange(clients, SoftClusterUpdate(self.lam), send)  # steps 2 and 3
        if not len(replies):
            return state
        shares = update_shares(shares, replies.clients, replies)
        weights = shares[replies.clients].T * replies.samples
        means = cohort.server.aggregation.mix(weights, replies.models)  # step 4
        return FedSoftState(torch.where(torch.from_numpy(weights.any(1))[:, None], means, models), shares)

    def assignment(self, state: FedSoftState, server: ServerView) -> Assignment:
        groups = serve_mixtures(state.models, state.shares).groups
        return Assignment(state.models, groups, np.zeros(server.n, np.int64), own="model")

    def newcomer(self, state: FedSoftState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers find their shares; each starts from the mean of the cluster models by them."""
        replies: Replies = yield Exchange(clients, SampleShares(), {"models": Send.all(state.models, clients)})
        rows = np.flatnonzero(np.isin(clients, replies.clients))
        shares = update_shares(np.zeros((len(clients), self.clusters)), rows, replies)
        groups = serve_mixtures(state.models, shares).groups
        own = np.full(len(clients), -1)
        own[rows] = self.clusters + np.arange(len(rows))
        means = server.aggregation.mix(shares[rows], state.models)
        return Assignment(torch.cat([state.models, means]), groups, own)
