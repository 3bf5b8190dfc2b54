"""FeSEM: K-means over client models, interleaved with training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.clients.local import LocalUpdate
from coterie.exchange import Exchange, Ids, Replies, Round, Send
from coterie.grouping.affinity import gram_coordinates, pairwise_distances, squared_distances
from coterie.grouping.cluster import kmeans, reseeded
from coterie.methods.catalog import METHODS
from coterie.methods.method import UNKNOWN, Affinity, Cohort, Method, People, Serving
from coterie.models.layout import Part
from coterie.sharing.aggregate import group_means


@dataclass(frozen=True, eq=False)
class FeSEMState:
    """What the server remembers."""

    centres: Tensor  # [K, P]
    models: Tensor  # [n, P], the last that each client uploaded: who was away keeps its last one
    known: NDArray[np.bool_]  # [n], who has uploaded yet
    groups: NDArray[np.int64]  # [n], the centre of each client, -1 before its first upload
    empty: NDArray[np.int64]  # [K], for how many rounds in a row a centre has had no member


@METHODS.add("fesem")
@dataclass(frozen=True)
class FeSEM(Method[FeSEMState]):
    """Multi-center federated learning by stochastic expectation maximisation (Long et al., 2023).

    The first round is the warm-up: everybody trains once from one model, and K-means on what they upload gives
    the groups and the centres. Independent centres would never move a client (specification B2). Every later
    round trains the cohort from its centres, then assigns every client's last model to the nearest centre
    (E-step, Eq. 8) and sets each centre to the mean of its members (M-step, Eq. 9).

    Per round: down and up `m P b` bytes; the warm-up `n P b` each way (specification 2.4).
    """

    clusters: Annotated[int, Field(ge=1, description="number of centres K")] = 4
    mu: Annotated[float, Field(ge=0, description="pull to the centre in training, twice the paper's lambda")] = 0.1
    mu_mode: Annotated[
        Literal["eq7", "uniform"],
        Field(description="scale the pull by mean samples / own samples, as Eq. 7 has it, or the same for all"),
    ] = "eq7"
    restarts: Annotated[int, Field(ge=1, description="K-means runs after the warm-up, the best is taken")] = 20
    signal: Annotated[Literal["all", "last_kernel"], Field(description="the weights that distances see")] = "all"
    weights: Annotated[Literal["uniform", "samples"], Field(description="a client's weight in its centre")] = (
        "uniform"
    )
    members: Annotated[Literal["all", "participants"], Field(description="whose models make a centre")] = "all"
    reseed: Annotated[bool, Field(description="move a centre empty for 5 rounds to the farthest client")] = False

    def start(self, people: People) -> FeSEMState:
        w0 = people.initial(0)[None]
        return FeSEMState(
            w0.repeat(self.clusters, 1),
            w0.repeat(people.n, 1),
            np.zeros(people.n, np.bool_),
            np.full(people.n, UNKNOWN, np.int64),
            np.zeros(self.clusters, np.int64),
        )

    def round(self, state: FeSEMState, cohort: Cohort) -> Round[FeSEMState]:
        people = cohort.people
        if not state.known.any():
            return (yield from self._warm_up(state, cohort))
        # Who missed the warm-up has it now, from the mean of the centres: from any one centre it would stay there.
        starts = torch.cat([state.centres, state.centres.mean(0, keepdim=True)])
        late = state.groups[cohort.clients] == UNKNOWN
        rows, mu = (
            np.where(late, self.clusters, state.groups[cohort.clients]),
            np.where(late, 0.0, self._mu(cohort)),
        )
        replies: Replies = yield Exchange(cohort.clients, LocalUpdate(), {"model": Send(starts, rows)}, {"mu": mu})
        state = _stored(state, replies)
        near = self._nearest(state.models, state.centres, people)
        groups = np.where(state.known, near, UNKNOWN)
        return self._m_step(replace(state, groups=groups), people, replies.clients)

    def serving(self, state: FeSEMState, people: People) -> Serving:
        return Serving(state.centres, state.groups)

    def newcomer(self, state: FeSEMState, clients: Ids, people: People) -> Round[Serving]:
        """One local update from the mean of the centres, then the E-step (specification B11)."""
        start = state.centres.mean(0)
        replies: Replies = yield Exchange(clients, LocalUpdate(), {"model": Send.same(start, clients)})
        groups = np.full(len(clients), UNKNOWN, np.int64)
        groups[np.isin(clients, replies.clients)] = self._nearest(replies.models, state.centres, people)
        return Serving(state.centres, groups)

    def affinity(self, state: FeSEMState, people: People, clients: Ids) -> Affinity:
        points = gram_coordinates(self._seen(people).take(state.models[torch.from_numpy(clients)]))
        return Affinity("distance between client models", pairwise_distances(points))

    def _warm_up(self, state: FeSEMState, cohort: Cohort) -> Round[FeSEMState]:
        """Everybody trains once from the same model; K-means on the models that come back."""
        people, everyone = cohort.people, cohort.people.everyone
        replies: Replies = yield Exchange(everyone, LocalUpdate(), {"model": Send.same(state.centres[0], everyone)})
        if not len(replies):
            return state
        state = _stored(state, replies)
        seen = self._seen(people).take(replies.models)
        groups = state.groups.copy()
        groups[replies.clients] = kmeans(seen, self.clusters, self.restarts, people.stream("kmeans", cohort.round))
        return self._m_step(replace(state, groups=groups), people, replies.clients)

    def _nearest(self, models: Tensor, centres: Tensor, people: People) -> NDArray[np.int64]:
        """The E-step: every model to its nearest centre (Eq. 8); ties to the first."""
        part = self._seen(people)
        return np.asarray(squared_distances(part.take(models), part.take(centres)).argmin(1), np.int64)

    def _m_step(self, state: FeSEMState, people: People, present: Ids) -> FeSEMState:
        """Every centre to the mean of its members (Eq. 9); one without members stays where it is."""
        groups = state.groups
        if self.members == "participants":
            groups = np.where(np.isin(people.everyone, present), groups, UNKNOWN)
        weights = people.samples if self.weights == "samples" else None
        centres = group_means(state.models, groups, state.centres, weights)
        members = np.bincount(state.groups[state.known], minlength=self.clusters)
        state = replace(state, centres=centres, empty=np.where(members == 0, state.empty + 1, 0))
        if self.reseed:
            known = state.models[torch.from_numpy(state.known)]
            centres, empty = reseeded(centres, known, state.empty, self._seen(people))
            state = replace(state, centres=centres, empty=empty)
        return state

    def _mu(self, cohort: Cohort) -> NDArray[np.float64]:
        samples = cohort.people.samples
        scale = samples.mean() / samples[cohort.clients] if self.mu_mode == "eq7" else 1.0
        return np.asarray(self.mu * scale * np.ones(len(cohort.clients)))

    def _seen(self, people: People) -> Part:
        """The parameters that the distance looks at; never the buffers."""
        return people.layout.trainable if self.signal == "all" else people.layout.output_kernel


def _stored(state: FeSEMState, replies: Replies) -> FeSEMState:
    models, known = state.models.clone(), state.known.copy()
    models[torch.from_numpy(replies.clients)] = replies.models
    known[replies.clients] = True
    return replace(state, models=models, known=known)
