"""FedRep: a common body and private heads, trained in turn (Collins et al., ICML 2021).

Exploiting shared representations for personalised federated learning, https://arxiv.org/abs/2102.07078

Every round:
    1. The server sends the body. The client lays it over its own model.
    2. The client trains its head for `head_epochs` with the body frozen,
    3. then the body for `body_epochs` with the head frozen, and uploads the body.
    4. The server averages the bodies, weighted by samples.
Before the last evaluation every client trains its head once more.
Decisions where the paper is silent, and cost: docs/methods/fedrep.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from coterie.clients.rules.evaluate import AdaptThenEvaluate
from coterie.clients.rules.private_layers import AlternatingUpdate
from coterie.clients.rules.rule import Rule
from coterie.methods.fedper import FedPer
from coterie.methods.method import Cohort, Split
from coterie.methods.privacy import PrivacySupport
from coterie.methods.registry import METHODS, Grid


@METHODS.add("fedrep")
@dataclass(frozen=True)
class FedRep(FedPer):
    """A common body and private heads, trained one after the other (Collins et al., 2021).

    In a round a client trains its head for `head_epochs` with the body frozen, then the body for `body_epochs` with
    the head frozen; `training.epochs` plays no part. The authors train with lr 0.01, momentum 0.5 and batches of
    10.

    Bytes as for FedPer (docs/methods/fedrep.md).
    """

    family = "personal layers"

    head_epochs: Annotated[int, Field(ge=0, description="passes for the head (E_h)"), Grid(1, 5, 10)] = 10
    body_epochs: Annotated[int, Field(ge=0, description="passes for the body (E_b)"), Grid(1, 5)] = 1

    privacy_support = PrivacySupport("", "", "its clients train twice in a round")

    def update(self, cohort: Cohort) -> Rule:
        return AlternatingUpdate(self.private, self.head_epochs, self.body_epochs)

    def measure(self, split: Split, last: bool) -> Rule:
        if last:
            return AdaptThenEvaluate(split, "model", f"last:{self.private}", self.head_epochs)
        return super().measure(split, last)
