"""FedALA: adaptive local aggregation (Zhang, Hua, Wang, Song, Xue, Ma and Guan, AAAI 2023).

https://arxiv.org/abs/2212.01197

Every round:
    1. The server sends the model W. Client i has its own model w_i of its last round, and weights a_i, at first 1.
    2. It moves a_i on some of its samples, by the gradient at w_i + (W - w_i) a_i, and cuts them to 0 ... 1.
    3. It starts from w_i + (W - w_i) a_i in the last layers, and from W in all others, and trains.
    4. It keeps the result and uploads it. W becomes the mean, weighted by samples.
Clients are served their own models; a newcomer is served W.
Decisions where the paper is silent, and cost: docs/methods/fedala.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from coterie.clients.rules.adaptive_start import AdaptiveStartUpdate
from coterie.methods.exchange import Exchanges
from coterie.methods.method import Cohort, ServerView
from coterie.methods.one_model import GlobalState, OneModel, train_model
from coterie.methods.privacy import PrivacySupport
from coterie.methods.private_layers import select_last_layers
from coterie.methods.registry import METHODS, Grid


@METHODS.add("fedala")
@dataclass(frozen=True)
class FedALA(OneModel):
    """FedAvg whose clients start from their own last layers, moved to the global ones as far as it helps (2023).

    With `eta = 0` clients take all of it over, and W is FedAvg's. Per round: down and up `m P b` bytes
    (docs/methods/fedala.md).
    """

    family = "personal models"
    own = "model"

    layers: Annotated[
        int, Field(ge=1, description="last layers that are taken over weight by weight (p)"), Grid(1, 2)
    ] = 1
    share: Annotated[
        float, Field(gt=0, le=1, description="share of a client's samples that the weights are learnt from (s)")
    ] = 0.8
    eta: Annotated[float, Field(ge=0, description="step of the weights"), Grid(0.1, 1.0)] = 1.0

    privacy_support = PrivacySupport("", "", "its clients look at their samples before they train")

    def start(self, server: ServerView) -> GlobalState:
        """Start as FedAvg does.

        Raises:
            BadInput: the network has too few layers.
        """
        select_last_layers(server.layout, self.layers, "layers", len(server.layout.layers))
        return super().start(server)

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        model, _ = yield from train_model(
            state.model, cohort, AdaptiveStartUpdate(self.layers, self.share, self.eta)
        )
        return GlobalState(model)
