"""kNN-Per: FedAvg, and clients that remember their samples (Marfoq, Neglia, Kameni and Vidal, ICML 2022).

Personalized federated learning through local memorization, https://arxiv.org/abs/2111.09360

Every round:
    1. The server sends the model W. Each client trains it and uploads the result.
    2. W becomes the mean of the uploads, weighted by samples.
A client predicts by (1 - lam) W + lam h: h are the classes of its k samples nearest by the features of W. It finds
its share lam on its own samples. So does a newcomer.
Decisions where the paper is silent, and cost: docs/methods/knn-per.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from coterie.clients.rules.local_update import LocalUpdate
from coterie.methods.exchange import Exchanges, Ids
from coterie.methods.method import Assignment, Cohort, Needs, ServerView
from coterie.methods.one_model import GlobalState, OneModel, train_model
from coterie.methods.privacy import PrivacySupport
from coterie.methods.registry import METHODS, Grid


@METHODS.add("knn-per")
@dataclass(frozen=True)
class KNNPer(OneModel):
    """FedAvg, and beside its model the classes of a client's own samples that are near (Marfoq et al., 2022).

    W is that of FedAvg. Per round: down and up `m P b` bytes (docs/methods/knn-per.md).
    """

    family = "personal models"

    neighbours: Annotated[
        int, Field(ge=1, description="own samples nearest to an input that count (k)"), Grid(5, 10, 20)
    ] = 10

    needs = Needs(classes=True)

    privacy_support = PrivacySupport("", "", "its clients predict by their stored samples")

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        model, _ = yield from train_model(state.model, cohort, LocalUpdate())
        return GlobalState(model)

    def assignment(self, state: GlobalState, server: ServerView) -> Assignment:
        return replace(super().assignment(state, server), neighbours=self.neighbours)

    def newcomer(self, state: GlobalState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Serve newcomers the model, beside which they remember their samples as all do."""
        return replace((yield from super().newcomer(state, clients, server)), neighbours=self.neighbours)
