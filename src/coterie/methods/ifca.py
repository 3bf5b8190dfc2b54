"""IFCA: iterative federated clustering (Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020).

https://arxiv.org/abs/2006.04088. HypCluster (Mansour et al., 2020) is the same with means weighted by samples.

Algorithm 1, every round:
    1. The server sends all K models.
    2. Each client picks the model with the smallest loss on its own data.   (cluster estimate)
    3. It trains that model and uploads it with its choice.
    4. The server averages each model over the clients that picked it.       (model averaging)
Decisions where the paper is silent, and cost: docs/methods/ifca.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.choose import Choose, ChooseThenTrain
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.k_models import (
    Init,
    ServesGroups,
    begin_from_first,
    cluster_first_models,
    describe_first_clustering,
    draw_models,
    redraw_until_all_picked,
    warn_of_one_choice,
    warn_of_sketches,
)
from coterie.methods.method import UNKNOWN, Cohort, Needs, ServerView
from coterie.methods.privacy import PrivacySupport
from coterie.methods.registry import METHODS, Grid


@state("ifca")
@dataclass(frozen=True, eq=False)
class IFCAState:
    """The cluster models `[K, P]`, and what each client chose in the last round `[n]`, -1 if it was away.

    An old choice was made among other models; a client that was away chooses anew when it is evaluated.
    """

    models: Tensor
    groups: NDArray[np.int64]


@METHODS.add("ifca")
@dataclass(frozen=True)
class IFCA(ServesGroups[IFCAState]):
    """K models; each client trains the one with the smallest loss on its own data (Ghosh et al., 2020).

    Independent initial models can leave a cluster that no client ever picks. `init = "redraw"` draws anew, as the
    authors' code does, until each model is picked by a share of the first cohort, at most 100 times. `init =
    "kmeans"` clusters the clients' models after one local round of all, as FeSEM does.

    With `weights = "samples"` this is HypCluster. Per round: down `m K P b`, up `m (P b + 4)` bytes.
    """

    family = "clustered, hard"

    clusters: Annotated[int, Field(ge=1, description="number of models K"), Grid(2, 3, 4)] = 4
    weights: Annotated[
        Literal["samples", "uniform"], Field(description="a client's weight in its cluster's mean")
    ] = "uniform"
    init: Annotated[
        Init,
        Field(
            description="initial models: redrawn until all are picked; drawn once; or from the groups of a local "
            "round of all, by K-means, or the better separated of K-means and average linkage"
        ),
    ] = "redraw"

    @property
    def needs(self) -> Needs:
        return Needs(models=describe_first_clustering(self.init, self.clusters))

    @property
    def privacy_support(self) -> PrivacySupport:
        first = "its first models depend on what single clients choose or train; method.init must be 'plain'"
        chosen = "its clients report which model they choose"
        return PrivacySupport("" if self.init == "plain" or self.clusters == 1 else first, chosen, chosen)

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Warn of K-means on sketches."""
        return warn_of_sketches(server) if self.init in ("silhouette", "kmeans") else []

    def final_warnings(self, state: IFCAState, server: ServerView, rounds: int) -> list[str]:
        """Say so if one model suits everybody best, which leaves one group."""
        return warn_of_one_choice(state.groups, self.clusters, self.init)

    def start(self, server: ServerView) -> IFCAState:
        return IFCAState(draw_models(server, self.clusters), np.full(server.n, UNKNOWN, np.int64))

    def round(self, state: IFCAState, cohort: Cohort) -> Exchanges[IFCAState]:
        clients, models = cohort.clients, state.models
        if cohort.round == 1 and self.clusters > 1:
            if self.init in ("silhouette", "kmeans"):
                replies, labels = yield from cluster_first_models(models[0], self.clusters, cohort, self.init)
                begun, own = begin_from_first(models, labels), replies.clients
                return self._average(
                    begun, replies, Reduce(own, self._weights(own, cohort), labels, self.clusters), cohort
                )
            if self.init == "redraw":
                models = yield from self._redraw(cohort)
        chosen = Reduce.by_choice(clients, self.clusters, self._weights(clients, cohort))
        sends = {"models": Send.all(models, clients)}
        replies = yield Exchange(clients, ChooseThenTrain(), sends, reduce={"model": chosen})  # steps 1-3
        return self._average(models, replies, chosen, cohort)  # step 4

    def _redraw(self, cohort: Cohort) -> Exchanges[Tensor]:
        clients = cohort.clients
        return (
            yield from redraw_until_all_picked(
                lambda attempt: draw_models(cohort.server, self.clusters, attempt),
                lambda models: Exchange(clients, Choose(), {"models": Send.all(models, clients)}),
                0.35 if self.clusters == 2 else 0.4 / self.clusters,  # as in the authors' code
            )
        )

    def _weights(self, clients: Ids, cohort: Cohort) -> NDArray[np.int64]:
        return cohort.server.samples[clients] if self.weights == "samples" else np.ones(len(clients), np.int64)

    def _average(self, models: Tensor, replies: Replies, picked: Reduce, cohort: Cohort) -> IFCAState:
        """Set every model to the mean of those that were trained from it."""
        groups = np.full(cohort.server.n, UNKNOWN, np.int64)
        groups[replies.clients] = picked.groups_of(replies.clients, replies.numbers)
        return IFCAState(cohort.server.aggregation.centres(replies, "model", picked, models), groups)
