"""pFedMe: personal models by Moreau envelopes (T. Dinh, Tran and Nguyen, NeurIPS 2020).

https://arxiv.org/abs/2006.08848

Algorithm 1, every round:
    1. The server sends the model W. Each client begins with w = W.
    2. On each minibatch it takes K steps towards theta, the least of F_i(theta) + (lam/2) ||theta - w||^2,
    3. and moves w <- w - lr lam (w - theta).
    4. It uploads w and keeps theta. W becomes the mean of the w, all clients alike.
Clients are served theta; a newcomer is served W.
Decisions where the paper is silent, and cost: docs/methods/pfedme.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from coterie.clients.rules.moreau import MoreauUpdate
from coterie.methods.exchange import Exchanges
from coterie.methods.method import Cohort, Needs
from coterie.methods.one_model import GlobalState, OneModel, train_model
from coterie.methods.privacy import PrivacySupport
from coterie.methods.registry import METHODS, Grid


@METHODS.add("pfedme")
@dataclass(frozen=True)
class PFedMe(OneModel):
    """A global model that moves towards the clients' personal ones, which are pulled to it (Dinh et al., 2020).

    The steps are plain SGD, whatever solver the training has. The paper's beta is the server's learning rate
    (docs/server-optimizers.md). Per round: down and up `m P b` bytes (docs/methods/pfedme.md).
    """

    family = "personal models"
    own = "personal"

    lam: Annotated[
        float,
        Field(gt=0, description="strength of the pull between personal and global model"),
        Grid(1.0, 5.0, 15.0),
    ] = 15.0
    personal_steps: Annotated[
        int, Field(ge=1, description="steps of the personal model on a minibatch (K)"), Grid(1, 5)
    ] = 5
    personal_lr: Annotated[
        float | None, Field(ge=0, description="size of these steps; without it, the round's learning rate")
    ] = None

    needs = Needs(plain_sgd=True)

    privacy_support = PrivacySupport(
        "", "", "its clients take steps of its own kind on their samples, which noise does not hide"
    )

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        rule = MoreauUpdate(self.lam, self.personal_steps, self.personal_lr)
        model, _ = yield from train_model(state.model, cohort, rule, uniform=True)
        return GlobalState(model)
