"""How a client measures a model on its own held-out data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from coterie.clients.rule import Answer, Client, Order, Rule, Work, rule
from coterie.clients.work import Losses, Score


@rule("evaluate")
@dataclass(frozen=True)
class Evaluate(Rule):
    """Score one model on the client's own data and report the counts; nothing of it is part of the method.

    The model is the received `model`; or, of the received `models`, the one with the smallest loss on own
    training data, for a client that has no group yet; or the client's own, with whatever part was received
    written over it.
    """

    split: Annotated[Literal["validation", "test"], Field(description="which held-out data")] = "test"
    own: Annotated[bool, Field(description="evaluate the client's own model under the received part")] = False

    def run(self, me: Client, got: Order) -> Work:
        """Report the scores, and the `choice` where there was one."""
        choice = None
        if self.own:
            model = me.state["model"] if "model" in me.state else me.initial()
            if "model" in got.items:
                model = got.items["model"].onto(model)
        elif "model" in got.items:
            model = got.items["model"].values
        else:
            models = got.items["models"].values
            choice = int((yield Losses(models)).argmin())
            model = models[choice]
        scored = yield Score(model, self.split)
        return Answer(report={"score": scored, "choice": choice})
