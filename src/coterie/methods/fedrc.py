"""FedRC: a cluster is clients with one concept, whatever their labels and inputs are like (Guo et al., ICML 2024).

Guo, Tang and Lin. https://arxiv.org/abs/2301.12379

Algorithm 1, every round:
    1. The server sends all K models, and how often each class is among the samples of each cluster.
    2. Each client finds how likely each of its samples is of each cluster, exp(-loss) over the class's share there,
       and with that its own shares of the clusters.                                                (Eq. 6 and 7)
    3. It trains each model, its samples weighted by these, and uploads all of them, with how often each class is
       among its samples of each cluster.                                                           (Eq. 8)
    4. The server averages each model over the clients, weighted by samples, and adds the classes up.
A client predicts by the mixture of what the K models predict, by its shares.
Decisions where the paper is silent, and cost: docs/methods/fedrc.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.mixture import ConceptUpdate
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.k_models import draw_models
from coterie.methods.method import Cohort, Needs, ServerView
from coterie.methods.mixtures import (
    MixtureMethod,
    component_means,
    make_first_components,
    send_components,
    update_shares,
)
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS

RAREST = 1e-8
"""How many samples of a class a cluster has at least, so that no share is 0."""


@state("fedrc")
@dataclass(frozen=True, eq=False)
class FedRCState:
    """What the server remembers."""

    models: Tensor  # [K, P], of the clusters
    shares: NDArray[np.float64]  # [n, K], of clients; 0 for who never took part
    classes: Tensor  # [K, C], of each cluster's samples, rows that sum to 1


@METHODS.add("fedrc")
@dataclass(frozen=True)
class FedRC(MixtureMethod[FedRCState]):
    """Clients with one concept are a cluster, whatever their labels and inputs are like (Guo et al., 2024).

    The groups in the tables are the clients with the same largest share. Per round: `m K (P b + 4 + 4 C)` bytes
    each way, of C classes.
    """

    @property
    def needs(self) -> Needs:
        return replace(super().needs, classes=True)

    privacy_support = hides_nothing(
        "its clients send several models, and report their shares and classes",
        "its clients report their shares and their classes, and train several models on the same samples",
    )

    def start(self, server: ServerView) -> FedRCState:
        equal = torch.full((self.clusters, server.classes), 1 / server.classes)
        return FedRCState(draw_models(server, self.clusters), np.zeros((server.n, self.clusters)), equal)

    def round(self, state: FedRCState, cohort: Cohort) -> Exchanges[FedRCState]:
        models, shares, clients = state.models, state.shares, cohort.clients
        if self.begins_with_groups(cohort):
            return FedRCState(*(yield from make_first_components(models, cohort)), state.classes)
        send = send_components(models, shares, clients) | {"classes": Send.all(state.classes, clients)}
        rule, means = ConceptUpdate(self.clusters, cohort.server.classes), component_means(models, cohort)
        replies: Replies = yield Exchange(clients, rule, send, reduce={"models": means})  # steps 1 to 3
        if not len(replies):
            return state
        counts = replies.uploads["counts"].double().sum(0).clamp_min(RAREST)
        return FedRCState(  # step 4
            cohort.server.aggregation.centres(replies, "models", means, models),
            update_shares(shares, replies.clients, replies),
            (counts / counts.sum(1, keepdim=True)).float(),
        )

    def send_to_newcomers(self, state: FedRCState, clients: Ids) -> dict[str, Send]:
        return super().send_to_newcomers(state, clients) | {"classes": Send.all(state.classes, clients)}
