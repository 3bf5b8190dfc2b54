"""LG-FedAvg: a body of one's own, and a common head (Liang et al., 2020, https://arxiv.org/abs/2001.01523).

The first `pretrain` rounds are FedAvg. Every later round:
    1. The server sends the last `layers` layers. The client lays them over its own model.
    2. It trains all layers together, keeps the result, and uploads the shared layers.
    3. The server averages these, all clients alike.
Decisions where the paper is silent, and cost: docs/methods/lg-fedavg.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from coterie.clients.rules.local_update import LocalUpdate
from coterie.clients.rules.private_layers import PrivateUpdate
from coterie.clients.rules.rule import Rule
from coterie.errors import count_of
from coterie.methods.exchange import Exchanges
from coterie.methods.method import Assignment, Cohort, ServerView
from coterie.methods.one_model import train_model
from coterie.methods.privacy import AVERAGES
from coterie.methods.private_layers import PartlyShared, SharedLayers, select_last_layers
from coterie.methods.registry import METHODS, Grid
from coterie.models.layout import Layout, Part


@METHODS.add("lg-fedavg")
@dataclass(frozen=True)
class LGFedAvg(SharedLayers):
    """The first layers stay with the client, the last ones are averaged, all alike (Liang et al., 2020).

    The first `pretrain` rounds are FedAvg: private layers grow from a model that has been trained, which is
    essential in the authors' protocol. They train with lr 0.1, one epoch and batches of 50.

    Per round: down and up `m b P_top` bytes, and to who starts the private layers once; before that `m P b`
    (docs/methods/lg-fedavg.md).
    """

    family = "personal layers"

    uniform: ClassVar[bool] = True
    layers: Annotated[
        int,
        Field(ge=1, description="last layers that are shared; with all of a network's, nothing is private"),
        Grid(1, 2, 3),
    ] = 2
    pretrain: Annotated[int, Field(ge=0, description="rounds of FedAvg at the beginning"), Grid(0, 5, 10)] = 10

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        found = []
        if self.layers >= len(server.layout.layers):
            found.append(f"layers = {self.layers} shares every layer of this network, so that nothing is private")
        if self.pretrain >= rounds:
            found.append(f"FedAvg takes {count_of(self.pretrain, 'round')} (pretrain); this run has {rounds}")
        return found

    def amounts_to(self, layout: Layout, rounds: int) -> str:
        return "FedAvg" if self.layers >= len(layout.layers) or self.pretrain >= rounds else ""

    privacy_support = AVERAGES

    def shared(self, layout: Layout) -> Part:
        return select_last_layers(layout, self.layers, "layers", len(layout.layers))

    def update(self, cohort: Cohort) -> Rule:
        return PrivateUpdate()

    def assignment(self, state: PartlyShared, server: ServerView) -> Assignment:
        if state.started.any():
            return super().assignment(state, server)
        return Assignment(state.model, np.zeros(server.n, np.int64))

    def round(self, state: PartlyShared, cohort: Cohort) -> Exchanges[PartlyShared]:
        if cohort.round > self.pretrain:
            return (yield from super().round(state, cohort))
        model, _ = yield from train_model(state.model, cohort, LocalUpdate())
        return replace(state, model=model)
