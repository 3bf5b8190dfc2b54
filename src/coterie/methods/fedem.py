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

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.mixture import MixtureUpdate
from coterie.methods.exchange import Exchange, Exchanges, Replies
from coterie.methods.k_models import draw_models
from coterie.methods.method import Cohort, ServerView
from coterie.methods.mixtures import (
    MixtureMethod,
    component_means,
    make_first_components,
    send_components,
    update_shares,
)
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS


@state("fedem")
@dataclass(frozen=True, eq=False)
class FedEMState:
    """The components `[K, P]`, and each client's shares of them `[n, K]`, 0 for who never took part."""

    models: Tensor
    shares: NDArray[np.float64]


@METHODS.add("fedem")
@dataclass(frozen=True)
class FedEM(MixtureMethod[FedEMState]):
    """Each client mixes K models that all train together, by shares of its own (Marfoq et al., 2021).

    The groups in the tables are the clients with the same largest share. Per round: `m K (P b + 4)` bytes each
    way.
    """

    privacy_support = hides_nothing(
        "its clients send several models, and report their shares",
        "its clients report their shares, and train several models on the same samples",
    )

    def start(self, server: ServerView) -> FedEMState:
        return FedEMState(draw_models(server, self.clusters), np.zeros((server.n, self.clusters)))

    def round(self, state: FedEMState, cohort: Cohort) -> Exchanges[FedEMState]:
        models, shares, clients = state.models, state.shares, cohort.clients
        if self.begins_with_groups(cohort):
            return FedEMState(*(yield from make_first_components(models, cohort)))
        send, means = send_components(models, shares, clients), component_means(models, cohort)
        rule = MixtureUpdate(self.clusters)
        replies: Replies = yield Exchange(clients, rule, send, reduce={"models": means})  # steps 1 to 3
        models = cohort.server.aggregation.centres(replies, "models", means, models)  # step 4
        return FedEMState(models, update_shares(shares, replies.clients, replies))
