"""The rule of a client that sends the model with which it would be evaluated."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from coterie.clients.rules.client import Client
from coterie.clients.rules.requests import Score, Scored
from coterie.clients.rules.rule import RULES, Answer, Order, Rule, Work, rule

NOTHING = np.empty(0, np.int64)


@rule("hand-over")
@dataclass(frozen=True)
class HandOver(Rule):
    """Do all that an evaluating rule does before it scores a model, and send that model instead of scoring it.

    So what is evaluated has one source: which parts lie over which, what the client chose, how it adapted.
    """

    evaluation: Annotated[str, Field(description="the rule that evaluates")] = "evaluate"
    settings_json: Annotated[str, Field(description="its settings, as JSON")] = "{}"
    uploads, private_steps = ("model",), True

    @classmethod
    def of(cls, evaluation: Rule) -> HandOver:
        """Hand over what `evaluation` would score."""
        return cls(evaluation.name, json.dumps(evaluation.settings(), sort_keys=True))

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the `model`, and report what the evaluation would beside its score, such as a `choice`.

        The report says too of how many `draws` of stochastic features the score would be.

        Raises:
            ValueError: the rule scores nothing.
        """
        kind = RULES[self.evaluation]
        work: Work = kind.target(**kind.bind(json.loads(self.settings_json), "settings")).run(client, order)
        result = None
        try:
            while not isinstance(asked := work.send(result), Score):
                result = yield asked
        except StopIteration:
            raise ValueError(f"the rule {self.evaluation} scores no model; there is none to hand over") from None
        report = {}
        try:
            work.send(Scored(float("nan"), NOTHING, NOTHING, NOTHING))
        except StopIteration as end:
            report = {name: value for name, value in end.value.report.items() if name != "score"}
        work.close()
        return Answer({"model": asked.model}, report={**report, "draws": asked.draws})
