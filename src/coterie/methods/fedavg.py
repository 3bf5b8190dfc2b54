"""FedAvg: one model for everybody (McMahan, Moore, Ramage, Hampson and Agüera y Arcas, AISTATS 2017).

https://arxiv.org/abs/1602.05629

Every round:
    1. The server sends the model W.
    2. Each client trains it on its own data and uploads the result.
    3. W becomes the mean of the uploads, weighted by samples.
Cost: docs/methods/fedavg.md
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
from coterie.methods.registry import METHODS


@METHODS.add("fedavg")
@dataclass(frozen=True)
class FedAvg(OneModel):
    """One model for all clients, the weighted mean of what they trained (McMahan et al., 2017).

    Per round: down and up `m P b` bytes (docs/methods/fedavg.md).
    """

    family = "one model"

    weights: Annotated[
        Literal["samples", "uniform"], Field(description="a client's weight in the mean: its samples, or 1")
    ] = "samples"

    privacy_support = AVERAGES

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        model, _ = yield from train_model(state.model, cohort, LocalUpdate(), self.weights == "uniform")
        return GlobalState(model)
