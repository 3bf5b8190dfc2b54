"""StoCFL: clusters that merge as clients are sampled, beside a common model (Zeng, Hu, Liu, Yu, Wang and Xu, 2023).

https://arxiv.org/abs/2303.00897

Algorithm 1, every round:
    1. A client that is sampled for the first time trains the initial model; how it moved represents its data.
       It is a cluster of its own, with the common model.
    2. Sampled clusters whose mean representations have a cosine of tau or more are merged.
    3. Each client trains its cluster's model, under a pull of strength mu to the common one, and the common model.
    4. The server averages each cluster's models, and all common ones.
Decisions where the paper is silent, and cost: docs/methods/stocfl.md
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
from coterie.clients.rules.cluster_pull import ClusterAndCommon
from coterie.clients.rules.local_update import LocalUpdate
from coterie.grouping.affinity import cosines, quartiles
from coterie.grouping.aggregate import group_means
from coterie.grouping.cluster import cluster_by_distance
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, Replies, Send
from coterie.methods.method import UNKNOWN, Assignment, Cohort, Method, Needs, ServerView
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS, Grid


@state("stocfl")
@dataclass(frozen=True, eq=False)
class StoCFLState:
    """What the server remembers; T counts the trainable parameters."""

    models: Tensor  # [K, P], of the clusters
    common: Tensor  # [1, P]
    moved: Tensor  # [n, T], from the initial model in a client's first training; 0 before it
    groups: NDArray[np.int64]  # [n], -1 for a client that was never sampled


@METHODS.add("stocfl")
@dataclass(frozen=True)
class StoCFL(Method[StoCFLState]):
    """Clusters merge while clients are sampled, and a common model trains beside theirs (Zeng et al., 2023).

    Per round: `2 m P b` bytes each way; `P b` more each way in a client's first.
    """

    family = "clustered, hierarchical"

    threshold: Annotated[
        float,
        Field(ge=-1, le=1, description="cosine from which on clusters are merged (tau)"),
        Grid(0.2, 0.3, 0.4, 0.5, 0.6),
    ] = 0.5
    mu: Annotated[
        float, Field(ge=0, description="strength of the pull to the common model"), Grid(0.0, 0.01, 0.1)
    ] = 0.1
    first_epochs: Annotated[int, Field(ge=1, description="passes over own data in a client's first training")] = 5

    needs = Needs(models="its server groups clients by their first updates", pairs="cohort")

    privacy_support = hides_nothing(
        "its server compares how single clients' models moved",
        "its clients train several models on the same samples",
    )

    def start(self, server: ServerView) -> StoCFLState:
        initial = server.initial(0)[None]
        moved = torch.zeros(server.n, server.layout.trainable.size)
        return StoCFLState(initial[:0], initial, moved, np.full(server.n, UNKNOWN, np.int64))

    def round(self, state: StoCFLState, cohort: Cohort) -> Exchanges[StoCFLState]:
        server, clients = cohort.server, cohort.clients
        state = yield from self._observe(state, clients[state.groups[clients] == UNKNOWN], server)
        present = clients[state.groups[clients] != UNKNOWN]
        state = yield from self._merge(state, present)
        send = {"model": Send(state.models, state.groups[present]), "common": Send.same(state.common[0], present)}
        mu = {"mu": np.full(len(present), self.mu)}
        common = Reduce.mean(present)
        own = replace(common, groups=state.groups[present], count=len(state.models))
        means = {"model": own, "common": common}
        replies: Replies = yield Exchange(present, ClusterAndCommon(), send, mu, reduce=means)  # step 3
        centres = server.aggregation.centres
        return replace(  # step 4
            state,
            models=centres(replies, "model", own, state.models),
            common=centres(replies, "common", common, state.common),
        )

    def _observe(self, state: StoCFLState, fresh: Ids, server: ServerView) -> Exchanges[StoCFLState]:
        """Make a cluster of each client that answers for the first time (step 1)."""
        if not len(fresh):
            return state
        found, moved = yield from self._represent(fresh, server)
        groups = state.groups.copy()
        groups[found] = len(state.models) + np.arange(len(found))
        models = torch.cat([state.models, state.common.repeat(len(found), 1)])
        return replace(
            state, models=models, groups=groups, moved=state.moved.index_copy(0, torch.from_numpy(found), moved)
        )

    def _represent(self, clients: Ids, server: ServerView) -> Exchanges[tuple[Ids, Tensor]]:
        """Return who answers, and how each moved from the initial model `[r, T]`."""
        initial = server.initial(0)
        send = {"model": Send.same(initial, clients)}
        replies: Replies = yield Exchange(clients, LocalUpdate(self.first_epochs), send)
        return replies.clients, server.layout.trainable.take(replies.models - initial)

    def _merge(self, state: StoCFLState, present: Ids) -> Exchanges[StoCFLState]:
        """Merge clusters of sampled clients that are alike (step 2); the model of the largest one stays."""
        there, of = np.unique(state.groups[present], return_inverse=True)
        if len(there) < 2:
            return state
        alike = cosines(_mean_moves(state.moved, present, of))
        yield Log("similarity of clusters", quartiles(alike))
        merged = cluster_by_distance(1 - alike, 1 - self.threshold)
        sizes = np.bincount(state.groups[state.groups != UNKNOWN], minlength=len(state.models))
        becomes = np.arange(len(state.models))
        for label in range(merged.max() + 1):
            some = there[merged == label]
            becomes[some] = some[sizes[some].argmax()]
        kept = np.unique(becomes)
        groups = np.where(state.groups == UNKNOWN, UNKNOWN, np.searchsorted(kept, becomes[state.groups]))
        return replace(state, models=state.models[torch.from_numpy(kept)], groups=groups)

    def assignment(self, state: StoCFLState, server: ServerView) -> Assignment:
        rows = np.where(state.groups == UNKNOWN, len(state.models), state.groups)
        return Assignment(torch.cat([state.models, state.common]), state.groups, rows)

    def newcomer(self, state: StoCFLState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers train the initial model; each joins the most similar cluster, or has the common model."""
        groups = np.full(len(clients), UNKNOWN, np.int64)
        known = np.flatnonzero(state.groups != UNKNOWN)
        found, moved = yield from self._represent(clients, server)
        if len(known) and len(found):
            means = _mean_moves(state.moved, known, state.groups[known])
            alike = cosines(torch.cat([moved, means]))[: len(found), len(found) :]
            groups[np.isin(clients, found)] = np.where(alike.max(1) >= self.threshold, alike.argmax(1), UNKNOWN)
        rows = np.where(groups == UNKNOWN, len(state.models), groups)
        return Assignment(torch.cat([state.models, state.common]), groups, rows)

    def final_warnings(self, state: StoCFLState, server: ServerView, rounds: int) -> list[str]:
        """Say that all clients are one cluster, or everybody alone, and how similar they were."""
        known = np.flatnonzero(state.groups != UNKNOWN)
        if len(known) < 2 or 1 < len(state.models) < len(known):
            return []
        alike = quartiles(cosines(state.moved[torch.from_numpy(known)]))
        what = "all clients are one group" if len(state.models) == 1 else "every client is a group of its own"
        return [
            f"{what} with method.threshold = {self.threshold:g}; two clients' first updates had a cosine of "
            f"{alike['min']:.3g} to {alike['max']:.3g}"
        ]


def _mean_moves(moved: Tensor, clients: Ids, groups: NDArray[np.int64]) -> Tensor:
    """Return how the clients of each group moved on average `[K, T]`."""
    rows = moved[torch.from_numpy(clients)]
    return group_means(rows, groups, torch.zeros(int(groups.max()) + 1, rows.shape[1]))
