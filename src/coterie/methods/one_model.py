"""What methods with one model for everybody share: the state, and that all clients are served it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.rule import Rule
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.method import Assignment, Cohort, Method, ServerView


@state("global-model")
@dataclass(frozen=True, eq=False)
class GlobalState:
    """The global model `[1, P]`."""

    model: Tensor


def train_model(
    model: Tensor, cohort: Cohort, rule: Rule, uniform: bool = False, mu: float = 0.0
) -> Exchanges[tuple[Tensor, Replies]]:
    """Let the cohort train `model` `[1, P]` by a rule; return the mean of its uploads, and all that it answered.

    Args:
        model: that everybody is sent.
        cohort: who takes part.
        rule: what each of them does.
        uniform: whether clients count alike in the mean, and not by their samples.
        mu: strength of the pull to the model.
    """
    clients, server = cohort.clients, cohort.server
    mean = Reduce.mean(clients, None if uniform else server.samples[clients])
    send, pull = {"model": Send.same(model[0], clients)}, {"mu": np.full(len(clients), mu)} if mu else {}
    replies: Replies = yield Exchange(clients, rule, send, pull, reduce={"model": mean})
    return server.aggregation.centres(replies, "model", mean, model), replies


class HasModel(Protocol):
    """A state with a model for everybody `[1, P]`."""

    @property
    def model(self) -> Tensor: ...


M = TypeVar("M", bound=HasModel)


class ServesOneModel(Method[M]):
    """A method with one model among what it remembers, which is served to everybody."""

    own: ClassVar[str] = ""
    """The name under which clients keep what they are served in its place; it is for newcomers then."""

    def assignment(self, state: M, server: ServerView) -> Assignment:
        return Assignment(state.model, np.zeros(server.n, np.int64), own=self.own)

    def newcomer(self, state: M, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Serve newcomers the one model."""
        yield from ()
        return Assignment(state.model, np.zeros(len(clients), np.int64))


class OneModel(ServesOneModel[GlobalState]):
    """A method that remembers one model and nothing else."""

    def start(self, server: ServerView) -> GlobalState:
        return GlobalState(server.initial(0)[None])
