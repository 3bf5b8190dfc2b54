"""Federated L-BFGS: the server descends the loss of all clients' samples, by sums of gradients alone.

Liu and Nocedal, On the limited memory BFGS method for large scale optimization, Mathematical Programming 45, 1989,
https://doi.org/10.1007/BF01589116. The objective is that of all samples in one place, so a linear model reaches its
optimum in some tens of exchanges.

Every round:
    1. Each client uploads the gradient of its loss at W; g is their mean by samples, plus that of the penalty.
    2. The direction is d = -H g, H being made of the last steps s and of how g changed by them, y.   (two loops)
    3. Clients upload gradients at W + t d for one or a few t, until |g(t) d| <= `SLOPE` |g d|.
    4. W <- W + t d.
Decisions, and cost: docs/methods/lbfgs.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.gradient import SendGradient
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, Replies, Send
from coterie.methods.method import Cohort, ServerView
from coterie.methods.one_model import ServesOneModel
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS, Grid

CURVED = 1e-10
"""The least cosine between a step and what it changed the gradient by, for the pair to be remembered."""

SLOPE = 0.5
"""The largest share of the slope along d that may remain at the new model."""


@state("lbfgs")
@dataclass(frozen=True, eq=False)
class LBFGSState:
    """The model, its gradient over those who gave it, and the last steps."""

    model: Tensor  # [1, P]
    gradient: Tensor  # [P], at the model; float64
    clients: Ids  # [m], over whose samples; none before the first round
    steps: Tensor  # [k, P], s, the oldest first; float64
    changes: Tensor  # [k, P], y, of the gradient by these; float64


@METHODS.add("lbfgs")
@dataclass(frozen=True)
class LBFGS(ServesOneModel[LBFGSState]):
    """One model for all at the optimum of everybody's samples, by sums of gradients (Liu and Nocedal, 1989).

    Meant for linear models (`network.name = "linear"`), whose loss is convex. Of the training settings none plays a
    part: a gradient is of all of a client's samples, and the step is the server's.

    Per round: down and up `m P b` bytes for each gradient that is asked for, mostly one (docs/methods/lbfgs.md).
    """

    family = "one model"
    uses_training = False

    l2: Annotated[
        float,
        Field(
            ge=0,
            description="L2 penalty: half of this factor times the squared weights, without biases, is added to "
            "the summed loss of all samples; it is 1 / C of scikit-learn's LogisticRegression",
        ),
        Grid(0.01, 0.1, 1.0, 10.0, 100.0),
    ] = 1.0
    memory: Annotated[int, Field(ge=1, description="latest steps from which H is built")] = 10
    trials: Annotated[int, Field(ge=1, description="step lengths tried in a round, at most")] = 10

    own_step = "its server takes a step of its own"

    privacy_support = hides_nothing(
        "its clients send gradients, and noise is for models",
        samples="its clients send the gradient of their samples as it is",
    )

    def start(self, server: ServerView) -> LBFGSState:
        model, none = server.initial(0)[None], torch.empty(0, server.layout.size, dtype=torch.float64)
        return LBFGSState(model, none.sum(0), np.zeros(0, np.int64), none, none)

    def round(self, state: LBFGSState, cohort: Cohort) -> Exchanges[LBFGSState]:
        clients, layout = cohort.clients, cohort.server.layout
        gradient, steps, changes = state.gradient, state.steps, state.changes
        if not np.array_equal(clients, state.clients):  # of other clients' samples, or none yet
            clients, gradient, _ = yield from self._ask(state.model, clients, cohort)
        if not len(clients) or not bool(gradient.any()):
            return state
        direction = _two_loops(gradient, steps, changes)
        slope = float(gradient @ direction)
        if slope >= 0:  # of other clients' samples, a remembered step may point uphill
            steps, changes, direction = steps[:0], changes[:0], -gradient
            slope = float(gradient @ direction)
        low, high, length = 0.0, float("inf"), 1.0 if len(steps) else min(1.0, 1.0 / float(gradient.abs().sum()))
        low_slope, best = slope, (state.model, gradient, np.zeros(0, np.int64), 0.0)
        tried = 0
        while tried < self.trials:
            tried += 1
            model = layout.trainable.copy(state.model.clone(), (state.model.double() + length * direction).float())
            there, new, statistics = yield from self._ask(model, clients, cohort)
            if not np.array_equal(there, clients):
                return LBFGSState(
                    state.model, gradient, np.zeros(0, np.int64), steps, changes
                )  # step again next time
            along = float(new @ direction)
            best = (statistics, new, there, length)
            if abs(along) <= SLOPE * abs(slope):
                break
            if along < 0:
                low, low_slope = length, along
                length = 2 * length if high == float("inf") else (low + high) / 2
            else:
                # Where a straight line through the slopes at both ends is 0, kept off the ends.
                root = low + (length - low) * low_slope / (low_slope - along)
                high, length = length, min(max(root, low + 0.1 * (length - low)), length - 0.1 * (length - low))
        model, new, there, length = best
        yield Log("gradients", tried)
        yield Log("length of the gradient", float(new.norm()))
        step, change = (
            layout.trainable.copy(torch.zeros_like(new), (model - state.model).double()[0]),
            new - gradient,
        )
        if float(step @ change) > CURVED * float(step.norm() * change.norm()):
            steps = torch.cat([steps, step[None]])[-self.memory :]
            changes = torch.cat([changes, change[None]])[-self.memory :]
        return LBFGSState(model, new, there, steps, changes)

    def _ask(self, model: Tensor, clients: Ids, cohort: Cohort) -> Exchanges[tuple[Ids, Tensor, Tensor]]:
        """Return who answered, their objective's gradient `[P]`, and the model `[1, P]` with their statistics."""
        layout, server = cohort.server.layout, cohort.server
        send = {"model": Send.same(model[0], clients)}
        told = Reduce.mean(clients, server.samples[clients], is_model=False)
        replies: Replies = yield Exchange(clients, SendGradient("all"), send, reduce={"gradient": told})
        if not len(replies):
            return replies.clients, torch.zeros(layout.size, dtype=torch.float64), model
        mean = server.aggregation.centres(replies, "gradient", told, torch.zeros_like(model))
        buffers = layout.everything - layout.trainable
        gradient = layout.trainable.copy(torch.zeros(layout.size, dtype=torch.float64), mean[0].double())
        pull = layout.where(lambda one: one.role == "weight").copy(torch.zeros_like(gradient), model[0].double())
        gradient += self.l2 / max(1, int(replies.samples.sum())) * pull
        return replies.clients, gradient, buffers.copy(model.clone(), mean)


def _two_loops(gradient: Tensor, steps: Tensor, changes: Tensor) -> Tensor:
    """Return `-H g` `[P]`, H starting from the curvature of the last step (Liu and Nocedal, section 2)."""
    found, products = -gradient, []
    for step, change in zip(reversed(steps), reversed(changes), strict=True):
        products.append(float(step @ found) / float(step @ change))
        found = found - products[-1] * change
    if len(steps):
        found = found * (float(steps[-1] @ changes[-1]) / float(changes[-1] @ changes[-1]))
    for step, change, product in zip(steps, changes, reversed(products), strict=True):
        found = found + (product - float(change @ found) / float(step @ change)) * step
    return found
