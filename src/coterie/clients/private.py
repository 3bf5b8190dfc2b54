"""Rules in which a client keeps a model of its own, of which the server knows a part or nothing."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.clients.rule import Answer, Client, Order, Rule, Work, rule
from coterie.clients.work import Train


def own_model(me: Client, got: Order, name: str = "model") -> Tensor:
    """The client's own model `[P]`, a new vector, with what it received laid over it.

    On its first round it has none, and starts from the common initial model under the received `initial`.
    """
    own = me.state[name].clone() if name in me.state else me.initial()
    for item in ("initial", "model"):
        if item in got.items:
            own = got.items[item].onto(own)
    return own


@rule("private-update")
@dataclass(frozen=True)
class PrivateUpdate(Rule):
    """Train the client's own model with the received part laid over it; keep the result and send it back.

    Which part of it crosses is the exchange's matter (`back`); the server may tell `mu`, the strength of a pull
    back to where training started.
    """

    sends, keeps = ("model",), ("model",)

    def run(self, me: Client, got: Order) -> Work:
        """One local update of all layers together."""
        trained = yield Train(own_model(me, got), pull=got.told.get("mu", 0.0))
        model = trained.model
        return Answer({"model": model}, keep={"model": model}, report={"train_loss": trained.loss})
