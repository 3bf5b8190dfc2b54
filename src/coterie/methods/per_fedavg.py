"""Per-FedAvg: one model from which every client is one step away from its own (Fallah et al., NeurIPS 2020).

https://arxiv.org/abs/2002.07948

Every round:
    1. The server sends the model W.
    2. In each step of a client, on minibatches b0, b1 and b2:
           w' = w - alpha grad F(w; b0), and g = grad F(w'; b1)
           with order = "first":  w <- w - beta g
           with order = "hf":  w <- w - beta (g - alpha h)
       h = [grad F(w + delta g; b2) - grad F(w - delta g; b2)] / (2 delta) estimates the Hessian times g.
    3. W becomes the mean of the uploads, all clients alike.
For its evaluation a client takes a plain step of alpha on its own data, and forgets the result.
Decisions where the paper is silent, and cost: docs/methods/per-fedavg.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from coterie.clients.rules.evaluate import AdaptThenEvaluate
from coterie.clients.rules.meta import MetaUpdate
from coterie.methods.exchange import Exchange, Exchanges, Ids
from coterie.methods.method import Cohort, Needs, ServerView, Split, serve
from coterie.methods.one_model import GlobalState, OneModel, train_model
from coterie.methods.privacy import PrivacySupport
from coterie.methods.registry import METHODS, Grid


@METHODS.add("per-fedavg")
@dataclass(frozen=True)
class PerFedAvg(OneModel):
    """One model that is good after a step on a client's own data (Fallah et al., 2020).

    On minibatches b0, b1 and b2 a client looks ahead, `w' = w - alpha grad F(w; b0)`, and steps by the gradient
    there, `w <- w - beta g` with `g = grad F(w'; b1)`. That drops the second derivative; `order="hf"` estimates its
    product with g, `[grad F(w + delta g; b2) - grad F(w - delta g; b2)] / (2 delta)`, and takes alpha times it from
    g. The steps are plain SGD whatever `training.optimizer` and `training.momentum` say. The mean counts all
    clients alike. For its evaluation a client takes a step of alpha on a minibatch of its own data, or several, and
    forgets the result.

    With alpha = 0 this is FedAvg that meets the b1 alone, with step beta. Per round: down and up `m P b` bytes
    (docs/methods/per-fedavg.md).
    """

    family = "meta"

    order: Annotated[
        Literal["first", "hf"], Field(description="drop the second derivative, or estimate its effect")
    ] = "first"
    alpha: Annotated[
        float | None,
        Field(ge=0, description="inner step size alpha; without it, the round's learning rate"),
        Grid(0.001, 0.005, 0.01, 0.05),
    ] = None
    beta: Annotated[
        float | None,
        Field(ge=0, description="outer step size beta, from 0.001 up; without it, the round's learning rate"),
        Grid(0.001, 0.005, 0.01, 0.05),
    ] = None
    delta: Annotated[float, Field(gt=0, description="distance of the gradients that give curvature (hf)")] = 1e-3
    fine_tune_steps: Annotated[
        int, Field(ge=0, description="plain steps of alpha before an evaluation, each on a minibatch")
    ] = 1
    fine_tune: Annotated[
        int | None,
        Field(ge=0, description="passes over own data before an evaluation, in place of steps"),
    ] = None

    needs = Needs(plain_sgd=True)

    privacy_support = PrivacySupport(
        "", "", "its clients take steps of its own kind on their samples, which noise does not hide"
    )

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        rule = MetaUpdate(self.alpha, self.beta, self.order, self.delta)
        model, _ = yield from train_model(state.model, cohort, rule, uniform=True)
        return GlobalState(model)

    def evaluation(
        self, state: GlobalState, server: ServerView, clients: Ids, split: Split = "test", last: bool = False
    ) -> Exchange:
        assignment = self.assignment(state, server)
        steps = self.fine_tune_steps if self.fine_tune is None else None
        rule = AdaptThenEvaluate(split, epochs=self.fine_tune, steps=steps, lr=self.alpha, plain=True)
        return Exchange(clients, rule, serve(assignment, assignment.served[clients]))
