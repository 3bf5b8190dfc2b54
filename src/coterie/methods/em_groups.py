"""EM groups: each client is of one of K groups, and nobody is sure of which; annealed stochastic EM.

Celeux and Diebolt, The SEM algorithm, Computational Statistics Quarterly 2, 1985; Ueda and Nakano, Deterministic
annealing EM algorithm, Neural Networks 11, 1998, https://doi.org/10.1016/S0893-6080(97)00133-0.

Round 1: all clients train one model, and K-means on what comes of it makes the first K.
Every later round:
    1. The server sends all K models.
    2. Each client finds how likely all of its samples come from each: its shares.                   (E-step)
    3. It draws a group by these, the more evenly the hotter it still is, and trains that model.      (S-step)
    4. The server averages each model over the clients that drew it, weighted by samples.            (M-step)
A client predicts by the mixture of what the K models predict, by its shares.
Decisions, and cost: docs/methods/em-groups.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.drawn import DrawnUpdate, GroupShares
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, Replies, Send
from coterie.methods.k_models import draw_models, read_choices
from coterie.methods.method import Assignment, Cohort, ServerView
from coterie.methods.mixtures import MixtureMethod, make_first_components, serve_mixtures, update_shares
from coterie.methods.privacy import PrivacySupport
from coterie.methods.registry import METHODS, Grid


@state("em-groups")
@dataclass(frozen=True, eq=False)
class EMGroupsState:
    """The models of the groups `[K, P]`, and each client's shares of them `[n, K]`, 0 for who never took part."""

    models: Tensor
    shares: NDArray[np.float64]


@METHODS.add("em-groups")
@dataclass(frozen=True)
class EMGroups(MixtureMethod[EMGroupsState]):
    """K groups, found by annealed stochastic EM; each client mixes their models by how likely it is in each.

    Unlike FedEM's, shares are of a client and not of its samples. Per round: down `m K P b`, up
    `m (P b + 4 K + 4)` bytes; the first round with `kmeans` `n P b` each way.
    """

    clusters: Annotated[int, Field(ge=1, description="number of groups K"), Grid(2, 5)] = 5
    heat: Annotated[
        float,
        Field(
            ge=1,
            description="temperature: log-likelihoods are divided by it when groups are drawn at first; 1 does "
            "not anneal",
        ),
    ] = 2.0
    cooling: Annotated[int, Field(ge=1, description="rounds in which the temperature falls to 1")] = 8

    @property
    def privacy_support(self) -> PrivacySupport:
        told = "its clients report their shares of the groups"
        return PrivacySupport("its first models are made from single clients' models, and " + told, told, told)

    def start(self, server: ServerView) -> EMGroupsState:
        return EMGroupsState(draw_models(server, self.clusters), np.zeros((server.n, self.clusters)))

    def round(self, state: EMGroupsState, cohort: Cohort) -> Exchanges[EMGroupsState]:
        models, clients, samples = state.models, cohort.clients, cohort.server.samples[cohort.clients]
        if self.begins_with_groups(cohort):
            return EMGroupsState(*(yield from make_first_components(models, cohort)))
        heat = self.heat ** max(0.0, 1 - (cohort.round - 1) / self.cooling)
        settings = {"heat": np.full(len(clients), heat)}
        send, means = {"models": Send.all(models, clients)}, Reduce.by_choice(clients, self.clusters, samples)
        replies: Replies = yield Exchange(
            clients, DrawnUpdate(), send, settings, reduce={"model": means}
        )  # steps 1 to 3
        drawn = read_choices(replies)
        if len(replies):
            told = update_shares(state.shares, replies.clients, replies)[replies.clients]
            yield Log("draws of another group than the likeliest", float((drawn != told.argmax(1)).mean()))
        models = cohort.server.aggregation.centres(replies, "model", means, models)  # step 4
        return EMGroupsState(models, update_shares(state.shares, replies.clients, replies))

    def newcomer(self, state: EMGroupsState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers find their shares of the groups as they are; nothing is trained."""
        replies: Replies = yield Exchange(clients, GroupShares(), self.send_to_newcomers(state, clients))
        none, answered = np.zeros((len(clients), self.clusters)), np.isin(clients, replies.clients)
        return serve_mixtures(state.models, update_shares(none, np.flatnonzero(answered), replies))
