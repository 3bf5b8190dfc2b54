"""APFL: adaptive personalised federated learning (Deng, Kamani and Mahdavi, 2020).

https://arxiv.org/abs/2003.13461

Algorithm 1, every round:
    1. The server sends the model W. Each client trains a copy w of it as in FedAvg,
    2. and beside it its own v, inside the mixture v' = alpha v + (1 - alpha) w: v <- v - lr alpha grad F_i(v').
    3. It may learn alpha, too, once a round: alpha <- alpha - lr <v - W, grad F_i(v')>.
    4. It uploads w, and keeps v and alpha. W becomes the mean of the w, weighted by samples.
Clients are served alpha v + (1 - alpha) W; a newcomer is served W.
Decisions where the paper is silent, and cost: docs/methods/apfl.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from coterie.clients.rules.local_and_personal import EvaluateInterpolation, LocalAndPersonalUpdate
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, Send
from coterie.methods.method import Cohort, Needs, ServerView, Split
from coterie.methods.one_model import GlobalState, OneModel, train_model
from coterie.methods.privacy import PrivacySupport
from coterie.methods.registry import METHODS, Grid
from coterie.models.layout import Layout


@METHODS.add("apfl")
@dataclass(frozen=True)
class APFL(OneModel):
    """FedAvg, and for each client a mixture of its model with one of the client's own (Deng et al., 2020).

    The steps are plain SGD, whatever solver the training has; then W is that of FedAvg. With alpha = 0 so is what
    clients are served. Per round: down and up `m P b` bytes (docs/methods/apfl.md).
    """

    family = "personal models"

    alpha: Annotated[
        float, Field(ge=0, le=1, description="share of a client's own model at first"), Grid(0.25, 0.5, 0.75)
    ] = 0.5
    adaptive: Annotated[bool, Field(description="each client learns its own share")] = True

    def amounts_to(self, layout: Layout, rounds: int) -> str:
        return "FedAvg" if self.alpha == 0 and not self.adaptive else ""

    needs = Needs(plain_sgd=True)

    privacy_support = PrivacySupport("", "", "its clients train two models on their samples in a round")

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        rule = LocalAndPersonalUpdate(self.alpha, self.adaptive)
        model, replies = yield from train_model(state.model, cohort, rule)
        if self.adaptive and len(replies):
            yield Log("alpha", float(np.mean(replies.report["alpha"])))
        return GlobalState(model)

    def evaluation(
        self, state: GlobalState, server: ServerView, clients: Ids, split: Split = "test", last: bool = False
    ) -> Exchange:
        return Exchange(clients, EvaluateInterpolation(split), {"model": Send.same(state.model[0], clients)})
