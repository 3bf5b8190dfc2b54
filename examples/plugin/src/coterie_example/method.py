"""FedAvg with momentum on the server (Hsu et al., 2019), whose clients train on a focal loss (Lin et al., 2017).

https://arxiv.org/abs/1909.06335, https://arxiv.org/abs/1708.02002

Every round:
    1. The server sends the model W.
    2. Each client trains it on the focal loss, which looks away from samples that are easy, and uploads the result.
    3. v becomes momentum * v + (W - the mean of the uploads), and W becomes W - v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.catalogue import state
from coterie.clients.rules import (
    Answer,
    Batch,
    Client,
    LocalModel,
    Objective,
    Order,
    Rule,
    Train,
    Work,
    objective,
    rule,
)
from coterie.clients.rules.objective import Extras
from coterie.grouping.aggregate import mean
from coterie.methods import Assignment, Cohort, Method, ServerView
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send


@objective("example-focal")
@dataclass(frozen=True)
class Focal(Objective):
    """Cross-entropy in which a sample counts less the surer the model is of it."""

    gamma: Annotated[float, Field(ge=0)] = 2.0

    def loss(self, model: LocalModel, batch: Batch, extras: Extras) -> Tensor:
        each = cross_entropy(model(batch.inputs), batch.labels, reduction="none")
        return batch.mean((1 - torch.exp(-each)) ** self.gamma * each)


@rule("example-focal-update")
@dataclass(frozen=True)
class FocalUpdate(Rule):
    """Train from the received `model` on the focal loss and send the result back."""

    gamma: Annotated[float, Field(ge=0)] = 2.0
    uploads, writes = ("model",), False

    def run(self, client: Client, order: Order) -> Work:
        """One local update."""
        trained = yield Train(order.items["model"].values, objective=Focal(self.gamma))
        return Answer(uploads={"model": trained.model}, report={"train_loss": trained.loss})


@state("example-momentum")  # the name by which checkpoints know it, wherever the class moves
@dataclass(frozen=True, eq=False)
class Momentum:
    """The model and its velocity, each `[1, P]`."""

    model: Tensor
    velocity: Tensor


@dataclass(frozen=True)
class FedAvgMFocal(Method[Momentum]):
    """One model for all, moved by a velocity, from clients that train on a focal loss (Hsu et al., 2019)."""

    momentum: Annotated[float, Field(ge=0, lt=1, description="share of the velocity that is kept")] = 0.5
    gamma: Annotated[
        float, Field(ge=0, description="0 is the cross-entropy; the higher, the less count easy ones")
    ] = 2.0

    def start(self, server: ServerView) -> Momentum:
        model = server.initial(0)[None]
        return Momentum(model, torch.zeros_like(model))

    def round(self, state: Momentum, cohort: Cohort) -> Exchanges[Momentum]:
        everybody = {"model": Send.same(state.model[0], cohort.clients)}
        replies: Replies = yield Exchange(cohort.clients, FocalUpdate(self.gamma), everybody)
        step = state.model - mean(replies.models, state.model, replies.samples)
        velocity = self.momentum * state.velocity + step
        return Momentum(state.model - velocity, velocity)

    def assignment(self, state: Momentum, server: ServerView) -> Assignment:
        return Assignment(state.model, np.zeros(server.n, np.int64))

    def newcomer(self, state: Momentum, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Serve newcomers the one model."""
        yield from ()
        return Assignment(state.model, np.zeros(len(clients), np.int64))
