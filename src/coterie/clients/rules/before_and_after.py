"""The rule of a client that is scored twice: as its method has it, and after the adaptation that all get."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.evaluate import factor_after_drops
from coterie.clients.rules.requests import Request, Score, Train
from coterie.clients.rules.rule import Answer, InnerRule, Order, Rule, Work, intercept, rule


@rule("before-and-after")
@dataclass(frozen=True)
class BeforeAndAfter(Rule):
    """Score what an evaluating rule scores, before and after the adaptation of a copy on the client's own data.

    This is the one place that says what before and after are:

    * A rule that scores a model without training it: before is that model, after is the adapted copy; of a mixture
      each model adapts.
    * A rule that trains before it scores, for a method that adapts by itself: before is the model from which its
      training starts, after is the model that it scores. Nothing is adapted twice.

    The copy is forgotten. The learning rate is that of the round: a schedule holds for the adaptation too.
    """

    writes = False

    evaluation: Annotated[InnerRule, Field(description="the rule that evaluates")]
    epochs: Annotated[int | None, Field(ge=0, description="passes over own data; without it, those of a round")] = (
        None
    )
    steps: Annotated[int | None, Field(ge=0, description="minibatches that are met, in place of passes")] = None
    layers: Annotated[str, Field(description="the layers that adapt, as in all, last:1 or fc1,fc2")] = "all"
    lr: Annotated[
        float | None, Field(ge=0, description="learning rate in the first round; without it, training's")
    ] = None
    lr_drops: Annotated[
        tuple[int, ...], Field(description="rounds after each of which the learning rate is a tenth")
    ] = ()

    def run(self, client: Client, order: Order) -> Work:
        """Report the `score` before, the one after as `adapted`, and what else the evaluation reports.

        Raises:
            ValueError: the rule scores nothing.
        """
        start: Tensor | None = None
        size = client.layout.size
        scores: tuple[Any, Any] | None = None

        def score_twice(asked: Request) -> Generator[Request, Any, Any]:
            nonlocal start, scores
            if isinstance(asked, Train) and start is None:
                start = asked.start
            if not isinstance(asked, Score):
                return (yield asked)
            if start is None:
                adapted = torch.empty_like(asked.model)
                for row, model in zip(adapted.view(-1, size), asked.model.view(-1, size), strict=True):
                    row.copy_((yield from self._adapt(model, client, order)))
                scores = (yield asked), (yield replace(asked, model=adapted))
            else:
                scores = (yield replace(asked, model=start)), (yield asked)
            return scores[0]

        answer = yield from intercept(self.evaluation.run(client, order), score_twice)
        if scores is None:
            raise ValueError(f"the rule {self.evaluation.name} scores no model; there is nothing to adapt")
        return Answer(report={**answer.report, "score": scores[0], "adapted": scores[1]})

    def _adapt(self, model: Tensor, client: Client, order: Order) -> Generator[Request, Any, Tensor]:
        training = client.training if self.lr is None else client.training.updated(lr=self.lr)
        trained = yield Train(
            model,
            part=None if self.layers == "all" else client.layout.select(self.layers),
            epochs=self.epochs,
            minibatches=self.steps,
            lr=training.lr_at(client.round) * factor_after_drops(self.lr_drops, client.round),
            purpose="adaptation",
        )
        adapted: Tensor = trained.model
        return adapted
