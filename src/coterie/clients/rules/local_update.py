"""Rules with one model and one training phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.requests import Train, Trained
from coterie.clients.rules.rule import Answer, InnerObjective, Order, Rule, Work, rule
from coterie.models.layout import Layout


@rule("local-update")
@dataclass(frozen=True)
class LocalUpdate(Rule):
    """Train from the received `model` and send the result back.

    The server may tell `mu`: the strength of the pull back to the received model, as in
    `F_i(w) + (mu/2) ||w - W||^2`. Without it, or with 0, this is plain local SGD (FedAvg).
    """

    epochs: Annotated[int | None, Field(ge=0, description="passes over own data; without it, those of a round")] = (
        None
    )
    uploads, writes, private_steps = ("model",), False, True

    def run(self, client: Client, order: Order) -> Work:
        """One local update."""
        pull = order.settings.get("mu", 0.0)
        trained = yield Train(order.items["model"].values, pull=pull, epochs=self.epochs)
        return Answer(uploads={"model": trained.model}, report={"train_loss": trained.loss})


@rule("objective-update")
@dataclass(frozen=True)
class ObjectiveUpdate(Rule):
    """Train from the received `model` on a registered objective and send the result back.

    The server may set `mu`, as for `LocalUpdate`.
    """

    objective: Annotated[InnerObjective, Field(description="what training minimises")]
    uploads, writes, private_steps = ("model",), False, True

    def run(self, client: Client, order: Order) -> Work:
        """One local update."""
        pull = order.settings.get("mu", 0.0)
        trained: Trained = yield Train(order.items["model"].values, pull=pull, objective=self.objective)
        return Answer({"model": trained.model}, report={"train_loss": trained.loss})


@rule("update-keeping-solver")
@dataclass(frozen=True)
class UpdateKeepingSolver(Rule):
    """Train from the received `model` with the solver's memory of the last round, and send the result back.

    The momentum, or Adam's moments and count of steps, stay with the client (docs/methods/layercfl.md, D11).
    """

    uploads, client_state, private_steps = ("model",), ("moments", "squares", "steps"), True

    def run(self, client: Client, order: Order) -> Work:
        """One local update."""
        names = [name for name in self.client_state if name in client.state]
        solver = torch.cat([client.state[name] for name in names]) if names else None
        trained: Trained = yield Train(order.items["model"].values, solver=solver, keep_solver=True)
        keep: dict[str, Tensor | None] = {}
        if trained.solver is not None and len(trained.solver):
            keep.update(zip(self.client_state, torch.split(trained.solver, client.layout.size), strict=False))
        return Answer({"model": trained.model}, client_state=keep, report={"train_loss": trained.loss})

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"steps": (1,)}


@rule("train-own")
@dataclass(frozen=True)
class TrainOwn(Rule):
    """Train the client's own model, which nobody else ever sees; the first time from the common initial model."""

    client_state, private_steps = ("model",), True

    def run(self, client: Client, order: Order) -> Work:
        """One local update of the client's own model."""
        own = client.state["model"] if "model" in client.state else client.initial()
        trained = yield Train(own)
        return Answer(client_state={"model": trained.model}, report={"train_loss": trained.loss})


@rule("train-own-pulled")
@dataclass(frozen=True)
class TrainOwnPulled(Rule):
    """Train the client's own model, pulled to the received `model`; keep the result and send it back.

    The first time it starts from what it received. The server may tell `mu`, the strength of the pull.
    """

    uploads, client_state, writes = ("model",), ("model",), False

    def run(self, client: Client, order: Order) -> Work:
        """One local update of the client's own model."""
        received = order.items["model"].values
        own = client.state.get("model", received)
        trained: Trained = yield Train(own, pull=order.settings.get("mu", 0.0), anchor=received)
        model = trained.model
        return Answer({"model": model}, client_state={"model": model}, report={"train_loss": trained.loss})
