"""Halves: one-shot groups by a test on halves of every client's data, as many as there are; then FedAvg in each.

A method of Coterie's own; the test is that of `coterie diagnose` (docs/diagnose.md).

Round 1, before anything is trained:
    1. From each of V initial models, each client trains for some steps on either half of its samples, and sends the
       two directions.
    2. Where own halves are nearer to each other than halves paired at random, clients are no draws from one
       population, and are divided; so on within each part (`grouping.halves`). What does not reject is a group.
Every round, that one too:
    3. Each client trains the model of its group. One that was not placed in round 1 joins the group whose model has
       the smallest loss on its data, as soon as models differ.
    4. A group's model becomes the mean of what its clients trained, weighted by samples.
Where nothing rejects, this is FedAvg. Decisions, and cost: docs/methods/halves.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.errors import count_of
from coterie.grouping.halves import LEAST, common_half, find_groups
from coterie.methods.exchange import Exchanges, Log
from coterie.methods.k_models import ServesGroups, place_by_loss, train_groups
from coterie.methods.method import UNKNOWN, Cohort, Needs, ServerView
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS, Grid
from coterie.methods.split_halves import gather_halves


@state("halves")
@dataclass(frozen=True, eq=False)
class HalvesState:
    """What the server remembers."""

    models: Tensor  # [K, P], of the groups
    groups: NDArray[np.int64]  # [n], -1 for a client that was not placed yet
    p: float | None  # the p-value of all clients together; None before they were tested
    all_differ: bool  # whether no groups describe the clients


@METHODS.add("halves")
@dataclass(frozen=True)
class Halves(ServesGroups[HalvesState]):
    """One-shot groups, as many as an exact test on halves of the clients' data finds; FedAvg in each.

    Per round: down and up `m P b` bytes; the first one also `V n P b` down and `2 V n P b` up
    (of models of more than 262,144 parameters, 8,192 numbers a direction).
    """

    family = "clustered, one-shot"

    alpha: Annotated[
        float,
        Field(gt=0, lt=1, description="error level: how often clients of one population may be divided"),
        Grid(0.01, 0.05),
    ] = 0.05
    differing: Annotated[
        Literal["together", "alone"],
        Field(description="if everybody differs: one model for all, or each client trains alone"),
    ] = "together"
    starts: Annotated[
        int, Field(ge=1, le=1000, description="initial models from which halves are compared (V)")
    ] = 4

    needs = Needs(models="its server compares directions from halves of single clients' samples")

    privacy_support = hides_nothing(
        "its server compares directions from halves of single clients' samples",
        "its clients send directions from halves of their samples",
    )

    def start(self, server: ServerView) -> HalvesState:
        return HalvesState(server.initial(0)[None], np.full(server.n, UNKNOWN, np.int64), None, False)

    def round(self, state: HalvesState, cohort: Cohort) -> Exchanges[HalvesState]:
        clients, server = cohort.clients, cohort.server
        if state.p is None:
            state = yield from self.find_groups_of(state, cohort)
        else:
            state = replace(state, groups=(yield from place_by_loss(state.models, state.groups, clients)))
        groups = state.groups if len(state.models) > 1 else np.zeros(server.n, np.int64)
        models = yield from train_groups(state.models, groups, clients, server)  # steps 3 and 4
        return replace(state, models=models)

    def find_groups_of(self, state: HalvesState, cohort: Cohort) -> Exchanges[HalvesState]:
        """Test all clients and divide them (steps 1 and 2); too few answers leave that to the next round."""
        server = cohort.server
        gathered = yield from gather_halves(server.everyone, server, self.starts)
        if gathered.tested.sum() < LEAST <= server.n and gathered.size:
            return state
        rng = server.stream("pairings", cohort.round)
        found = find_groups(gathered.products, self.alpha, rng, tested=gathered.tested)
        p = found.tests[0].p if found.tests else 1.0
        yield Log("p-value of one population", p)
        if found.count <= 1 or (found.all_differ and self.differing == "together"):
            return replace(state, groups=np.zeros(server.n, np.int64), p=p, all_differ=found.all_differ)
        groups = np.full(server.n, UNKNOWN, np.int64)
        groups[gathered.clients] = found.labels
        models = state.models.repeat(found.count, 1)
        return replace(state, models=models, groups=groups, p=p, all_differ=found.all_differ)

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Say so if clients are too few, or have too few samples, to be tested."""
        if server.n < LEAST:
            return [f"{count_of(server.n, 'client')} cannot be tested, so they are one group; a test needs {LEAST}"]
        if not common_half(server.samples):
            return ["more than a fifth of the clients have one sample or none, so all clients are one group"]
        return []

    def final_warnings(self, state: HalvesState, server: ServerView, rounds: int) -> list[str]:
        """Say so if all clients are one group, and how near they came to being divided."""
        if state.p is None:
            return [
                f"no round had answers from {LEAST} clients, so nobody was tested and all clients are one group"
            ]
        if state.all_differ:
            what = "have one model" if self.differing == "together" else "train alone"
            return [
                f"everybody differs (p = {state.p:.3g}): the clients form no groups large enough to be tested, "
                f"so they {what}; a method that gives each client a part of its own may suit them better"
            ]
        if len(state.models) > 1:
            return []
        return [
            f"all clients are one group: their halves do not tell them apart (p = {state.p:.3g}); method.alpha = "
            f"{state.p:.3g} would have divided them"
        ]
