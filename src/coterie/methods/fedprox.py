"""FedProx: FedAvg with a pull back to the global model (Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127).

Every round:
    1. The server sends the model W.
    2. Each client minimises F_i(w) + (mu/2) ||w - W||^2 and uploads the result.
    3. W becomes the mean of the uploads, weighted by samples.
Decisions where the paper is silent, and cost: docs/methods/fedprox.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from coterie.clients.rules.local_update import LocalUpdate
from coterie.methods.exchange import Exchanges
from coterie.methods.method import Cohort
from coterie.methods.one_model import GlobalState, OneModel, train_model
from coterie.methods.privacy import AVERAGES
from coterie.methods.registry import METHODS, Grid


@METHODS.add("fedprox")
@dataclass(frozen=True)
class FedProx(OneModel):
    """One model, trained under a pull back to it: `F_i(w) + (mu/2) ||w - W||^2` (Li et al., 2020).

    Without a pull this is FedAvg. Per round: down and up `m P b` bytes (docs/methods/fedprox.md).
    """

    family = "regularised"

    mu: Annotated[
        float,
        Field(ge=0, description="strength of the pull"),
        Grid(0.001, 0.01, 0.1, 1.0),
    ] = 0.1

    privacy_support = AVERAGES

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        model, _ = yield from train_model(state.model, cohort, LocalUpdate(), mu=self.mu)
        return GlobalState(model)
