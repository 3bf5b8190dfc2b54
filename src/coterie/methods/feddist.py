"""FedDist: the server goes part of the way to the mean (Reptile: Nichol, Achiam and Schulman, 2018).

https://arxiv.org/abs/1803.02999. The names are those of FeSEM's tables.

Every round:
    1. The server sends the model W; each client trains it and uploads w_i.
    2. W <- W - kappa sum_i p_i (W - w_i)
Decisions where the papers are silent, and cost: docs/methods/feddist.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from coterie.clients.rules.local_update import LocalUpdate
from coterie.methods.exchange import Exchanges
from coterie.methods.method import Cohort
from coterie.methods.one_model import GlobalState, OneModel, train_model
from coterie.methods.privacy import AVERAGES
from coterie.methods.registry import METHODS, Grid


@METHODS.add("feddist")
@dataclass(frozen=True)
class FedDist(OneModel):
    """A step of the server towards what the clients trained (Reptile: Nichol et al., 2018).

    `W <- W - kappa sum_i p_i (W - w_i)` over the m clients that answered. With `weights="samples"` this is
    FedDist+WS, and with `kappa=1` as well FedAvg.

    Per round: down and up `m P b` bytes (docs/methods/feddist.md).
    """

    family = "one model"

    weights: Annotated[
        Literal["uniform", "samples"],
        Field(description="a client's share p_i: 1 / m (FedDist), or that of its samples (FedDist+WS)"),
    ] = "uniform"
    kappa: Annotated[float, Field(gt=0, description="the server's step"), Grid(0.2, 0.4, 0.6, 0.8, 1.0)] = 0.6

    own_step = "its server takes a step of its own (kappa)"

    privacy_support = AVERAGES

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        reached, _ = yield from train_model(state.model, cohort, LocalUpdate(), self.weights == "uniform")
        # In this form a step of 1 gives the mean to the bit.
        return GlobalState(((1 - self.kappa) * state.model.double() + self.kappa * reached.double()).float())
