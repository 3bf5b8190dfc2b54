"""CFL-GP: clients are grouped by what several models learn from them, over rounds (Kim et al., ICML 2024).

Kim, Kim and de Veciana. https://proceedings.mlr.press/v235/kim24p.html

Every P-th round, up to some round:
    1. The server sends one of its K models to all clients, the next one each time. They train it.
    2. A client's profile holds its mean update of each of the K models.
    3. Spectral clustering of the profiles: K-means on their K leading singular directions.
       Clusters are numbered so that as many clients as possible stay where they were.
    4. A client whose cluster's model is another one trains that too.
    5. The server averages each cluster's models.
Other rounds:
    6. Each client trains its cluster's model, and the server averages each cluster.
Decisions where the paper is silent, and cost: docs/methods/cfl-gp.md
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
from coterie.grouping.affinity import singular_coordinates
from coterie.grouping.cluster import kmeans
from coterie.grouping.labels import match_labels
from coterie.methods.exchange import Exchange, Exchanges, Log, Replies, Send
from coterie.methods.k_models import RESTARTS, ServesGroups, place_by_loss, train_groups
from coterie.methods.method import UNKNOWN, Cohort, Needs, ServerView
from coterie.methods.privacy import UNTRIED, PrivacySupport
from coterie.methods.registry import METHODS, Grid


@state("cfl-gp")
@dataclass(frozen=True, eq=False)
class CFLGPState:
    """What the server remembers; T counts the trainable parameters."""

    models: Tensor  # [K, P], of the clusters
    profiles: Tensor  # [n, K, T], a client's mean update of each model; 0 where there is none
    visits: NDArray[np.int64]  # [n, K], updates in each mean
    groups: NDArray[np.int64]  # [n], -1 for a client without a profile


@METHODS.add("cfl-gp")
@dataclass(frozen=True)
class CFLGP(ServesGroups[CFLGPState]):
    """Groups by clients' updates of several models, gathered round by round (Kim et al., 2024).

    Per round: down and up `m P b` bytes; of all clients when they are grouped, and up to `n P b` more each way.
    """

    family = "clustered, hard"

    clusters: Annotated[int, Field(ge=1, description="number of clusters K"), Grid(2, 3, 4)] = 4
    every: Annotated[int, Field(ge=1, description="rounds from one grouping to the next (P)"), Grid(1, 2, 4)] = 2
    until: Annotated[int, Field(ge=1, description="round after which clients keep their clusters")] = 10

    needs = Needs(models="its server groups clients by their updates", pairs="everybody")

    privacy_support = PrivacySupport("its server clusters single clients' updates", UNTRIED, UNTRIED)

    def start(self, server: ServerView) -> CFLGPState:
        n, k = server.n, self.clusters
        profiles = torch.zeros(n, k, server.layout.trainable.size if k > 1 else 0)
        groups = np.full(n, UNKNOWN if k > 1 else 0, np.int64)
        return CFLGPState(server.initial(0).repeat(k, 1), profiles, np.zeros((n, k), np.int64), groups)

    def round(self, state: CFLGPState, cohort: Cohort) -> Exchanges[CFLGPState]:
        clients, server = cohort.clients, cohort.server
        turn, rounds_since = divmod(cohort.round - 1, self.every)
        if self.clusters > 1 and rounds_since == 0 and cohort.round <= self.until:
            return (yield from self._regroup(state, turn % self.clusters, cohort))
        groups = yield from place_by_loss(state.models, state.groups, clients)
        models = yield from train_groups(state.models, groups, clients, server, weights="uniform")  # step 6
        return replace(state, models=models, groups=groups)

    def _regroup(self, state: CFLGPState, which: int, cohort: Cohort) -> Exchanges[CFLGPState]:
        """Play a round in which all clients train model `which` and are grouped anew (steps 1 to 5)."""
        server, everyone = cohort.server, cohort.server.everyone
        shared = state.models[which]
        replies: Replies = yield Exchange(everyone, LocalUpdate(), {"model": Send.same(shared, everyone)})
        if not len(replies):
            return state
        state = self._add_updates(state, which, replies, server.layout.trainable.take(replies.models - shared))
        groups = self._cluster(state, server.stream("kmeans", cohort.round))
        yield Log("clients that moved", float((groups != state.groups).sum()))
        rows, trained = groups[replies.clients], replies.models.clone()
        elsewhere = (state.models[torch.from_numpy(rows)] != shared).any(1).numpy()
        others, rows[elsewhere] = replies.clients[elsewhere], UNKNOWN
        more: Replies = yield Exchange(
            others, LocalUpdate(), {"model": Send(state.models, groups[others])}
        )  # step 4
        at = np.searchsorted(replies.clients, more.clients)
        trained[torch.from_numpy(at)], rows[at] = more.models, groups[more.clients]
        return replace(state, models=server.aggregation.average_groups(trained, rows, state.models), groups=groups)

    def _add_updates(self, state: CFLGPState, which: int, replies: Replies, updates: Tensor) -> CFLGPState:
        """Take updates `[r, T]` of model `which` into the clients' means (step 2)."""
        profiles, visits, at = state.profiles.clone(), state.visits.copy(), torch.from_numpy(replies.clients)
        visits[replies.clients, which] += 1
        share = torch.from_numpy(1 / visits[replies.clients, which]).float()[:, None]
        profiles[at, which] += share * (updates - profiles[at, which])
        return replace(state, profiles=profiles, visits=visits)

    def _cluster(self, state: CFLGPState, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the cluster of each client `[n]` that has a profile (step 3)."""
        known = np.flatnonzero(state.visits.any(1))
        seen = torch.from_numpy(state.visits[known] > 0)[..., None]
        profiles = state.profiles[torch.from_numpy(known)]
        # The update of a model that a client missed is taken to be the mean: it speaks for no cluster.
        profiles = torch.where(seen, profiles, profiles.sum(0) / seen.sum(0).clamp(min=1))
        points = torch.from_numpy(singular_coordinates(profiles.flatten(1), self.clusters))
        groups = state.groups.copy()
        groups[known] = match_labels(kmeans(points, self.clusters, RESTARTS, rng), state.groups[known])
        return groups
