"""FedGroup: clients are grouped once, by the directions in which they first train (Duan et al., ISPA 2021).

Duan, Liu, Ji, Liu, Liang, Chen and Tan. https://arxiv.org/abs/2010.06870. FlexCFL (TPDS 2022) lets data change too.
https://arxiv.org/abs/2108.09749

Before the first round:
    1. Some clients train the initial model; their updates have K leading directions.
    2. K-means groups them by the cosines of their updates with these directions.    (EDC)
       A group begins with what its clients trained on average, and remembers their mean update.
Every round:
    3. A client without a group trains the initial model, and joins the group whose remembered update is most alike.
    4. Each group runs FedAvg, with a pull of strength mu to its model.    (with mu, FedGrouProx)
    5. The groups' models move a little towards each other.    (inter-group aggregation)
Decisions where the paper is silent, and cost: docs/methods/fedgroup.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.local_update import LocalUpdate
from coterie.grouping.affinity import cosines, decomposed_cosines
from coterie.grouping.aggregate import group_means
from coterie.grouping.cluster import kmeans
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.k_models import RESTARTS, ServesGroups, train_groups
from coterie.methods.method import UNKNOWN, Assignment, Cohort, Needs, ServerView
from coterie.methods.privacy import UNTRIED, PrivacySupport
from coterie.methods.registry import METHODS, Grid


@state("fedgroup")
@dataclass(frozen=True, eq=False)
class FedGroupState:
    """What the server remembers; T counts the trainable parameters."""

    models: Tensor  # [K, P], of the groups
    updates: Tensor  # [K, T], what the clients that made a group first learnt, on average
    groups: NDArray[np.int64]  # [n], -1 for a client without one


@METHODS.add("fedgroup")
@dataclass(frozen=True)
class FedGroup(ServesGroups[FedGroupState]):
    """Groups by the directions of clients' first updates, found once; FedAvg in each (Duan et al., 2021).

    Per round: down and up `m P b` bytes; `P b` more each way for a client that is given its group.
    """

    family = "clustered, one-shot"

    clusters: Annotated[int, Field(ge=1, description="number of groups K (m)"), Grid(2, 3, 4)] = 4
    pool: Annotated[int, Field(ge=1, description="clients of which groups are made, for each group (alpha)")] = 20
    first_epochs: Annotated[int, Field(ge=1, description="passes over own data in a client's first training")] = 1
    mu: Annotated[float, Field(ge=0, description="strength of the pull to the group's model"), Grid(0.0, 0.1)] = 0.0
    group_lr: Annotated[
        float, Field(ge=0, description="weight of another group's model over its length (eta_G)"), Grid(0.0, 0.1)
    ] = 0.0

    needs = Needs(models="its server groups clients by their first updates")

    privacy_support = PrivacySupport("its server clusters single clients' updates", UNTRIED, UNTRIED)

    def start(self, server: ServerView) -> FedGroupState:
        rows = server.initial(0).repeat(self.clusters, 1)
        one = 0 if self.clusters == 1 else UNKNOWN
        return FedGroupState(rows, server.layout.trainable.take(rows) * 0, np.full(server.n, one, np.int64))

    def round(self, state: FedGroupState, cohort: Cohort) -> Exchanges[FedGroupState]:
        server, clients = cohort.server, cohort.clients
        if (state.groups == UNKNOWN).all():
            state = yield from self._make_groups(state, cohort)
        if len(late := clients[state.groups[clients] == UNKNOWN]) and (state.groups != UNKNOWN).any():
            groups = state.groups.copy()
            groups[late] = yield from self._join(state, late, server)  # step 3
            state = replace(state, groups=groups)
        models = yield from train_groups(state.models, state.groups, clients, server, self.mu)  # step 4
        return replace(state, models=self._approach(models, state.groups, server))  # step 5

    def _make_groups(self, state: FedGroupState, cohort: Cohort) -> Exchanges[FedGroupState]:
        """Group some clients (steps 1 and 2); where none of them answers, the next round asks again."""
        server = cohort.server
        drawn = server.stream("pool", cohort.round).permutation(server.n)[: self.pool * self.clusters]
        replies, updates = yield from self._train_first(np.sort(drawn), server)
        if not len(replies):
            return state
        towards = torch.from_numpy(decomposed_cosines(updates, self.clusters))
        labels = kmeans(towards, self.clusters, RESTARTS, server.stream("kmeans", cohort.round))
        groups = state.groups.copy()
        groups[replies.clients] = labels
        models = server.aggregation.average_groups(replies.models, labels, state.models)
        return FedGroupState(models, group_means(updates, labels, state.updates), groups)

    def _join(self, state: FedGroupState, clients: Ids, server: ServerView) -> Exchanges[NDArray[np.int64]]:
        """Return the groups that `clients` `[m]` join, -1 for one that does not answer."""
        replies, updates = yield from self._train_first(clients, server)
        alike = cosines(torch.cat([updates, state.updates]))[: len(updates), len(updates) :]
        alike[:, np.setdiff1d(np.arange(self.clusters), state.groups)] = -2.0  # nobody is there
        groups = np.full(len(clients), UNKNOWN, np.int64)
        groups[np.isin(clients, replies.clients)] = alike.argmax(1)
        return groups

    def _train_first(self, clients: Ids, server: ServerView) -> Exchanges[tuple[Replies, Tensor]]:
        """Let clients train the initial model; return their replies, and how each model moved `[r, T]`."""
        initial = server.initial(0)
        send = {"model": Send.same(initial, clients)}
        replies: Replies = yield Exchange(clients, LocalUpdate(self.first_epochs), send)
        return replies, server.layout.trainable.take(replies.models - initial)

    def _approach(self, models: Tensor, groups: NDArray[np.int64], server: ServerView) -> Tensor:
        """Return models `[K, P]` when each that has clients took in the others at weights `group_lr / ||w||`."""
        there = np.unique(groups[groups != UNKNOWN])
        if not self.group_lr or len(there) < 2:
            return models
        rows = models[torch.from_numpy(there)]
        weights = np.tile(self.group_lr / torch.linalg.vector_norm(rows.double(), dim=1).numpy(), (len(rows), 1))
        np.fill_diagonal(weights, 1.0)
        mixed = server.aggregation.mix(weights, rows)
        return models.index_copy(0, torch.from_numpy(there), mixed)

    def newcomer(self, state: FedGroupState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers join as late clients do."""
        groups = np.full(len(clients), UNKNOWN, np.int64)
        if (state.groups != UNKNOWN).any():
            groups = yield from self._join(state, clients, server)
        return Assignment(state.models, groups)
