"""IFCA and HypCluster: K models, and every client picks its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.clients.choose import Choose, ChooseThenTrain
from coterie.clients.local import LocalUpdate
from coterie.exchange import Exchange, Ids, Replies, Round, Send
from coterie.grouping.cluster import kmeans
from coterie.methods.catalog import METHODS
from coterie.methods.method import UNKNOWN, Cohort, Method, People, Serving
from coterie.sharing.aggregate import group_means

_REDRAWS = 100


@dataclass(frozen=True, eq=False)
class IFCAState:
    """The cluster models `[K, P]`, and what each client chose in the last round `[n]`, -1 if it was away.

    An old choice was made among other models; a client that was away chooses anew when it is evaluated.
    """

    models: Tensor
    groups: NDArray[np.int64]


@METHODS.add("ifca")
@dataclass(frozen=True)
class IFCA(Method[IFCAState]):
    """K models; each client trains the one with the smallest loss on its own data (Ghosh et al., 2020).

    With `weights="samples"` this is HypCluster (Mansour et al., 2020). Per round: down `m K P b`, up
    `m (P b + 4)` bytes (specification 6.11).

    Independent initial models can leave a cluster that nobody ever picks. `init="redraw"` draws anew, as the
    authors' code does, until each model is picked by a share of the first cohort, at most 100 times;
    `init="kmeans"` clusters the clients' models after one local round of everybody, as FeSEM does.
    """

    clusters: Annotated[int, Field(ge=1, description="number of models K")] = 4
    weights: Annotated[
        Literal["samples", "uniform"], Field(description="a client's weight in its cluster's mean")
    ] = "uniform"
    init: Annotated[
        Literal["redraw", "plain", "kmeans"],
        Field(
            description="initial models: redrawn until all are picked, drawn once, or K-means after a local round"
        ),
    ] = "redraw"
    min_share: Annotated[
        float | None,
        Field(
            gt=0,
            le=1,
            description="redraw until each model is picked by this share of the first cohort; "
            "without it 0.35 for two models, 0.4 / K for others, as in the authors' code",
        ),
    ] = None
    restarts: Annotated[int, Field(ge=1, description="K-means runs, the best is taken (init = kmeans)")] = 20

    def start(self, people: People) -> IFCAState:
        return IFCAState(self._draw(people, 0), np.full(people.n, UNKNOWN, np.int64))

    def round(self, state: IFCAState, cohort: Cohort) -> Round[IFCAState]:
        if cohort.round == 1 and self.clusters > 1:
            if self.init == "kmeans":
                return (yield from self._warm_up(state, cohort))
            if self.init == "redraw":
                state = yield from self._redraw(state, cohort)
        replies: Replies = yield Exchange(
            cohort.clients, ChooseThenTrain(), {"models": Send.all(state.models, cohort.clients)}
        )
        choice = _choices(replies)
        groups = np.full(cohort.people.n, UNKNOWN, np.int64)
        groups[replies.clients] = choice
        weights = replies.samples if self.weights == "samples" else None
        return IFCAState(group_means(replies.models, choice, state.models, weights), groups)

    def serving(self, state: IFCAState, people: People) -> Serving:
        return Serving(state.models, state.groups)

    def newcomer(self, state: IFCAState, clients: Ids, people: People) -> Round[Serving]:
        """A newcomer picks as everybody does: the model with the smallest loss on its data."""
        replies: Replies = yield Exchange(clients, Choose(), {"models": Send.all(state.models, clients)})
        groups = np.full(len(clients), UNKNOWN, np.int64)
        groups[np.isin(clients, replies.clients)] = _choices(replies)
        return Serving(state.models, groups)

    def _draw(self, people: People, attempt: int) -> Tensor:
        """K independent initial models; the first draw starts with the model of the other methods."""
        first = attempt * self.clusters
        return torch.stack([people.initial(first + k) for k in range(self.clusters)])

    def _redraw(self, state: IFCAState, cohort: Cohort) -> Round[IFCAState]:
        """Draw until each model is picked by its share of the cohort; the best draw if none is good enough."""
        usual = 0.35 if self.clusters == 2 else 0.4 / self.clusters
        wanted = usual if self.min_share is None else self.min_share
        best, best_share = state.models, -1.0
        for attempt in range(_REDRAWS):
            models = self._draw(cohort.people, attempt)
            replies: Replies = yield Exchange(
                cohort.clients, Choose(), {"models": Send.all(models, cohort.clients)}
            )
            counts = np.bincount(_choices(replies), minlength=self.clusters)
            share = float(counts.min() / max(len(replies), 1))
            if share > best_share:
                best, best_share = models, share
            if share >= wanted or not len(replies):
                break
        return IFCAState(best, state.groups)

    def _warm_up(self, state: IFCAState, cohort: Cohort) -> Round[IFCAState]:
        """One local round of everybody from one model, then K-means on what came back."""
        people = cohort.people
        everyone = people.everyone
        replies: Replies = yield Exchange(everyone, LocalUpdate(), {"model": Send.same(state.models[0], everyone)})
        if not len(replies):
            return state
        labels = kmeans(
            people.layout.trainable.take(replies.models),
            self.clusters,
            self.restarts,
            people.stream("kmeans", cohort.round),
        )
        groups = np.full(people.n, UNKNOWN, np.int64)
        groups[replies.clients] = labels
        weights = replies.samples if self.weights == "samples" else None
        return IFCAState(group_means(replies.models, labels, state.models, weights), groups)


def _choices(replies: Replies) -> NDArray[np.int64]:
    return replies.numbers.get("choice", np.empty(0)).astype(np.int64)
