"""SCAFFOLD at the client: training held to everybody's direction (docs/methods/scaffold.md)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import minibatch_ranges
from coterie.clients.rules.requests import Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule


@rule("control-variate-update")
@dataclass(frozen=True)
class ControlVariateUpdate(Rule):
    """Train the received `model` x in the direction `grad F_i(y) - c_i + c`, c being the received `control`.

    With K steps to the result y, `c_i` becomes `c_i - c + (x - y) / (K lr)`; it stays with the client, and is 0 at
    first. What it gained crosses as `control`; 0 in running statistics, and where no step was taken. The steps are
    plain SGD: of those of momentum or Adam, x - y tells no mean gradient.
    """

    uploads, client_state = ("model", "control"), ("control",)

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the trained `model` and the gain of the client's `control`, both `[P]`."""
        x, training, signal = order.items["model"].values, client.training, client.layout.trainable
        nothing = torch.zeros_like(x)
        own, common = client.state.get("control", nothing), order.items["control"].onto(nothing)
        correction = common - own
        # What changes nothing is left out, so that the steps are those of FedAvg in every engine.
        linear = correction if correction.any() else None
        plain = training.optimizer != "sgd" or training.momentum > 0
        trained: Trained = yield Train(x, linear=linear, plain=plain)
        minibatches = minibatch_ranges(client.samples, training.batch_size, keep_single=not client.layout.buffers)
        way = training.epochs * len(minibatches) * training.lr_at(client.round)
        gain = signal.copy(nothing.clone(), (x - trained.model) / way - common) if way else nothing
        report = {"train_loss": trained.loss}
        return Answer(
            {"model": trained.model, "control": gain}, client_state={"control": own + gain}, report=report
        )
