"""FLUX: clients are grouped once, by moments of their samples' features (Fenoglio et al., NeurIPS 2025).

Fenoglio, Li, Barbiero, Lane, Langheinrich and Gjoreski. https://arxiv.org/abs/2511.22305

Rounds 1 to n:
    1. FedAvg trains one model for all.
Before round n + 1:
    2. Each client tells means (and deviations) of its features under that model, of all samples and of each class.
    3. The server clusters the clients by them.
Later rounds:
    4. FedAvg trains the model of each cluster, with its clients alone.
Decisions where the paper is silent, and cost: docs/methods/flux.md
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
from coterie.clients.rules.latent_moments import LatentMoments
from coterie.clients.rules.two_heads import output_shape
from coterie.grouping.affinity import pairwise_distances, quartiles
from coterie.grouping.cluster import cluster_by_distance, nearest_group
from coterie.grouping.gaps import find_groups
from coterie.methods.client_rows import replace_rows
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, LogGap, Replies, Send
from coterie.methods.k_models import ServesGroups, train_groups
from coterie.methods.method import UNKNOWN, Assignment, Cohort, Needs, ServerView
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS, Grid


@state("flux")
@dataclass(frozen=True, eq=False)
class FLUXState:
    """What the server remembers; D is the number of directions."""

    models: Tensor  # [K, P], of the clusters
    groups: NDArray[np.int64]  # [n], all 0 before the clustering; -1 for a client that missed it
    common: Tensor  # [1, P], under which features are described; [0, P] before the clustering
    moments: Tensor  # [n, 1 + C, M, D], M of the features of clients that have a cluster


@METHODS.add("flux")
@dataclass(frozen=True)
class FLUX(ServesGroups[FLUXState]):
    """FedAvg, then one clustering by moments of features, then FedAvg in each cluster (Fenoglio et al., 2025).

    Per round: down and up `m P b` bytes; once `n P b` more down, and `n M D (C + 1) b` up, M = 1 or 2.
    """

    family = "clustered, one-shot"

    after: Annotated[
        int, Field(ge=0, description="rounds of FedAvg before clients are clustered (n)"), Grid(1, 5, 10)
    ] = 5
    directions: Annotated[
        int, Field(ge=1, description="random directions of the features, as many at most as there are features (D)")
    ] = 64
    deviations: Annotated[
        bool, Field(description="compare deviations, too, not means alone"), Grid(False, True)
    ] = False
    eps: Annotated[
        float | None,
        Field(
            ge=0, description="distance up to which two clients are together (DBSCAN); without it, a gap is sought"
        ),
    ] = None

    needs = Needs(classes=True, pairs="everybody")

    privacy_support = hides_nothing(
        "its server compares single clients' features", "its clients tell what their samples' features are like"
    )

    def start(self, server: ServerView) -> FLUXState:
        initial = server.initial(0)[None]
        shape = self._rule(server).shapes(server.layout)["moments"]
        return FLUXState(initial, np.zeros(server.n, np.int64), initial[:0], torch.zeros(server.n, *shape))

    def round(self, state: FLUXState, cohort: Cohort) -> Exchanges[FLUXState]:
        server, clients = cohort.server, cohort.clients
        if not len(state.common) and cohort.round > self.after:
            state = yield from self._cluster(state, cohort)
        if len(late := clients[state.groups[clients] == UNKNOWN]):
            state = yield from self._join(state, late, server)
        models = yield from train_groups(state.models, state.groups, clients, server)  # steps 1 and 4
        return replace(state, models=models)

    def _cluster(self, state: FLUXState, cohort: Cohort) -> Exchanges[FLUXState]:
        """Cluster all clients that answer (steps 2 and 3); where nobody does, the next round asks again."""
        server = cohort.server
        replies = yield from self._describe(state.models, server.everyone, server)
        if not len(replies):
            return state
        there, moments = replies.clients, replies.uploads["moments"]
        apart = pairwise_distances(_standardise(moments, moments))
        yield Log("distance of features", quartiles(apart))
        yield LogGap("features", there, apart, "distance")
        if self.eps is None:
            labels = find_groups(-np.square(apart) / 2, server.stream("clouds", cohort.round))
        else:
            labels = cluster_by_distance(apart, self.eps)
        groups = np.full(server.n, UNKNOWN, np.int64)
        groups[there] = labels
        models = state.models.repeat(labels.max() + 1, 1)
        return FLUXState(models, groups, state.models, replace_rows(state.moments, there, moments))

    def _join(self, state: FLUXState, late: Ids, server: ServerView) -> Exchanges[FLUXState]:
        """Let clients that were not clustered tell their moments, and join the nearest cluster."""
        replies = yield from self._describe(state.common, late, server)
        groups, moments = state.groups.copy(), replies.uploads["moments"]
        groups[replies.clients] = self._nearest(state, moments)
        return replace(state, groups=groups, moments=replace_rows(state.moments, replies.clients, moments))

    def _describe(self, model: Tensor, clients: Ids, server: ServerView) -> Exchanges[Replies]:
        send = {"model": Send.same(model[0], clients)}
        replies: Replies = yield Exchange(clients, self._rule(server), send)
        return replies

    def _nearest(self, state: FLUXState, moments: Tensor) -> NDArray[np.int64]:
        """Return the cluster that is nearest to each of moments `[r, 1 + C, M, D]` on average."""
        known = np.flatnonzero(state.groups != UNKNOWN)
        theirs = state.moments[torch.from_numpy(known)]
        apart = pairwise_distances(_standardise(torch.cat([moments, theirs]), theirs))
        return nearest_group(apart[: len(moments), len(moments) :], state.groups[known])

    def _rule(self, server: ServerView) -> LatentMoments:
        return LatentMoments(min(self.directions, output_shape(server.layout)[1]), self.deviations)

    def newcomer(self, state: FLUXState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers tell their moments, and join the cluster that is nearest on average."""
        if not len(state.common):
            return Assignment(state.models, np.zeros(len(clients), np.int64))
        groups = np.full(len(clients), UNKNOWN, np.int64)
        replies = yield from self._describe(state.common, clients, server)
        groups[np.isin(clients, replies.clients)] = self._nearest(state, replies.uploads["moments"])
        return Assignment(state.models, groups)


def _standardise(moments: Tensor, among: Tensor) -> NDArray[np.float64]:
    """Return moments `[r, 1 + C, M, D]` less the means of `among`, over their deviations, as points.

    The moments of a class that a client lacks become -1: who lacks the same classes is nearer to each other.
    """
    known, given = (among != 0).any(3, keepdim=True).double(), among.double()
    count = known.sum(0).clamp(min=1)
    mean = (given * known).sum(0) / count
    deviation = (((given - mean) * known).square().sum(0) / count).sqrt()
    points = (moments.double() - mean) / torch.where(deviation > 1e-9, deviation, torch.inf)
    return torch.where((moments != 0).any(3, keepdim=True), points, -1.0).flatten(1).numpy()
