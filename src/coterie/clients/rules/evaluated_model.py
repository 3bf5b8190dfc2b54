"""The rule of a client that sends the model with which it would be evaluated."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from coterie.clients.rules.client import Client
from coterie.clients.rules.requests import Request, Score, Scored
from coterie.clients.rules.rule import Answer, InnerRule, Order, Rule, Work, intercept, rule

NO_COUNTS = np.empty(0, np.int64)
UNSCORED = Scored(float("nan"), NO_COUNTS, NO_COUNTS, NO_COUNTS)
"""What a rule is told in the place of a score that nobody computes."""


@rule("hand-over")
@dataclass(frozen=True)
class HandOver(Rule):
    """Do all that an evaluating rule does before it scores a model, and send that model instead of scoring it.

    So what is evaluated has one source: which parts lie over which, what the client chose, how it adapted.
    """

    evaluation: Annotated[InnerRule, Field(description="the rule that evaluates")]
    uploads, private_steps = ("model",), True

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the `model`, and report what the evaluation would beside its score, such as a `choice`.

        The report says too of how many `draws` of stochastic features the score would be.

        Raises:
            ValueError: the rule scores nothing.
        """
        found: list[Score] = []

        def keep_model(asked: Request) -> Generator[Request, Any, Any]:
            if not isinstance(asked, Score):
                return (yield asked)
            found.append(asked)
            return UNSCORED

        answer = yield from intercept(self.evaluation.run(client, order), keep_model)
        if not found:
            raise ValueError(f"the rule {self.evaluation.name} scores no model; there is none to hand over")
        report = {name: value for name, value in answer.report.items() if name != "score"}
        return Answer({"model": found[0].model}, report={**report, "draws": found[0].draws})
