"""APFL at the client: a local model, and a personal one that is trained inside a mixture (docs/methods/apfl.md)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.evaluate import Evaluate
from coterie.clients.rules.meta import gradient_at
from coterie.clients.rules.minibatch import Samples, minibatch_ranges
from coterie.clients.rules.requests import LocalNetwork, Request, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.clients.rules.training import Training
from coterie.models.layout import Layout

ALPHA = {"alpha": (1,)}
"""The shape of what a client keeps beside models."""


@dataclass(frozen=True, eq=False)
class LocalAndPersonalTrain(Request):
    """Training of w, and beside it of v inside the mixture `v' = alpha v + (1 - alpha) w`.

    On each minibatch `w <- w - lr grad F(w)` and `v <- v - lr alpha grad F(v')`, both from the values before. Where
    alpha adapts, on the first, with w as it was received, also `alpha <- alpha - lr <v - w, grad F(v')>`, cut to
    0 ... 1. The steps are plain SGD; weight decay is in every gradient.

    Answered by `Trained`: the model is w, and so is the loss; the extras are `personal`, v, and `alpha` `[1]`.
    """

    start: Tensor
    """w at first, `[P]`."""
    personal: Tensor
    """v at first, `[P]`."""
    alpha: float
    adapts: bool
    lr: float
    purpose: str = "batches"
    """Of the stream that orders the minibatches."""

    def run(self, network: LocalNetwork, samples: Samples, client: Client) -> Trained:
        """Step with w, v and perhaps alpha, minibatch after minibatch."""
        network.load_for_training(self.start, client, self.purpose)
        rng, training, trainable = client.stream(self.purpose), client.training, network.layout.trainable
        w, v, alpha = trainable.take(self.start).clone(), trainable.take(self.personal).clone(), self.alpha
        loss, adapts = float("nan"), self.adapts
        for _ in range(training.epochs):
            total, seen = w.new_zeros(()), 0
            for batch in network.minibatches(samples, rng, training.batch_size):
                g, cost = gradient_at(network, w, batch, training.weight_decay, leave_mark=True)
                if alpha or adapts:
                    mixed, _ = gradient_at(network, torch.lerp(w, v, alpha), batch, training.weight_decay)
                    apart = float((v - w).double() @ mixed.double())
                    v = v.add(mixed, alpha=-self.lr * alpha)
                    alpha, adapts = min(max(alpha - self.lr * apart, 0.0), 1.0) if adapts else alpha, False
                w = w.add(g, alpha=-self.lr)
                total += cost * len(batch.labels)
                seen += len(batch.labels)
            loss = float(total) / seen if seen else float("nan")
        model, personal = (trainable.put(network.vector.clone(), values) for values in (w, v))
        return Trained(model, loss, extras={"personal": personal, "alpha": torch.tensor([alpha])})

    def backpropagated(self, count: int, training: Training, keep_single: bool) -> int:
        met = sum(b - a for a, b in minibatch_ranges(count, training.batch_size, keep_single))
        return training.epochs * (2 if self.alpha or self.adapts else 1) * met


@rule("local-and-personal-update")
@dataclass(frozen=True)
class LocalAndPersonalUpdate(Rule):
    """Train the received `model` and send it; keep the `personal` one and `alpha` (see `LocalAndPersonalTrain`)."""

    alpha: Annotated[float, Field(ge=0, le=1, description="share of the personal model at first")] = 0.5
    adapts: Annotated[bool, Field(description="whether the client learns its own share")] = True
    uploads, client_state = ("model",), ("personal", "alpha")

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return ALPHA

    def run(self, client: Client, order: Order) -> Work:
        """One local update; report the share as `alpha`."""
        personal = client.state.get("personal", client.initial())
        alpha = float(client.state["alpha"]) if self.adapts and "alpha" in client.state else self.alpha
        lr = client.training.lr_at(client.round)
        trained: Trained = yield LocalAndPersonalTrain(
            order.items["model"].values, personal, alpha, self.adapts, lr
        )
        report = {"train_loss": trained.loss, "alpha": float(trained.extras["alpha"])}
        return Answer({"model": trained.model}, client_state=trained.extras, report=report)


@rule("evaluate-interpolation")
@dataclass(frozen=True)
class EvaluateInterpolation(Evaluate):
    """Score the mixture of the kept `personal` model with the received `model`, by the kept `alpha`.

    Running statistics are those received. A client that keeps none yet is scored with what it received.
    """

    def _model(self, client: Client, order: Order) -> Generator[Request, Any, tuple[Tensor, int | None]]:
        yield from ()
        model = order.items["model"].values
        if "personal" not in client.state:
            return model, None
        part = client.layout.trainable
        mixed = torch.lerp(part.take(model), part.take(client.state["personal"]), float(client.state["alpha"]))
        return part.put(model.clone(), mixed), None
