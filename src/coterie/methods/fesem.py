"""FeSEM: K-means over client models, interleaved with training (Long et al., World Wide Web 26, 2023).

Multi-center federated learning by stochastic expectation maximisation, https://arxiv.org/abs/2005.01026

Round 1, the warm-up: all clients train from one model for `warm_up` epochs; K-means on the results gives groups and
centres.
Every later round:
    1. The cohort trains from its centres, pulled back to them (Eq. 7), and uploads.
    2. E-step: every client's last model joins its nearest centre, also that of an absent client (Eq. 8).
    3. M-step: every centre becomes the mean of its members (Eq. 9).
Decisions where the paper is silent, and cost: docs/methods/fesem.md
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
from coterie.clients.rules.rule import Rule
from coterie.clients.rules.train_each import TrainEach, find_least_moved
from coterie.grouping.affinity import gram_coordinates, pairwise_distances, squared_distances
from coterie.grouping.cluster import distances_of_many, kmeans
from coterie.methods.client_rows import VersionedRows, replace_rows
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, Replies, Send
from coterie.methods.k_models import warn_of_sketches
from coterie.methods.method import UNKNOWN, Affinity, Assignment, Cohort, Method, Needs, ServerView
from coterie.methods.privacy import PrivacySupport
from coterie.methods.registry import METHODS, Grid
from coterie.models.layout import BYTES_PER_SCALAR, Part


@state("fesem")
@dataclass(frozen=True, eq=False)
class FeSEMState:
    """Centres, the clients' last models, and who belongs where."""

    centres: Tensor  # [K, P]
    models: VersionedRows  # [n, P], the last model of each client, also of an absent one
    known: NDArray[np.bool_]  # [n], who has uploaded yet
    groups: NDArray[np.int64]  # [n], the centre of each client, -1 before its first upload
    e_steps: int = 0  # how many there were
    moving: int = 0  # how many of them moved a client
    margin: float = np.inf  # the least ratio yet of a client's distance to another centre and to its own

    @classmethod
    def initial(cls, server: ServerView, clusters: int) -> FeSEMState:
        """Return K times the common initial model, and no client known."""
        w0 = server.initial(0)[None]
        return cls(
            w0.repeat(clusters, 1),
            VersionedRows(w0.expand(server.n, -1)),
            np.zeros(server.n, np.bool_),
            np.full(server.n, UNKNOWN, np.int64),
        )

    @property
    def last(self) -> Tensor:
        """The clients' last models `[n, P]`."""
        return self.models.matrix

    def store_models(self, replies: Replies) -> FeSEMState:
        """Return the state in which the models that came back are their clients' last ones."""
        known = self.known.copy()
        known[replies.clients] = True
        if self.known.any():
            return replace(self, models=self.models.replace_rows(replies.clients, replies.models), known=known)
        # Until now all rows were views of one row, which cannot be changed in place.
        return replace(
            self, models=VersionedRows(replace_rows(self.last, replies.clients, replies.models)), known=known
        )

    @property
    def inhabited(self) -> Tensor:
        """The centres that have members `[k, P]`; all of them where none has."""
        there = np.unique(self.groups[self.groups != UNKNOWN])
        return self.centres[torch.from_numpy(there)] if len(there) else self.centres


@METHODS.add("fesem")
@dataclass(frozen=True)
class FeSEM(Method[FeSEMState]):
    """Multi-center federated learning by stochastic expectation maximisation (Long et al., 2023).

    The warm-up is needed: centres drawn independently would never lose a client (docs/methods/fesem.md, D2).

    Per round: down and up `m P b` bytes (`update_aware`: down `m K P b`, up `m (P b + 4 K)`); the warm-up `n P b`
    each way.
    """

    family = "clustered, hard"

    clusters: Annotated[int, Field(ge=1, description="number of centres K"), Grid(2, 3, 4)] = 4
    mu: Annotated[float, Field(ge=0, description="pull to the centre, 2 lambda"), Grid(0.0, 0.01, 0.1, 1.0)] = 0.1
    warm_up: Annotated[
        int, Field(ge=0, description="passes over own data before K-means; 0 for those of any other round")
    ] = 20
    restarts: Annotated[
        int, Field(ge=1, le=10_000, description="runs of K-means after the warm-up, of which the best is taken")
    ] = 20
    signal: Annotated[
        Literal["all", "last_kernel"], Field(description="the weights by which distances are measured")
    ] = "all"
    weights: Annotated[Literal["uniform", "samples"], Field(description="clients' weights in a centre")] = "uniform"
    members: Annotated[
        Literal["all", "participants"], Field(description="the clients whose models form a centre")
    ] = "all"
    e_step: Annotated[
        Literal["nearest", "update_aware"],
        Field(
            description="clients join the nearest centre; or (an extension) train from every centre and join the "
            "one that moves them least"
        ),
    ] = "nearest"

    needs = Needs(models="its server compares single clients' last models with the centres")

    @property
    def privacy_support(self) -> PrivacySupport:
        told = "" if self.e_step == "nearest" else "its clients report how far each model moves"
        warm = "its clients train until they converge; method.warm_up must be 0" if self.warm_up else ""
        return PrivacySupport("its server compares single clients' models", told, told or warm)

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Warn of what is approximate with more clients than are compared whole."""
        found, size = warn_of_sketches(server), server.layout.size * BYTES_PER_SCALAR * server.n / 1e6
        if found:
            found.append(
                "distances to centres are computed from products in float32; the last models of all clients take "
                f"{size:,.0f} MB"
            )
        return found

    def final_warnings(self, state: FeSEMState, server: ServerView, rounds: int) -> list[str]:
        """Say so if no E-step ever moved a client, which cannot be told from convergence by the groups alone."""
        if state.moving or not state.e_steps or self.clusters == 1:
            return []
        inert = (
            f"no client moved in {state.e_steps} E-step{'s' if state.e_steps > 1 else ''}: the groups are those of "
            "K-means after the warm-up (see warm_up and restarts)"
        )
        if self.e_step != "nearest":
            return [inert]
        return [
            f"{inert}. Each client trains from its group's centre, so it stays near it: the nearest other centre "
            f"was always at least {state.margin:.3g} times as far away. With e_step = 'update_aware' clients "
            "change groups more easily"
        ]

    def start(self, server: ServerView) -> FeSEMState:
        return FeSEMState.initial(server, self.clusters)

    def round(self, state: FeSEMState, cohort: Cohort) -> Exchanges[FeSEMState]:
        server = cohort.server
        if not state.known.any():
            return (yield from self._warm_up(state, cohort))
        before, present = state.groups, cohort.clients[:0]
        late = cohort.clients[before[cohort.clients] == UNKNOWN]
        if self.e_step == "nearest" and len(late):
            joined: Replies = yield self._train_alone(state, late, server, cohort.round)
            state, present = state.store_models(joined), joined.clients
            cohort = replace(cohort, clients=np.setdiff1d(cohort.clients, late))
        replies: Replies = yield self._train_cohort(state, cohort)  # step 1
        state, present = state.store_models(replies), np.union1d(present, replies.clients)
        distances = self.measure_distances(state.last, state.centres, server)
        if self.e_step == "nearest":  # step 2
            groups = np.where(state.known, distances.argmin(1), UNKNOWN)
        else:  # absent clients keep their group
            groups = before.copy()
            groups[replies.clients] = find_least_moved(replies.numbers, self.clusters)
        before = np.where(before == UNKNOWN, groups, before)  # a new client leaves no centre
        margin = least_margin(distances, before)
        yield Log("margin", margin)
        state = replace(
            state,
            e_steps=state.e_steps + 1,
            moving=state.moving + int((groups != before).any()),
            margin=min(state.margin, margin),
        )
        state = self.take_m_step(replace(state, groups=groups), server, present, cohort.round)  # step 3
        ends = {"before E": mean_distance(distances, before), "after E": mean_distance(distances, groups)}
        yield Log("objective", ends | {"after M": self.measure_objective(state, server)})
        return state

    def assignment(self, state: FeSEMState, server: ServerView) -> Assignment:
        return Assignment(state.centres, state.groups)

    def newcomer(self, state: FeSEMState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers train from the mean of the centres, then run the E-step (docs/methods/fesem.md, D11)."""
        replies: Replies = yield self._train_alone(state, clients, server)
        groups = np.full(len(clients), UNKNOWN, np.int64)
        groups[np.isin(clients, replies.clients)] = self.assign_nearest(replies.models, state.centres, server)
        return Assignment(state.centres, groups)

    def affinity(self, state: FeSEMState, server: ServerView, clients: Ids) -> Affinity:
        points = gram_coordinates(self.compared_part(server).take(state.last[torch.from_numpy(clients)]))
        return Affinity("distance between client models", pairwise_distances(points))

    def _warm_up(self, state: FeSEMState, cohort: Cohort) -> Exchanges[FeSEMState]:
        """Let all clients train alone, and group the results by K-means."""
        server, everyone = cohort.server, cohort.server.everyone
        replies: Replies = yield Exchange(everyone, self._first_update, {"model": self._send_first_models(server)})
        if not len(replies):
            return state
        groups, seen = state.groups.copy(), self.compared_part(server).take(self._align(replies.models, cohort))
        rng, above = server.stream("kmeans", cohort.round), server.scale.sketch_above
        groups[replies.clients] = kmeans(seen, self.clusters, self.restarts, rng, above)
        state = self.take_m_step(
            replace(state.store_models(replies), groups=groups), server, replies.clients, cohort.round
        )
        yield Log("objective", {"after M": self.measure_objective(state, server)})
        return state

    def _train_cohort(self, state: FeSEMState, cohort: Cohort) -> Exchange:
        """Let the cohort train from its centres (Eq. 7); with `update_aware`, from all of them."""
        clients, samples = cohort.clients, cohort.server.samples
        mu = self.mu * (samples.mean() / samples[clients])
        if self.e_step == "update_aware":
            models = Send.all(state.centres, clients)
            return Exchange(clients, TrainEach(self.signal), {"models": models}, {"mu": mu})
        return Exchange(clients, LocalUpdate(), {"model": Send(state.centres, state.groups[clients])}, {"mu": mu})

    def _train_alone(self, state: FeSEMState, clients: Ids, server: ServerView, round: int = -1) -> Exchange:
        """Let clients without a centre train from the mean of the centres: from any one they would stay there."""
        start = self._average_centres(state.inhabited, server, round)
        return Exchange(clients, self._first_update, {"model": Send.same(start[0], clients)})

    @property
    def _first_update(self) -> Rule:
        """How a client trains before it joins a centre."""
        return LocalUpdate(self.warm_up or None)

    def _send_first_models(self, server: ServerView) -> Send:
        """Return what the warm-up starts from."""
        return Send.same(server.initial(0), server.everyone)

    def _align(self, models: Tensor, cohort: Cohort) -> Tensor:
        """Return models `[r, P]` as K-means compares them."""
        return models

    def assign_nearest(self, models: Tensor, centres: Tensor, server: ServerView) -> NDArray[np.int64]:
        """Assign every model `[m, P]` to its nearest centre of `[K, P]` (E-step, Eq. 8); ties to the first."""
        return np.asarray(self.measure_distances(models, centres, server).argmin(1), np.int64)

    def take_m_step(self, state: FeSEMState, server: ServerView, present: Ids, round: int = -1) -> FeSEMState:
        """Set every centre to the mean of its members (M-step, Eq. 9); one without members stays where it is."""
        counted = np.isin(server.everyone, present) | (self.members == "all")
        groups = np.where(counted, state.groups, UNKNOWN)
        return replace(state, centres=self._average_members(state, groups, server, round))

    def measure_objective(self, state: FeSEMState, server: ServerView) -> float:
        """Return `(1/n) sum ||w_i - W^(c(i))||^2` over the clients that are known."""
        if server.n > server.scale.sketch_above:
            return mean_distance(self.measure_distances(state.last, state.centres, server), state.groups)
        total = 0.0
        for k, centre in enumerate(state.centres):  # one group at a time: nobody holds a copy of all models
            for some in np.array_split(members := np.flatnonzero(state.groups == k), len(members) // 64 + 1):
                total += float(
                    self.measure_distances(state.last[torch.from_numpy(some)], centre[None], server).sum()
                )
        return total / len(state.groups)

    def _weigh_clients(self, server: ServerView) -> Ids | None:
        return server.samples if self.weights == "samples" else None

    def measure_distances(self, models: Tensor, centres: Tensor, server: ServerView) -> NDArray[np.float64]:
        """Return the squared distances of models `[n, P]` to centres `[K, P]`: `[n, K]` (E-step, Eq. 8)."""
        part, many = self.compared_part(server), len(models) > server.scale.sketch_above
        return (distances_of_many if many else squared_distances)(part.take(models), part.take(centres))

    def _average_members(self, state: FeSEMState, groups: Ids, server: ServerView, round: int) -> Tensor:
        weights = self._weigh_clients(server)
        return server.aggregation.average_groups(state.last, groups, state.centres, weights)

    def _average_centres(self, centres: Tensor, server: ServerView, round: int = -1) -> Tensor:
        """Return the mean of the centres `[1, P]`."""
        return centres.mean(0, keepdim=True)

    def compared_part(self, server: ServerView) -> Part:
        """Return the parameters that distances see; never the buffers."""
        return server.layout.trainable if self.signal == "all" else server.layout.output_kernel


def mean_distance(distances: NDArray[np.float64], groups: NDArray[np.int64]) -> float:
    """Return the mean of `distances` `[n, K]` to own centres, for groups `[n]`; unknown clients count as 0."""
    known = np.flatnonzero(groups != UNKNOWN)
    return float(distances[known, groups[known]].sum() / len(groups))


def least_margin(distances: NDArray[np.float64], groups: NDArray[np.int64]) -> float:
    """Return how many times as far as its own centre another one is, for the client that is nearest to a move.

    Args:
        distances: squared, `[n, K]`.
        groups: of each client `[n]`; unknown clients do not count.

    Returns:
        Below 1 where the E-step moves a client; infinite with one centre, or where all lie on their centres.
    """
    known = np.flatnonzero(groups != UNKNOWN)
    others = distances[known].copy()
    own = others[np.arange(len(known)), groups[known]].copy()
    others[np.arange(len(known)), groups[known]] = np.inf
    away = own > 0
    return float(np.sqrt((others.min(1)[away] / own[away]).min(initial=np.inf)))
