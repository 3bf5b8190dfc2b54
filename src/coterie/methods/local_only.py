"""Local-only training: what a client reaches alone. Also called Standalone and NoFed.

Every round the clients that take part train models of their own. Nothing is sent. A newcomer starts from the common
initial model.
Cost: docs/methods/local-only.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.local_update import TrainOwn
from coterie.methods.catalog import METHODS
from coterie.methods.exchange import Exchange, Ids, Round
from coterie.methods.method import UNKNOWN, Cohort, Method, ServerView, Serving
from coterie.methods.privacy import Covered


@state("local-only")
@dataclass(frozen=True, eq=False)
class LocalOnlyState:
    """Nothing but the common initial model `[1, P]`: every client keeps its own."""

    model: Tensor


@METHODS.add("local-only")
@dataclass(frozen=True)
class LocalOnly(Method[LocalOnlyState]):
    """Every client trains alone on its own data; nothing is ever sent (also: Standalone, NoFed).

    Who takes part in a round trains, as with every other method, so that all have trained for as long; with
    `trains = "everybody"` all do, and R rounds of E epochs make R E epochs (docs/methods/local-only.md).
    """

    trains: Annotated[
        Literal["cohort", "everybody"],
        Field(description="who trains in a round: the clients that take part, or all"),
    ] = "cohort"

    @property
    def own_aggregation(self) -> str:
        return "it averages nothing"

    @property
    def covered(self) -> Covered:
        told = "its clients send nothing that noise could hide"
        return Covered(told, told, samples="")

    def start(self, server: ServerView) -> LocalOnlyState:
        return LocalOnlyState(server.initial(0)[None])

    def round(self, state: LocalOnlyState, cohort: Cohort) -> Round[LocalOnlyState]:
        yield Exchange(cohort.clients if self.trains == "cohort" else cohort.server.everyone, TrainOwn())
        return state

    def serving(self, state: LocalOnlyState, server: ServerView) -> Serving:
        return Serving(state.model, np.arange(server.n), rows=np.zeros(server.n, np.int64), own="model")

    def newcomer(self, state: LocalOnlyState, clients: Ids, server: ServerView) -> Round[Serving]:
        """Serve newcomers the common initial model; they join no group."""
        yield from ()
        nobody = np.full(len(clients), UNKNOWN, np.int64)
        return Serving(state.model, nobody, rows=np.zeros(len(clients), np.int64))
