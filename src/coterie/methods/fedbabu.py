"""FedBABU: only the body is trained, under one random head, until each client adapts (Oh, Kim and Yun, ICLR 2022).

https://arxiv.org/abs/2106.06042

Every round:
    1. The server sends the body. The head stays everywhere as it was drawn.
    2. Each client trains the body under that head and uploads it.
    3. The server averages the bodies, all clients alike.
For its evaluation a client trains body and head, or the head alone, on its own data, and forgets the result.
Decisions where the paper is silent, and cost: docs/methods/fedbabu.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coterie.clients.rules.evaluate import AdaptThenEvaluate, factor_after_drops
from coterie.clients.rules.private_layers import FrozenHeadUpdate
from coterie.clients.rules.rule import Rule
from coterie.methods.method import Assignment, Cohort, ServerView, Split
from coterie.methods.privacy import PrivacySupport
from coterie.methods.private_layers import PartlyShared, SharedLayers, select_last_layers
from coterie.methods.registry import METHODS, Grid
from coterie.models.layout import Layout, Part


@METHODS.add("fedbabu")
@dataclass(frozen=True)
class FedBABU(SharedLayers):
    """The body is trained and averaged, all clients alike; the head stays as it was drawn (Oh et al., 2022).

    The authors train with momentum 0.9 and lr 0.1, a tenth of it after half of the rounds, and of that after three
    quarters. Per round: down and up `m b P_body` bytes; a client's first download adds the head.
    """

    family = "personal layers"

    uniform: ClassVar[bool] = True
    head: Annotated[int, Field(ge=1, description="last layers that are never trained")] = 1
    fine_tune: Annotated[
        int, Field(ge=0, description="passes over own data before an evaluation"), Grid(1, 5, 10)
    ] = 5
    adapt: Annotated[
        Literal["all", "head"],
        Field(description="the part that a client trains before an evaluation; FedCR's code has head"),
    ] = "all"
    lr_drops: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(description="rounds after each of which the learning rate is a tenth, as in [50, 75] of 100"),
    ] = ()

    privacy_support = PrivacySupport("", "", "its clients adapt on their samples before they are scored")

    @property
    def rate_drops(self) -> tuple[int, ...]:
        return self.lr_drops

    def shared(self, layout: Layout) -> Part:
        return layout.everything - select_last_layers(layout, self.head, "head", len(layout.layers) - 1)

    def update(self, cohort: Cohort) -> Rule:
        return FrozenHeadUpdate(self.head)

    def settings(self, cohort: Cohort) -> dict[str, NDArray[np.float64]]:
        factor = factor_after_drops(self.lr_drops, cohort.round)
        return {"lr_factor": np.full(len(cohort.clients), factor)}

    def assignment(self, state: PartlyShared, server: ServerView) -> Assignment:
        return Assignment(state.model, np.zeros(server.n, np.int64))

    def measure(self, split: Split, last: bool) -> Rule:
        layers = f"last:{self.head}" if self.adapt == "head" else "all"
        return AdaptThenEvaluate(split, "model", layers=layers, epochs=self.fine_tune, lr_drops=self.lr_drops)
