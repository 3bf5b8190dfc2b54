"""Pooled groups: groups by a test on halves, and for each client a departure from its group's, shrunk.

Groups are those of `halves`; within a group clients are as in `partial-pooling`, which it is where there is one.

Round 1, before anything is trained: groups are found as by `halves`, as many as there are.
Every round, that one too, with the groups' models, and what their members departed by on average in the last round:
    1. The server sends each client its group's model and mean departure, and the variances of all groups.
    2. Each client trains and departs as in `partial-pooling`, from its group's model.
    3. A group's model becomes the mean of its members' uploads; the variance between clients is that within groups.
Decisions, and cost: docs/methods/pooled-groups.md
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.pooled import PooledUpdate, Shrunk, list_parts
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Replies, Send
from coterie.methods.halves import Halves, HalvesState
from coterie.methods.k_models import place_by_loss
from coterie.methods.method import UNKNOWN, Assignment, Cohort, ServerView
from coterie.methods.partial_pooling import estimate_departures
from coterie.methods.registry import METHODS, Grid


@state("pooled-groups")
@dataclass(frozen=True, eq=False)
class PooledGroupsState(HalvesState):
    """The groups and their models, mean departures, and the variances, which have no row at first."""

    mean: Tensor = field(default_factory=lambda: torch.empty(0, 0))  # [K, P]
    variances: Tensor = field(default_factory=lambda: torch.empty(0, 0))  # [1, 2 L]


@METHODS.add("pooled-groups")
@dataclass(frozen=True)
class PooledGroups(Halves):
    """Groups by an exact test on halves, and departures from them that are shrunk by empirical Bayes.

    Per round: down `m (2 P + 2 L) b`, up `m (P + 2 L) b` bytes; the first one also what `halves` asks.
    """

    passes: Annotated[
        int, Field(ge=1, description="passes over a client's samples, and over either half"), Grid(1, 5, 20)
    ] = 5
    shrink: Annotated[
        Shrunk,
        Field(description="what has a share of its own: each layer, or each layer's weights and its constants"),
    ] = "tensor"

    def start(self, server: ServerView) -> PooledGroupsState:
        begun = super().start(server)
        none = torch.empty(0, 2 * len(list_parts(server.layout, self.shrink)))
        return PooledGroupsState(**vars(begun), mean=torch.zeros_like(begun.models), variances=none)

    def round(self, state: HalvesState, cohort: Cohort) -> Exchanges[HalvesState]:
        assert isinstance(state, PooledGroupsState)
        clients, server = cohort.clients, cohort.server
        if state.p is None:
            state = yield from self.find_groups_of(state, cohort)
            assert isinstance(state, PooledGroupsState)
            state = replace(state, mean=torch.zeros_like(state.models))
        else:
            state = replace(state, groups=(yield from place_by_loss(state.models, state.groups, clients)))
        groups = state.groups if len(state.models) > 1 else np.zeros(server.n, np.int64)
        placed = clients[groups[clients] != UNKNOWN]
        send = {"model": Send(state.models, groups[placed])}  # step 1
        if len(state.variances):
            send |= {"mean": Send(state.mean, groups[placed]), "variances": Send.same(state.variances[0], placed)}
        means = Reduce(placed, server.samples[placed], groups[placed], len(state.models))
        rule = PooledUpdate(self.passes, self.shrink)
        replies: Replies = yield Exchange(placed, rule, send, reduce={"model": means})  # step 2
        models = server.aggregation.centres(replies, "model", means, state.models)  # step 3
        if not (replies.samples > 1).any():
            return replace(state, models=models)
        mean, variances = yield from estimate_departures(replies, means, state.models, server, self.shrink)
        return replace(state, models=models, mean=mean, variances=variances)

    def final_warnings(self, state: HalvesState, server: ServerView, rounds: int) -> list[str]:
        """Say so if all clients are one group; each has its own departure even then."""
        if not state.all_differ:
            return super().final_warnings(state, server, rounds)
        return [
            f"everybody differs (p = {state.p:.3g}): the clients form no groups large enough to be tested, so they "
            "are one group, from which each departs"
        ]

    def assignment(self, state: HalvesState, server: ServerView) -> Assignment:
        groups = state.groups if len(state.models) > 1 else np.zeros(server.n, np.int64)
        return Assignment(state.models, groups, own="personal")
