"""Rules with one model and one training phase."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.objective import OBJECTIVES, Objective
from coterie.clients.rules.requests import Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.models.layout import Layout


@rule("local-update")
@dataclass(frozen=True)
class LocalUpdate(Rule):
    """Train from the received `model` and send the result back.

    The server may tell `mu`: the strength of the pull back to the received model, as in
    `F_i(w) + (mu/2) ||w - W||^2`. Without it, or with 0, this is plain local SGD (FedAvg).
    """

    uploads, writes, private_steps = ("model",), False, True

    def run(self, client: Client, order: Order) -> Work:
        """One local update."""
        trained = yield Train(order.items["model"].values, pull=order.settings.get("mu", 0.0))
        return Answer(uploads={"model": trained.model}, report={"train_loss": trained.loss})


@rule("objective-update")
@dataclass(frozen=True)
class ObjectiveUpdate(Rule):
    """Train from the received `model` on a registered objective and send the result back.

    The server may set `mu`, as for `LocalUpdate`.
    """

    objective: Annotated[str, Field(description="the objective's name")] = "task-loss"
    settings_json: Annotated[str, Field(description="its settings, as JSON")] = "{}"
    uploads, writes, private_steps = ("model",), False, True

    @classmethod
    def of(cls, objective: Objective) -> ObjectiveUpdate:
        """Train on `objective`."""
        return cls(objective.name, json.dumps(objective.settings(), sort_keys=True))

    def __reduce__(self) -> tuple[Callable[..., ObjectiveUpdate], tuple[Callable[..., Any], str, str]]:
        """Pickle the objective's class too: another process may not have imported what registers it."""
        return _update_with, (OBJECTIVES[self.objective].target, self.objective, self.settings_json)

    def run(self, client: Client, order: Order) -> Work:
        """One local update."""
        kind = OBJECTIVES[self.objective]
        objective = kind.target(**kind.bind(json.loads(self.settings_json), "settings"))
        pull = order.settings.get("mu", 0.0)
        trained: Trained = yield Train(order.items["model"].values, pull=pull, objective=objective)
        return Answer({"model": trained.model}, report={"train_loss": trained.loss})


def _update_with(kind: Callable[..., Any], name: str, settings_json: str) -> ObjectiveUpdate:
    if name not in OBJECTIVES:  # it came by value, as from a notebook to Ray
        OBJECTIVES.add(name)(kind)
    return ObjectiveUpdate(name, settings_json)


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
