"""FedDANE: local training corrected by the gradient of the whole (Li et al., Asilomar 2019).

https://arxiv.org/abs/2001.01920

Every round:
    1. A first cohort is sent W and uploads its full gradients; g is their mean, weighted by samples.
    2. A second cohort minimises F_i(w) + <g - grad F_i(W), w - W> + (mu/2) ||w - W||^2, starting from W.
    3. W becomes the mean of what it uploads, weighted by samples.
Decisions where the paper is silent, and cost: docs/methods/feddane.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from coterie.clients.rules.gradient import CorrectedUpdate, FullGradient
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.method import Cohort
from coterie.methods.one_model import GlobalState, OneModel
from coterie.methods.privacy import PrivacySupport
from coterie.methods.registry import METHODS, Grid


@METHODS.add("feddane")
@dataclass(frozen=True)
class FedDANE(OneModel):
    """Two exchanges a round: the mean gradient g, then training corrected by it (Li et al., 2019).

    A client whose own gradient is g trains as in FedProx. Running statistics have no gradient; they cross with the
    models.

    Per round: up `2 m P b` bytes; down `2 m P b` where the cohorts coincide, as clients then remember W and their
    own gradient, and `3 m P b` where they are drawn apart.
    """

    family = "drift correction"

    mu: Annotated[
        float,
        Field(ge=0, description="strength of the pull back to the global model"),
        Grid(0.0, 0.001, 0.01, 0.1, 1.0),
    ] = 0.0
    cohorts: Annotated[
        Literal["same", "independent"],
        Field(description="the second cohort: the first, as in the authors' code, or a draw of its own"),
    ] = "same"

    privacy_support = PrivacySupport(
        "its clients send a gradient and then a model, so that each client is in two sums",
        "its clients send a gradient beside their model",
        "its clients send the gradient of all their samples",
    )

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        layout, same = cohort.server.layout, self.cohorts == "same"
        w, signal, server = state.model[0], layout.trainable, cohort.server
        gradients = Reduce.mean(cohort.clients, server.samples[cohort.clients], is_model=False)
        replies: Replies = yield Exchange(
            cohort.clients,
            FullGradient(remember=same),
            {"model": Send.same(w, cohort.clients)},
            upload_part={"gradient": signal},
            reduce={"gradient": gradients},
        )
        if not len(replies):
            return state
        centres, nothing = server.aggregation.centres, torch.zeros(1, signal.size)
        gradient = centres(replies, "gradient", gradients, nothing, signal)
        clients = replies.clients if same else self._draw_second_cohort(cohort)
        send = {"gradient": Send.same(signal.put(w.clone(), gradient[0]), clients, signal)}
        if not same:
            send["model"] = Send.same(w, clients)
        models, pull = Reduce.mean(clients, server.samples[clients]), {"mu": np.full(len(clients), self.mu)}
        trained: Replies = yield Exchange(clients, CorrectedUpdate(), send, pull, reduce={"model": models})
        return GlobalState(centres(trained, "model", models, state.model))

    def _draw_second_cohort(self, cohort: Cohort) -> Ids:
        """Draw as many clients as in the first cohort, uniformly without replacement."""
        rng = cohort.server.stream("second cohort", cohort.round)
        return np.sort(rng.permutation(cohort.server.n)[: len(cohort.clients)])
