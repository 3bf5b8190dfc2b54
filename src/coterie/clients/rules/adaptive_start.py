"""FedALA at the client: how much of the global model it takes over, weight by weight (docs/methods/fedala.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.meta import gradient_at
from coterie.clients.rules.minibatch import Samples, minibatch_ranges
from coterie.clients.rules.requests import LocalNetwork, Request, Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.clients.rules.training import Training
from coterie.models.layout import Part

FIRST_PASSES = 11
"""Passes for the weights when a client moves them for the first time: the least that the authors' code takes."""


@dataclass(frozen=True, eq=False)
class AdaptStart(Request):
    """Where local training starts: `own + (received - own) * weights` in `part`, else `received`.

    The weights move on a share of the client's samples, drawn for the round: on each minibatch
    `weights <- weights - eta grad F (received - own)`, cut to 0 ... 1. The gradient is that of the start as it is.

    Answered by `Trained`: the model is the start, the extra `weights` `[P]` is 1 outside `part`.
    """

    own: Tensor
    """The client's model `[P]`."""
    received: Tensor
    """The model for all `[P]`."""
    weights: Tensor
    """At first `[P]`."""
    part: Part
    """Where they move."""
    share: float
    """Of the client's samples, on which they are learnt."""
    eta: float
    """Their learning rate."""
    passes: int
    """Passes over those samples."""

    def run(self, network: LocalNetwork, samples: Samples, client: Client) -> Trained:
        """Move the weights, and the start with them."""
        network.load_for_training(self.received, client, "adaptive start")
        rng, size, part = client.stream("adaptive start"), client.training.batch_size, self.part
        inputs, labels = samples
        picked = torch.from_numpy(np.sort(rng.permutation(len(labels))[: self._count(len(labels))]))
        some = inputs[picked], labels[picked]
        own, received = part.take(self.own), part.take(self.received)
        weights, trainable, loss = part.take(self.weights).clone(), network.layout.trainable, float("nan")
        start = part.put(self.received.clone(), torch.lerp(own, received, weights))
        for _ in range(self.passes):
            for batch in network.minibatches(some, rng, size):
                gradient, cost = gradient_at(network, trainable.take(start), batch, 0.0)
                found = part.take(trainable.put(torch.zeros_like(start), gradient))
                weights = (weights - self.eta * (found * (received - own))).clamp(0, 1)
                part.put(start, torch.lerp(own, received, weights))
                loss = float(cost)
        extras = {"weights": part.put(torch.ones_like(start), weights)}
        return Trained(start, loss, extras=extras)

    def backpropagated(self, count: int, training: Training, keep_single: bool) -> int:
        met = minibatch_ranges(self._count(count), training.batch_size, keep_single)
        return self.passes * sum(b - a for a, b in met)

    def _count(self, samples: int) -> int:
        return int(self.share * samples)


@rule("adaptive-start-update")
@dataclass(frozen=True)
class AdaptiveStartUpdate(Rule):
    """Train from what `AdaptStart` makes of the received `model` and the client's own; keep and send the result.

    The first time the client has no model of its own, and trains from what it received.
    """

    layers: Annotated[int, Field(ge=1, description="last layers that are taken over weight by weight")] = 1
    share: Annotated[float, Field(gt=0, le=1, description="share of the samples that decide")] = 0.8
    eta: Annotated[float, Field(ge=0, description="step of the weights")] = 1.0
    uploads, client_state = ("model",), ("model", "weights")

    def run(self, client: Client, order: Order) -> Work:
        """One local update."""
        received = start = order.items["model"].values
        keep: dict[str, Tensor | None] = {}
        if "model" in client.state:
            part = client.layout.last_layers(self.layers) & client.layout.trainable
            weights = client.state.get("weights")
            adapted: Trained = yield AdaptStart(
                client.state["model"],
                received,
                torch.ones_like(received) if weights is None else weights,
                part,
                self.share,
                self.eta,
                FIRST_PASSES if weights is None else 1,
            )
            start, keep = adapted.model, {"weights": adapted.extras["weights"]}
        trained: Trained = yield Train(start)
        keep["model"] = trained.model
        return Answer({"model": trained.model}, client_state=keep, report={"train_loss": trained.loss})
