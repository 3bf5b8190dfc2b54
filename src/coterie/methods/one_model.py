"""What methods with one model for everybody share: the state, and that all clients are served it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from coterie.catalogue import state
from coterie.methods.exchange import Exchanges, Ids
from coterie.methods.method import Assignment, Method, ServerView


@state("global-model")
@dataclass(frozen=True, eq=False)
class GlobalState:
    """The global model `[1, P]`."""

    model: Tensor


class OneModel(Method[GlobalState]):
    """A method whose state is one model, which is served to everybody."""

    def start(self, server: ServerView) -> GlobalState:
        return GlobalState(server.initial(0)[None])

    def assignment(self, state: GlobalState, server: ServerView) -> Assignment:
        return Assignment(state.model, np.zeros(server.n, np.int64))

    def newcomer(self, state: GlobalState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Serve newcomers the one model."""
        yield from ()
        return Assignment(state.model, np.zeros(len(clients), np.int64))
