"""FedAvg: one model for everybody."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.clients.local import LocalUpdate
from coterie.exchange import Exchange, Ids, Replies, Round, Send
from coterie.methods.catalog import METHODS
from coterie.methods.method import Cohort, Method, People, Serving
from coterie.sharing.aggregate import mean


@dataclass(frozen=True, eq=False)
class FedAvgState:
    """The global model `[1, P]`."""

    model: Tensor


@METHODS.add("fedavg")
@dataclass(frozen=True)
class FedAvg(Method[FedAvgState]):
    """One model for all clients, the weighted mean of what they trained (McMahan et al., 2017).

    Per round: down and up `m P b` bytes (specification 6.2).
    """

    weights: Annotated[
        Literal["samples", "uniform"], Field(description="a client's weight in the mean: its samples, or 1")
    ] = "samples"

    def start(self, people: People) -> FedAvgState:
        return FedAvgState(people.initial(0)[None])

    def round(self, state: FedAvgState, cohort: Cohort) -> Round[FedAvgState]:
        replies: Replies = yield Exchange(
            cohort.clients, LocalUpdate(), {"model": Send.same(state.model[0], cohort.clients)}
        )
        weights = replies.samples if self.weights == "samples" else None
        return replace(state, model=mean(replies.models, state.model, weights))

    def serving(self, state: FedAvgState, people: People) -> Serving:
        return Serving(state.model, np.zeros(people.n, np.int64))

    def newcomer(self, state: FedAvgState, clients: Ids, people: People) -> Round[tuple[NDArray[np.int64], Tensor]]:
        """Everybody joins the one group there is."""
        yield from ()
        return np.zeros(len(clients), np.int64), state.model
