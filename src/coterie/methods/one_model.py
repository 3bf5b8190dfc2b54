"""What methods with one model for everybody share: the state, and that all clients are served it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

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


class HasModel(Protocol):
    """A state with a model for everybody `[1, P]`."""

    @property
    def model(self) -> Tensor: ...


M = TypeVar("M", bound=HasModel)


class ServesOneModel(Method[M]):
    """A method with one model among what it remembers, which is served to everybody."""

    def assignment(self, state: M, server: ServerView) -> Assignment:
        return Assignment(state.model, np.zeros(server.n, np.int64))

    def newcomer(self, state: M, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Serve newcomers the one model."""
        yield from ()
        return Assignment(state.model, np.zeros(len(clients), np.int64))


class OneModel(ServesOneModel[GlobalState]):
    """A method that remembers one model and nothing else."""

    def start(self, server: ServerView) -> GlobalState:
        return GlobalState(server.initial(0)[None])
