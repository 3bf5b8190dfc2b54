"""How a client measures a model on its own held-out data; nothing of it is part of a method's traffic."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.neighbours import Neighbours
from coterie.clients.rules.requests import Losses, Request, Score, Train
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule


@rule("evaluate")
@dataclass(frozen=True)
class Evaluate(Rule):
    """Score one model on the client's own data and report the counts.

    The model is the received `model`; or, of the received `models`, the one with the smallest loss on own
    training data, for a client that has no group yet; or the mixture of all `models` by the received `shares`
    `[K]`; or what the client keeps under the name `own`, with whatever part was received written over it. A client
    that keeps nothing yet takes the common initial model.
    """

    writes, private_steps = False, True

    split: Annotated[Literal["validation", "test"], Field(description="which held-out data")] = "test"
    own: Annotated[str, Field(description="the kept vector that is evaluated under the received part")] = ""
    neighbours: Annotated[
        int, Field(ge=0, description="own samples nearest to an input that predict beside the model")
    ] = field(default=0, kw_only=True)

    def run(self, client: Client, order: Order) -> Work:
        """Report the scores, and the `choice` where there was one."""
        model, choice = yield from self._model(client, order)
        return (yield from self._scored(model, choice, order))

    def _model(self, client: Client, order: Order) -> Generator[Request, Any, tuple[Tensor, int | None]]:
        """Return the model `[P]`, or those of a mixture `[K, P]`, and which one was chosen where one was."""
        if "shares" in order.items:
            return order.items["models"].values, None
        if self.own:
            model = client.state.get(self.own, client.initial())
            return (order.items["model"].onto(model) if "model" in order.items else model), None
        if "model" in order.items:
            return order.items["model"].values, None
        models = order.items["models"].values
        choice = int((yield Losses(models)).argmin())
        return models[choice], choice

    def _scored(self, model: Tensor, choice: int | None, order: Order) -> Work:
        shares = order.items["shares"].values if "shares" in order.items else None
        memory = Neighbours(self.neighbours) if self.neighbours else None
        scored = yield Score(model, self.split, shares=shares, memory=memory)
        return Answer(report={"score": scored, "choice": choice})


def factor_after_drops(lr_drops: tuple[int, ...], round_: int) -> float:
    """Return what is left of a learning rate that is a tenth after each of some rounds."""
    return 0.1 ** sum(drop < round_ for drop in lr_drops)


@rule("adapt-then-evaluate")
@dataclass(frozen=True)
class AdaptThenEvaluate(Evaluate):
    """Train a copy of the model, or of each in a mixture, on own data first, score that, and forget it.

    The learning rate is that of the round, or the given one, a tenth of it after each of the rounds `lr_drops`.
    """

    layers: Annotated[str, Field(description="the layers that adapt, as in all, last:1 or fc1,fc2")] = "all"
    epochs: Annotated[int | None, Field(ge=0, description="passes over own data; without it, those of a round")] = (
        None
    )
    steps: Annotated[int | None, Field(ge=0, description="minibatches that are met, in place of passes")] = None
    lr: Annotated[float | None, Field(ge=0, description="learning rate; without it, that of the round")] = None
    lr_drops: Annotated[
        tuple[int, ...], Field(description="rounds after each of which the learning rate is a tenth")
    ] = ()
    plain: Annotated[bool, Field(description="steps of plain SGD, whatever solver the training has")] = False
    private_steps = False
    """What is trained for a score is more than the local updates that a promise counts."""

    def run(self, client: Client, order: Order) -> Work:
        """Report the scores of the adapted model, and the `choice` where there was one."""
        model, choice = yield from self._model(client, order)
        part = None if self.layers == "all" else client.layout.select(self.layers)
        lr = client.training.lr_at(client.round) if self.lr is None else self.lr
        adapted = torch.empty_like(model)
        size = client.layout.size
        for row, start in zip(adapted.view(-1, size), model.view(-1, size), strict=True):
            trained = yield Train(
                start,
                part=part,
                epochs=self.epochs,
                minibatches=self.steps,
                lr=lr * factor_after_drops(self.lr_drops, client.round),
                plain=self.plain,
                purpose="adaptation",
            )
            row.copy_(trained.model)
        return (yield from self._scored(adapted, choice, order))
