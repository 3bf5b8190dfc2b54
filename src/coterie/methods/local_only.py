"""Local-only training: what a client reaches alone. Also called Standalone and NoFed.

Every round the clients that take part train models of their own. Nothing is sent. A newcomer starts from the common
initial model.
Cost: docs/methods/local-only.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.local_update import TrainOwn
from coterie.methods.exchange import Exchange, Exchanges, Ids
from coterie.methods.method import UNKNOWN, Assignment, Cohort, Method, ServerView
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS


@state("local-only")
@dataclass(frozen=True, eq=False)
class LocalOnlyState:
    """Nothing but the common initial model `[1, P]`: every client keeps its own."""

    model: Tensor


@METHODS.add("local-only")
@dataclass(frozen=True)
class LocalOnly(Method[LocalOnlyState]):
    """Every client trains alone on its own data; nothing is ever sent (also: Standalone, NoFed).

    Who takes part in a round trains, as with every other method, so that all have trained for as long
    (docs/methods/local-only.md).
    """

    family = "personal models"

    own_aggregation = "it averages nothing"

    privacy_support = replace(hides_nothing("its clients send nothing that noise could hide"), samples="")

    def start(self, server: ServerView) -> LocalOnlyState:
        return LocalOnlyState(server.initial(0)[None])

    def round(self, state: LocalOnlyState, cohort: Cohort) -> Exchanges[LocalOnlyState]:
        yield Exchange(cohort.clients, TrainOwn())
        return state

    def assignment(self, state: LocalOnlyState, server: ServerView) -> Assignment:
        return Assignment(state.model, np.arange(server.n), rows=np.zeros(server.n, np.int64), own="model")

    def newcomer(self, state: LocalOnlyState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Serve newcomers the common initial model; they join no group."""
        yield from ()
        nobody = np.full(len(clients), UNKNOWN, np.int64)
        return Assignment(state.model, nobody, rows=np.zeros(len(clients), np.int64))
