"""FedSGD: one gradient a client, one step a round (McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629).

Every round:
    1. The server sends the model W.
    2. Each client uploads one gradient, of a minibatch or of all its data.
    3. W <- W - lr * the mean of the gradients, weighted by samples
Decisions where the paper is silent, and cost: docs/methods/fedsgd.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field

from coterie.clients.rules.gradient import SendGradient
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Replies, Send
from coterie.methods.method import Cohort, Needs
from coterie.methods.one_model import GlobalState, OneModel
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS, Grid


@METHODS.add("fedsgd")
@dataclass(frozen=True)
class FedSGD(OneModel):
    """One gradient from each client, and one step of the server along their mean (McMahan et al., 2017).

    `W <- W - lr sum_i (n_i / sum n) grad F_i(W)`: on all data, FedAvg with one full-batch local step. The step is
    the server's own, so of the training settings only the batch size counts. Running statistics are averaged.

    Per round: down and up `m P b` bytes (docs/methods/fedsgd.md).
    """

    family = "one model"

    lr: Annotated[
        float,
        Field(gt=0, description="the server's learning rate; training.lr has no effect"),
        Grid(0.001, 0.005, 0.01, 0.05, 0.1, 0.5),
    ] = 0.01
    batch: Annotated[
        Literal["minibatch", "all"], Field(description="samples of a gradient: one minibatch, or all of a client's")
    ] = "all"

    own_step = "its server takes a step of its own along the mean gradient"

    needs = Needs(plain_sgd=True)

    privacy_support = hides_nothing(
        "its clients send gradients, and noise is for models",
        samples="its clients send the gradient of their samples as it is",
    )

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        clients, layout = cohort.clients, cohort.server.layout
        send = {"model": Send.same(state.model[0], clients)}
        mean = Reduce.mean(clients, cohort.server.samples[clients], is_model=False)
        replies: Replies = yield Exchange(clients, SendGradient(self.batch), send, reduce={"gradient": mean})
        if not len(replies):
            return state
        gradient = cohort.server.aggregation.centres(replies, "gradient", mean, torch.zeros_like(state.model))
        model = (state.model.double() - self.lr * gradient.double()).float()
        return GlobalState((layout.everything - layout.trainable).copy(model, gradient))
