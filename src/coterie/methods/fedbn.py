"""FedBN: normalisation layers of one's own (Li, Jiang, Zhang, Kamp and Dou, ICLR 2021).

Federated learning on non-IID features via local batch normalization, https://arxiv.org/abs/2102.07623

Every round:
    1. The server sends all but the normalisation layers. The client lays them over its own model.
    2. It trains all layers together, keeps the result, and uploads the shared layers.
    3. The server averages these, all clients alike.
Decisions where the paper is silent, and cost: docs/methods/fedbn.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.clients.rules.private_layers import PrivateUpdate
from coterie.clients.rules.rule import Rule
from coterie.methods.method import Cohort, ServerView
from coterie.methods.privacy import AVERAGES
from coterie.methods.private_layers import SharedLayers
from coterie.methods.registry import METHODS
from coterie.models.layout import Layout, Part


@METHODS.add("fedbn")
@dataclass(frozen=True)
class FedBN(SharedLayers):
    """One model but for its normalisation layers, which each client keeps (Li et al., 2021).

    In a network without any this is FedAvg with uniform weights. Per round: down and up `m b P_shared` bytes, and
    to who starts the normalisation layers once (docs/methods/fedbn.md).
    """

    family = "personal layers"

    uniform: ClassVar[bool] = True

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        nothing = "this network has no normalisation layer, so that nothing is private"
        return [nothing] if self.amounts_to(server.layout, rounds) else []

    def amounts_to(self, layout: Layout, rounds: int) -> str:
        return "" if layout.of_kind("norm") else "FedAvg"

    privacy_support = AVERAGES

    def shared(self, layout: Layout) -> Part:
        return layout.everything - layout.of_kind("norm")

    def update(self, cohort: Cohort) -> Rule:
        return PrivateUpdate()
