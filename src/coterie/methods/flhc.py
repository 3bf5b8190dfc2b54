"""FL+HC: FedAvg, then once a hierarchical clustering of the clients' updates (Briggs, Fan and Andras, IJCNN 2020).

https://arxiv.org/abs/2004.11791

Rounds 1 to n:
    1. FedAvg trains one model W for all.
Round n + 1:
    2. All clients train W, and upload what they trained.
    3. The server clusters the updates w_i - W by agglomerative clustering, cut at a distance.
Later rounds:
    4. FedAvg trains the model of each cluster, with its clients alone.
Decisions where the paper is silent, and cost: docs/methods/flhc.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.local_update import LocalUpdate
from coterie.errors import count_of
from coterie.grouping.affinity import cosines, model_distances, pairwise_distances, quartiles
from coterie.grouping.cluster import Linkage, cut_dendrogram, dendrogram
from coterie.grouping.gaps import find_groups
from coterie.methods.exchange import Exchange, Exchanges, Log, LogGap, Replies, Send
from coterie.methods.k_models import ServesGroups, place_by_loss, train_groups
from coterie.methods.method import UNKNOWN, Cohort, Needs, ServerView
from coterie.methods.privacy import UNTRIED, PrivacySupport
from coterie.methods.registry import METHODS, Grid


@state("flhc")
@dataclass(frozen=True, eq=False)
class FLHCState:
    """What the server remembers."""

    models: Tensor  # [K, P], of the clusters
    groups: NDArray[np.int64]  # [n], all 0 before the clustering; -1 for a client that missed it
    clustered: bool
    distances: tuple[float, float]  # the least and the greatest between two clients at the clustering


@METHODS.add("flhc")
@dataclass(frozen=True)
class FLHC(ServesGroups[FLHCState]):
    """FedAvg, then one hierarchical clustering of all updates, then FedAvg in each cluster (Briggs et al., 2020).

    Per round: down and up `m P b` bytes; `n P b` in the round of the clustering.
    """

    family = "clustered, hierarchical"

    after: Annotated[
        int, Field(ge=0, description="rounds of FedAvg before clients are clustered (n)"), Grid(1, 5, 10)
    ] = 5
    distance: Annotated[
        Literal["l1", "l2", "cosine"], Field(description="between the updates of two clients"), Grid("l2", "cosine")
    ] = "l2"
    linkage: Annotated[Linkage, Field(description="of two clusters, with a threshold")] = "average"
    threshold: Annotated[
        float | None,
        Field(ge=0, description="distance up to which clusters merge; without it, a gap is sought"),
    ] = None

    needs = Needs(models="its server groups clients by their updates", pairs="everybody")

    privacy_support = PrivacySupport("its server clusters single clients' updates", UNTRIED, UNTRIED)

    def start(self, server: ServerView) -> FLHCState:
        return FLHCState(server.initial(0)[None], np.zeros(server.n, np.int64), False, (0.0, 0.0))

    def round(self, state: FLHCState, cohort: Cohort) -> Exchanges[FLHCState]:
        clients, server = cohort.clients, cohort.server
        if not state.clustered and cohort.round > self.after:
            return (yield from self._cluster(state, cohort))
        groups = yield from place_by_loss(state.models, state.groups, clients)
        models = yield from train_groups(state.models, groups, clients, server)  # steps 1 and 4
        return replace(state, models=models, groups=groups)

    def _cluster(self, state: FLHCState, cohort: Cohort) -> Exchanges[FLHCState]:
        """Cluster all clients that answer (steps 2 and 3); where nobody does, the next round asks again."""
        server, everyone = cohort.server, cohort.server.everyone
        replies: Replies = yield Exchange(everyone, LocalUpdate(), {"model": Send.same(state.models[0], everyone)})
        if not len(replies):
            return state
        apart = self._distances(server.layout.trainable.take(replies.models - state.models))
        yield Log("distance", quartiles(apart))
        yield LogGap("updates", replies.clients, apart, "distance")
        if self.threshold is None:
            products = -apart if self.distance == "cosine" else -np.square(apart) / 2
            labels = find_groups(products, server.stream("clouds", cohort.round))
        elif len(apart) > 1:
            labels = cut_dendrogram(dendrogram(apart, self.linkage), self.threshold)
        else:
            labels = np.zeros(1, np.int64)
        groups = np.full(server.n, UNKNOWN, np.int64)
        groups[replies.clients] = labels
        models = state.models.repeat(labels.max() + 1, 1)
        models = server.aggregation.average_groups(replies.models, labels, models, replies.samples)
        pairs = apart[np.triu_indices(len(apart), 1)]
        ends = (float(pairs.min()), float(pairs.max())) if len(pairs) else (0.0, 0.0)
        return FLHCState(models, groups, True, ends)

    def _distances(self, updates: Tensor) -> NDArray[np.float64]:
        """Return how far apart the updates `[r, T]` are, `[r, r]`."""
        if self.distance == "l2":
            return model_distances(updates)
        if self.distance == "l1":
            return pairwise_distances(updates.double().numpy(), "cityblock")
        apart = 1 - cosines(updates)
        np.fill_diagonal(apart, 0.0)
        return apart

    def final_warnings(self, state: FLHCState, server: ServerView, rounds: int) -> list[str]:
        """Say that clients were never clustered, or are one group, and which setting would have divided them."""
        if not state.clustered:
            return [
                f"clients were never clustered: that happens after round {self.after} (method.after), and the run "
                f"had {count_of(rounds, 'round')}"
            ]
        if len(state.models) > 1 or server.n < 2:
            return []
        least, most = state.distances
        return [
            f"all clients are one group: their updates were {least:.3g} to {most:.3g} apart when they were "
            "clustered, and a method.threshold between the two could have divided them"
        ]
