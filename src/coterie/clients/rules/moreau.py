"""pFedMe at the client: a personal model close to a local one, which follows it (docs/methods/pfedme.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.meta import gradient_at
from coterie.clients.rules.minibatch import Samples, minibatch_ranges
from coterie.clients.rules.requests import LocalNetwork, Request, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.clients.rules.training import Training


@dataclass(frozen=True, eq=False)
class MoreauTrain(Request):
    """Training down the Moreau envelope of the loss, `min_theta F(theta) + (lam/2) ||theta - w||^2`.

    Both begin at `start`. On each minibatch theta takes some steps of size personal_lr along
    `grad F(theta) + lam (theta - w)`, and then `w <- w - lr lam (w - theta)`. The steps are plain SGD; weight decay
    is in every gradient. Where personal_lr times lam is above 1 that pull is taken implicitly, and w goes no
    further than theta.

    Answered by `Trained`: the model is w, its loss that of theta, and the extra `personal` is theta.
    """

    start: Tensor
    """The model `[P]` that both begin with."""
    lam: float
    steps: int
    """Steps of theta on a minibatch."""
    lr: float
    personal_lr: float
    purpose: str = "batches"
    """Of the stream that orders the minibatches."""

    def run(self, network: LocalNetwork, samples: Samples, client: Client) -> Trained:
        """Alternate between theta and w, minibatch after minibatch."""
        network.load_for_training(self.start, client, self.purpose)
        rng, training, trainable = client.stream(self.purpose), client.training, network.layout.trainable
        w = trainable.take(self.start).clone()
        theta, loss, strong = w.clone(), float("nan"), self.personal_lr * self.lam > 1
        for _ in range(training.epochs):
            total, seen = w.new_zeros(()), 0
            for batch in network.minibatches(samples, rng, training.batch_size):
                for _ in range(self.steps):
                    g, cost = gradient_at(network, theta, batch, training.weight_decay, leave_mark=True)
                    pull = 0.0 if strong else self.lam
                    theta = theta.add(g.add(theta - w, alpha=pull), alpha=-self.personal_lr)
                    if strong:
                        theta = w + (theta - w) / (1 + self.personal_lr * self.lam)
                w = torch.lerp(w, theta, min(self.lr * self.lam, 1.0))  # at 1 it is theta to the bit
                total += cost * len(batch.labels)
                seen += len(batch.labels)
            loss = float(total) / seen if seen else float("nan")
        model, personal = (trainable.put(network.vector.clone(), values) for values in (w, theta))
        return Trained(model, loss, extras={"personal": personal})

    def backpropagated(self, count: int, training: Training, keep_single: bool) -> int:
        met = sum(b - a for a, b in minibatch_ranges(count, training.batch_size, keep_single))
        return training.epochs * self.steps * met


@rule("moreau-update")
@dataclass(frozen=True)
class MoreauUpdate(Rule):
    """Take pFedMe's steps from the received `model`, send w, and keep theta as `personal` (see `MoreauTrain`)."""

    lam: Annotated[float, Field(gt=0, description="strength of the pull between the two")] = 15.0
    steps: Annotated[int, Field(ge=1, description="steps of the personal model on a minibatch")] = 5
    personal_lr: Annotated[
        float | None, Field(ge=0, description="size of these steps; without it, the round's learning rate")
    ] = None
    uploads, client_state = ("model",), ("personal",)

    def run(self, client: Client, order: Order) -> Work:
        """One local update."""
        lr = client.training.lr_at(client.round)
        personal_lr = lr if self.personal_lr is None else self.personal_lr
        trained: Trained = yield MoreauTrain(order.items["model"].values, self.lam, self.steps, lr, personal_lr)
        kept = {"personal": trained.extras["personal"]}
        return Answer({"model": trained.model}, client_state=kept, report={"train_loss": trained.loss})
