"""PACFL: clients are grouped once, by angles between the subspaces of their data (Vahidian et al., AAAI 2023).

Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah and Lin. https://arxiv.org/abs/2209.10526

Before the first round:
    1. Each client sends the p first left singular vectors of its data, class by class.
    2. The server clusters the clients by the angles between their vectors.      (Eq. 2 and 3)
Every round:
    3. Each client trains the model of its cluster and uploads it.
    4. The server averages the uploads of each cluster, weighted by samples.
Decisions where the paper is silent, and cost: docs/methods/pacfl.md
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
from coterie.clients.rules.class_bases import ClassBases
from coterie.grouping.affinity import quartiles
from coterie.grouping.cluster import cut_dendrogram, dendrogram, nearest_group
from coterie.grouping.gaps import find_groups
from coterie.grouping.subspaces import paired_angles, smallest_angles
from coterie.methods.client_rows import replace_rows
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, LogGap, Replies
from coterie.methods.k_models import ServesGroups, train_groups
from coterie.methods.method import UNKNOWN, Affinity, Assignment, Cohort, Needs, ServerView
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS, Grid


@state("pacfl")
@dataclass(frozen=True, eq=False)
class PACFLState:
    """What the server remembers."""

    models: Tensor  # [K, P], of the clusters
    groups: NDArray[np.int64]  # [n], -1 for a client that has not sent its vectors
    bases: Tensor  # [n, classes, p, d], 0 for such a client


@METHODS.add("pacfl")
@dataclass(frozen=True)
class PACFL(ServesGroups[PACFLState]):
    """One-shot groups by the angles between subspaces of the clients' data (Vahidian et al., 2023).

    Per round: down and up `m P b` bytes; at first `n C p d b` more up, of C classes and inputs of d numbers.
    """

    family = "clustered, one-shot"

    vectors: Annotated[int, Field(ge=1, description="singular vectors that are sent of each class (p)")] = 3
    angles: Annotated[
        Literal["paired", "smallest"],
        Field(description="between vectors of one class and place (Eq. 3); or the smallest of any two (Eq. 2)"),
    ] = "paired"
    threshold: Annotated[
        float | None,
        Field(ge=0, le=90, description="angle in degrees up to which clusters merge; without it, a gap is sought"),
        Grid(10.0, 20.0, 40.0),
    ] = None

    needs = Needs(pairs="everybody")

    privacy_support = hides_nothing(
        "its server compares directions of single clients' samples",
        "its clients send directions in which their samples lie",
    )

    def start(self, server: ServerView) -> PACFLState:
        shape = self._rule(server).shapes(server.layout)["bases"]
        return PACFLState(
            server.initial(0)[None], np.full(server.n, UNKNOWN, np.int64), torch.zeros(server.n, *shape)
        )

    def round(self, state: PACFLState, cohort: Cohort) -> Exchanges[PACFLState]:
        server, clients = cohort.server, cohort.clients
        if (state.groups == UNKNOWN).all():
            state = yield from self._cluster(state, cohort)
        elif (state.groups[clients] == UNKNOWN).any():
            state = yield from self._join(state, clients[state.groups[clients] == UNKNOWN], server)
        models = yield from train_groups(state.models, state.groups, clients, server)  # steps 3 and 4
        return replace(state, models=models)

    def _cluster(self, state: PACFLState, cohort: Cohort) -> Exchanges[PACFLState]:
        """Cluster all clients that answer (steps 1 and 2); where nobody does, the next round asks again."""
        server = cohort.server
        replies: Replies = yield Exchange(server.everyone, self._rule(server))
        if not len(replies):
            return state
        bases, there = replies.uploads["bases"], replies.clients
        angles = self._angles(bases)
        yield Log("angle", quartiles(angles))
        yield LogGap("data", there, angles, "distance")
        if self.threshold is None:
            labels = find_groups(-np.square(angles) / 2, server.stream("clouds", cohort.round))
        elif len(there) > 1:
            labels = cut_dendrogram(dendrogram(angles), self.threshold)
        else:
            labels = np.zeros(1, np.int64)
        groups = state.groups.copy()
        groups[there] = labels
        models = state.models.repeat(labels.max() + 1, 1)
        return PACFLState(models, groups, replace_rows(state.bases, there, bases))

    def _join(self, state: PACFLState, late: Ids, server: ServerView) -> Exchanges[PACFLState]:
        """Let clients that were not clustered join the cluster that is nearest on average."""
        replies: Replies = yield Exchange(late, self._rule(server))
        groups = state.groups.copy()
        groups[replies.clients] = self._nearest(state, replies.uploads["bases"])
        return replace(
            state, groups=groups, bases=replace_rows(state.bases, replies.clients, replies.uploads["bases"])
        )

    def _nearest(self, state: PACFLState, bases: Tensor) -> NDArray[np.int64]:
        known = np.flatnonzero(state.groups != UNKNOWN)
        if not len(bases):
            return np.empty(0, np.int64)
        angles = self._angles(torch.cat([bases, state.bases[torch.from_numpy(known)]]))
        return nearest_group(angles[: len(bases), len(bases) :], state.groups[known])

    def _rule(self, server: ServerView) -> ClassBases:
        return ClassBases(int(np.prod(server.features)), max(server.classes, 1), self.vectors)

    def _angles(self, bases: Tensor) -> NDArray[np.float64]:
        return paired_angles(bases) if self.angles == "paired" else smallest_angles(bases)

    def newcomer(self, state: PACFLState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers send their vectors and join the cluster that is nearest on average."""
        groups = np.full(len(clients), UNKNOWN, np.int64)
        if (state.groups != UNKNOWN).any():
            replies: Replies = yield Exchange(clients, self._rule(server))
            groups[np.isin(clients, replies.clients)] = self._nearest(state, replies.uploads["bases"])
        return Assignment(state.models, groups)

    def affinity(self, state: PACFLState, server: ServerView, clients: Ids) -> Affinity | None:
        if (state.groups[clients] == UNKNOWN).any():
            return None
        return Affinity("angle between data, in degrees", self._angles(state.bases[torch.from_numpy(clients)]))

    def final_warnings(self, state: PACFLState, server: ServerView, rounds: int) -> list[str]:
        """Say so if all clients are one group, and how far apart they are."""
        there = np.flatnonzero(state.groups != UNKNOWN)
        if len(state.models) > 1 or len(there) < 2:
            return []
        angles = quartiles(self._angles(state.bases[torch.from_numpy(there)]))
        return [
            f"all clients are one group: their data are {angles['min']:.3g} to {angles['max']:.3g} degrees apart, "
            "and a method.threshold between the two could have divided them"
        ]
