"""Ditto: a global model, and a personal one beside it (Li, Hu, Beirami and Smith, ICML 2021).

https://arxiv.org/abs/2012.04221

Every round:
    1. The server sends the global model W. Each client trains a copy as in FedAvg and uploads it.
    2. The client also trains its personal model v, pulled to W as received: F_i(v) + (lam/2) ||v - W||^2.
    3. W becomes the mean of the uploads, weighted by samples.
Clients are served their personal models; a newcomer is served W.
Decisions where the paper is silent, and cost: docs/methods/ditto.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from coterie.clients.rules.two_models import TwoModels
from coterie.methods.exchange import Exchanges, Log
from coterie.methods.method import Assignment, Cohort, Needs, ServerView
from coterie.methods.one_model import GlobalState, OneModel, train_model
from coterie.methods.privacy import PrivacySupport
from coterie.methods.registry import METHODS, Grid

CANDIDATES = (0.1, 1.0, 2.0)
"""The strengths that a client chooses among where it chooses (Li et al., 2021, Appendix)."""


@METHODS.add("ditto")
@dataclass(frozen=True)
class Ditto(OneModel):
    """FedAvg, and for each client a model of its own under a pull to the global one (Li et al., 2021).

    Without a pull the personal model is what the client would train alone. A client that never took part has the
    common initial model. Per round: down and up `m P b` bytes.
    """

    family = "personal models"

    lam: Annotated[
        float, Field(ge=0, description="strength of the pull; 0.1 in FedCR's comparison"), Grid(0.1, 1.0, 2.0)
    ] = 1.0
    dynamic: Annotated[
        bool,
        Field(description="each client chooses lam from 0.1, 1 and 2 by its validation data; lam itself is unused"),
    ] = False
    personal_epochs: Annotated[
        int | None, Field(ge=0, description="passes for the personal model (E_p); without it, those of a round")
    ] = None
    evaluated: Annotated[
        Literal["personal", "global"],
        Field(description="the model that counts; FedTSDP's table of results seems to show the global one"),
    ] = "personal"

    @property
    def needs(self) -> Needs:
        return Needs(validation=self.dynamic)

    @property
    def privacy_support(self) -> PrivacySupport:
        told = "its clients tell which lam does best; method.dynamic must be false" if self.dynamic else ""
        return PrivacySupport(told, told, "its clients train twice in a round")

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        rule = TwoModels(CANDIDATES if self.dynamic else (self.lam,), self.personal_epochs)
        model, replies = yield from train_model(state.model, cohort, rule)
        if self.dynamic:
            taken = np.array(replies.report.get("lam", []))
            yield Log("clients by lam", {str(lam): float((taken == lam).sum()) for lam in CANDIDATES})
        return GlobalState(model)

    def assignment(self, state: GlobalState, server: ServerView) -> Assignment:
        own = "personal" if self.evaluated == "personal" else ""
        return Assignment(state.model, np.zeros(server.n, np.int64), own=own)
