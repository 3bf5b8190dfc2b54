"""The rule of a client that says how sure the score of a model is on its own samples."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.evaluated_model import UNSCORED
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.objective import LocalModel
from coterie.clients.rules.requests import Inspect, Request, Score
from coterie.clients.rules.rule import Answer, InnerRule, Order, Rule, Work, intercept, rule
from coterie.clients.tasks.score_intervals import bound_metric

SAMPLES_AT_A_TIME = 256
"""Samples that go through the network together."""


@rule("score-bounds")
@dataclass(frozen=True)
class ScoreBounds(Rule):
    """Do all that an evaluating rule does, and answer how sure each of its scores is instead of the scores.

    Only the ends of an interval of 95 % are told, of no sample. A score by draws of stochastic features, or by a
    memory, has none.
    """

    evaluation: Annotated[InnerRule, Field(description="the rule that evaluates")]
    metric: Annotated[str, Field(description="the metric that is bounded")] = "rmse"

    def run(self, client: Client, order: Order) -> Work:
        """Report the `bounds` of each score in turn, a list of pairs."""
        bounds: list[list[float]] = []

        def bound(asked: Request) -> Generator[Request, Any, Any]:
            if not isinstance(asked, Score):
                return (yield asked)
            ends = [float("nan")] * 2
            if not asked.draws and asked.memory is None:
                rng = client.stream(f"bounds of score {len(bounds)}")
                bound_by = _Bounds(self.metric, rng, asked)
                first = asked.model if asked.shares is None else asked.model[0]
                ends = (yield Inspect(bound_by, asked.split, first)).tolist()
            bounds.append(ends)
            return UNSCORED

        yield from intercept(self.evaluation.run(client, order), bound)
        return Answer(report={"bounds": bounds})


@dataclass(frozen=True, eq=False)
class _Bounds:
    """Computes the interval of the score of a model, or of a mixture."""

    metric: str
    rng: np.random.Generator
    asked: Score

    def __call__(self, batch: Batch, model: LocalModel | None) -> Tensor:
        """Return the lower and the upper end `[2]`."""
        assert model is not None
        if not len(batch.labels):
            return torch.full((2,), float("nan"), dtype=torch.float64)
        size = SAMPLES_AT_A_TIME
        task, shares = batch.task, self.asked.shares
        parts = [batch.inputs[at : at + size] for at in range(0, len(batch.labels), size)]
        if shares is None:
            outputs = torch.cat([model(some) for some in parts])
        else:
            each = [torch.stack([model.logits_at(m, some) for m in self.asked.model]) for some in parts]
            outputs = torch.cat([task.mix(some, shares) for some in each])
        predicted, scores, targets = (
            values.cpu().numpy() for values in (task.predict(outputs), task.scores(outputs), batch.labels)
        )
        return torch.tensor(bound_metric(self.metric, predicted, scores, targets, self.rng), dtype=torch.float64)
