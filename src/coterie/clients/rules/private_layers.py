"""Rules in which a client keeps a model of its own, of which the server knows a part or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.requests import Train
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule


def overlay_own_model(client: Client, order: Order, name: str = "model") -> Tensor:
    """The client's own model `[P]`, a new vector, with what it received laid over it.

    On its first round it has none, and starts from the common initial model under the received `initial`.
    """
    own = client.state[name].clone() if name in client.state else client.initial()
    for item in ("initial", "model"):
        if item in order.items:
            own = order.items[item].onto(own)
    return own


@rule("private-update")
@dataclass(frozen=True)
class PrivateUpdate(Rule):
    """Train the client's own model with the received part laid over it; keep the result and send it back.

    The exchange's `upload_part` says which part of it crosses. The server may set `mu`, the strength of a pull
    back to where training started.
    """

    uploads, client_state, private_steps = ("model",), ("model",), True

    def run(self, client: Client, order: Order) -> Work:
        """One local update of all layers together."""
        trained = yield Train(overlay_own_model(client, order), pull=order.settings.get("mu", 0.0))
        model = trained.model
        return Answer({"model": model}, client_state={"model": model}, report={"train_loss": trained.loss})


@rule("alternating-update")
@dataclass(frozen=True)
class AlternatingUpdate(Rule):
    """Train the head with the body frozen, then the body with the head frozen; keep the result and send it back.

    The model and what crosses of it are as in `PrivateUpdate` (FedRep).
    """

    private: Annotated[int, Field(ge=1, description="layers of the head")] = 1
    head_epochs: Annotated[int, Field(ge=0, description="passes over own data for the head")] = 10
    body_epochs: Annotated[int, Field(ge=0, description="passes over own data for the body")] = 1
    uploads, client_state = ("model",), ("model",)

    def run(self, client: Client, order: Order) -> Work:
        """Two phases; the loss reported is that of the second."""
        head = client.layout.last_layers(self.private)
        fitted = yield Train(
            overlay_own_model(client, order), part=head, epochs=self.head_epochs, purpose="head batches"
        )
        body = client.layout.everything - head
        trained = yield Train(fitted.model, part=body, epochs=self.body_epochs)
        model = trained.model
        return Answer({"model": model}, client_state={"model": model}, report={"train_loss": trained.loss})


@rule("frozen-head-update")
@dataclass(frozen=True)
class FrozenHeadUpdate(Rule):
    """Train the received body under the common initial head, which stays as it is; send the model (FedBABU).

    The server may tell `lr_factor`, by which the round's learning rate is multiplied.
    """

    head: Annotated[int, Field(ge=1, description="last layers that are frozen")] = 1
    uploads, private_steps = ("model",), True

    def run(self, client: Client, order: Order) -> Work:
        """One local update of the body."""
        body = client.layout.everything - client.layout.last_layers(self.head)
        lr = client.training.lr_at(client.round) * order.settings.get("lr_factor", 1.0)
        trained = yield Train(overlay_own_model(client, order), part=body, lr=lr)
        return Answer({"model": trained.model}, report={"train_loss": trained.loss})
