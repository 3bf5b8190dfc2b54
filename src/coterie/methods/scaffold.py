"""SCAFFOLD: local training corrected by control variates (Karimireddy et al., ICML 2020).

Stochastic controlled averaging for federated learning, https://arxiv.org/abs/1910.06378

Algorithm 1, every round:
    1. The server sends the model x and its control variate c.
    2. Each client takes K steps y <- y - lr (grad F_i(y) - c_i + c) from x,          (line 10)
    3. and sets c_i to c_i - c + (x - y) / (K lr).                                     (line 12, option II)
    4. It uploads y and by how much c_i has changed.                                  (lines 13, 14)
    5. x becomes the mean of the y, and c moves by m / n times the mean of the changes.  (lines 16, 17)
Decisions where the paper is silent, and cost: docs/methods/scaffold.md
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.control_variate import ControlVariateUpdate
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Replies, Send
from coterie.methods.method import Cohort, Needs, ServerView
from coterie.methods.one_model import GlobalState, OneModel
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS


@state("scaffold")
@dataclass(frozen=True, eq=False)
class ScaffoldState(GlobalState):
    """The global model and its control variate, the mean of all clients', each `[1, P]`."""

    control: Tensor


@METHODS.add("scaffold")
@dataclass(frozen=True)
class Scaffold(OneModel):
    """One model, trained by steps that control variates hold to everybody's direction (Karimireddy et al., 2020).

    The steps are plain SGD, whatever solver the training has. A client of whom c is the mean trains as in FedAvg.
    Per round: down and up `2 m P b` bytes (docs/methods/scaffold.md).
    """

    family = "drift correction"

    needs = Needs(plain_sgd=True)

    privacy_support = hides_nothing(
        "its clients send the change of a control variate beside their model",
        samples="its clients keep control variates, made from their samples, from round to round",
    )

    def start(self, server: ServerView) -> ScaffoldState:
        model = server.initial(0)[None]
        return ScaffoldState(model, torch.zeros_like(model))

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        assert isinstance(state, ScaffoldState)
        clients, signal, centres = cohort.clients, cohort.server.layout.trainable, cohort.server.aggregation.centres
        send = {
            "model": Send.same(state.model[0], clients),
            "control": Send.same(state.control[0], clients, signal),
        }
        models, gains = Reduce.mean(clients), Reduce.mean(clients, is_model=False)
        replies: Replies = yield Exchange(
            clients,
            ControlVariateUpdate(),
            send,
            upload_part={"control": signal},
            reduce={"model": models, "control": gains},
        )
        gain = centres(replies, "control", gains, torch.zeros(1, signal.size), signal)
        control = signal.take(state.control) + len(replies) / cohort.server.n * gain
        model = centres(replies, "model", models, state.model)
        return ScaffoldState(model, signal.put(state.control.clone(), control))
