"""FedPer: a common body, and a head of one's own (Arivazhagan et al., 2019, https://arxiv.org/abs/1912.00818).

Every round:
    1. The server sends all but the last `private` layers. The client lays them over its own model.
    2. It trains all layers together, keeps the result, and uploads the shared layers.
    3. The server averages these, weighted by samples.
Decisions where the paper is silent, and cost: docs/methods/fedper.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from coterie.clients.rules.private_layers import PrivateUpdate
from coterie.clients.rules.rule import Rule
from coterie.methods.method import Cohort
from coterie.methods.privacy import AVERAGES
from coterie.methods.private_layers import SharedLayers, select_last_layers
from coterie.methods.registry import METHODS, Grid
from coterie.models.layout import Layout, Part


@METHODS.add("fedper")
@dataclass(frozen=True)
class FedPer(SharedLayers):
    """A private head over an averaged body, trained together (Arivazhagan et al., 2019).

    With all layers private every client trains alone. Per round: down and up `m b P_shared` bytes, and to who
    starts the private layers once (docs/methods/fedper.md).
    """

    family = "personal layers"

    private: Annotated[
        int, Field(ge=1, description="last layers that stay private to each client (K_P)"), Grid(1, 2, 3)
    ] = 1

    privacy_support = AVERAGES

    def shared(self, layout: Layout) -> Part:
        return layout.everything - select_last_layers(layout, self.private, "private", len(layout.layers))

    def amounts_to(self, layout: Layout, rounds: int) -> str:
        return "training alone" if self.private >= len(layout.layers) else ""

    def update(self, cohort: Cohort) -> Rule:
        return PrivateUpdate()
