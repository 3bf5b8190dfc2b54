"""Robust-TKM: trimmed K-means once, then trimmed means inside each cluster (Ghosh et al., 2019).

https://arxiv.org/abs/1906.06629. The trimmed mean is that of Yin et al., ICML 2018.

Round 1: all clients train alone to near convergence; trimmed K-means on the results groups them for good.
Every later round:
    1. Each client trains the model of its cluster and uploads it.
    2. A cluster's model becomes the coordinate-wise trimmed mean of the uploads.
A client that missed round 1, or is new, trains alone and joins the nearest centre.
Decisions where the paper is silent, and cost: docs/methods/robust-tkm.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.local_update import LocalUpdate
from coterie.grouping.affinity import squared_distances
from coterie.grouping.aggregate import trimmed_means
from coterie.grouping.cluster import trimmed_kmeans
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.k_models import ServesGroups
from coterie.methods.method import UNKNOWN, Assignment, Cohort, Needs, ServerView
from coterie.methods.privacy import UNTRIED, PrivacySupport
from coterie.methods.registry import METHODS, Grid
from coterie.models.layout import Part


@state("robust-tkm")
@dataclass(frozen=True, eq=False)
class RobustTKMState:
    """What the server remembers."""

    models: Tensor  # [K, P], of the clusters
    centres: Tensor  # [K, P], of what their members had trained alone
    groups: NDArray[np.int64]  # [n], -1 before a client has uploaded what it trained alone


@METHODS.add("robust-tkm")
@dataclass(frozen=True)
class RobustTKM(ServesGroups[RobustTKMState]):
    """One-shot clustering that survives Byzantine clients (Ghosh et al., 2019).

    Without trimming this is one-shot K-means and FedAvg in each cluster. Per round: down and up `m P b` bytes;
    round 1 `n P b` each way.
    """

    family = "clustered, one-shot"

    clusters: Annotated[int, Field(ge=1, description="number of clusters K"), Grid(2, 3, 4)] = 4
    local_epochs: Annotated[int, Field(ge=1, description="passes over own data before the only upload")] = 20
    kmeans_trim: Annotated[
        float,
        Field(ge=0, lt=0.5, description="share of members left out on each side of a centre's coordinates"),
        Grid(0.0, 0.05, 0.1),
    ] = 0.05
    iterations: Annotated[int, Field(ge=1, description="steps of a K-means run")] = 8
    restarts: Annotated[int, Field(ge=1, le=10_000, description="runs of K-means, of which the best is taken")] = 20
    trim: Annotated[
        float,
        Field(
            ge=0, lt=0.5, description="share left out on each side of a cluster's mean; at least the Byzantine one"
        ),
        Grid(0.0, 0.1, 0.2),
    ] = 0.2
    signal: Annotated[Literal["all", "last_kernel"], Field(description="the weights that K-means clusters")] = "all"

    own_aggregation = "it has a trimmed mean of its own (trim, kmeans_trim)"

    needs = Needs(models="its server compares single clients' models")

    privacy_support = PrivacySupport(
        "its server clusters single clients' models",
        UNTRIED,
        "its clients train longer at first than the privacy accounting assumes",
    )

    def start(self, server: ServerView) -> RobustTKMState:
        rows = server.initial(0).repeat(self.clusters, 1)
        return RobustTKMState(rows, rows, np.full(server.n, UNKNOWN, np.int64))

    def round(self, state: RobustTKMState, cohort: Cohort) -> Exchanges[RobustTKMState]:
        if (state.groups == UNKNOWN).all():
            return (yield from self._cluster_once(state, cohort))
        late = state.groups[cohort.clients] == UNKNOWN
        known = cohort.clients[~late]
        send = {"model": Send(state.models, state.groups[known])}
        replies: Replies = yield Exchange(known, LocalUpdate(), send)
        models = trimmed_means(replies.models, state.groups[replies.clients], state.models, self.trim)
        state = replace(state, models=models)
        if late.any():
            joined, groups = yield from self._join(state, cohort.clients[late], cohort.server)
            everyone = state.groups.copy()
            everyone[joined] = groups
            state = replace(state, groups=everyone)
        return state

    def newcomer(self, state: RobustTKMState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers train alone and join the nearest centre."""
        groups = np.full(len(clients), UNKNOWN, np.int64)
        if (state.groups != UNKNOWN).any():
            joined, found = yield from self._join(state, clients, server)
            groups[np.isin(clients, joined)] = found
        return Assignment(state.models, groups)

    def _cluster_once(self, state: RobustTKMState, cohort: Cohort) -> Exchanges[RobustTKMState]:
        """Let all clients train alone, and cluster the results."""
        server = cohort.server
        replies = yield from self._train_alone(server.everyone, server)
        if not len(replies):
            return state
        seen, rng = self.compared_part(server).take(replies.models), server.stream("kmeans", cohort.round)
        labels = trimmed_kmeans(seen, self.clusters, self.kmeans_trim, self.restarts, self.iterations, rng)
        groups = state.groups.copy()
        groups[replies.clients] = labels
        return RobustTKMState(
            trimmed_means(replies.models, labels, state.models, self.trim),
            trimmed_means(replies.models, labels, state.centres, self.kmeans_trim),
            groups,
        )

    def _join(
        self, state: RobustTKMState, clients: Ids, server: ServerView
    ) -> Exchanges[tuple[Ids, NDArray[np.int64]]]:
        """Return the clients that answered, and the cluster of the nearest centre of each; ties to the first."""
        replies = yield from self._train_alone(clients, server)
        there = np.unique(state.groups[state.groups != UNKNOWN])
        part = self.compared_part(server)
        distances = squared_distances(part.take(replies.models), part.take(state.centres[torch.from_numpy(there)]))
        return replies.clients, there[distances.argmin(1)]

    def _train_alone(self, clients: Ids, server: ServerView) -> Exchanges[Replies]:
        send = {"model": Send.same(server.initial(0), clients)}
        replies: Replies = yield Exchange(clients, LocalUpdate(self.local_epochs), send)
        return replies

    def compared_part(self, server: ServerView) -> Part:
        """Return the parameters that distances see; never the buffers."""
        return server.layout.trainable if self.signal == "all" else server.layout.output_kernel
