"""Rules with one model and one training phase."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.clients.rule import Answer, Client, Order, Rule, Work, rule
from coterie.clients.work import Train


@rule("local-update")
@dataclass(frozen=True)
class LocalUpdate(Rule):
    """Train from the received `model` and send the result back.

    The server may tell `mu`: the strength of the pull back to the received model, as in
    `F_i(w) + (mu/2) ||w - W||^2`. Without it, or with 0, this is plain local SGD (FedAvg).
    """

    sends = ("model",)

    def run(self, me: Client, got: Order) -> Work:
        """One local update."""
        trained = yield Train(got.items["model"].values, pull=got.told.get("mu", 0.0))
        return Answer(send={"model": trained.model}, report={"train_loss": trained.loss})


@rule("train-own")
@dataclass(frozen=True)
class TrainOwn(Rule):
    """Train the client's own model, which nobody else ever sees; the first time from the common initial model."""

    keeps = ("model",)

    def run(self, me: Client, got: Order) -> Work:
        """One local update of the client's own model."""
        own = me.state["model"] if "model" in me.state else me.initial()
        trained = yield Train(own)
        return Answer(keep={"model": trained.model}, report={"train_loss": trained.loss})
