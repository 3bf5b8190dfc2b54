"""FedPAC: aligned features, and heads that work together (Xu, Tong and Huang, ICLR 2023).

Personalized federated learning with feature alignment and classifier collaboration, https://arxiv.org/abs/2306.11867

Every round:
    1. The server sends the body of the model W, to each client its head, and the prototype of each class: the mean
       of its features over all clients.
    2. The client tells the mean and variance of its features under W. It trains its head for a pass, then the body,
       with features drawn to their prototype: F_i + lam |z - c_y|^2 / d.
    3. It uploads both, and the means of its features of each class.
    4. W becomes the mean of the models, weighted by samples, and prototypes become means over samples.
    5. A client's head becomes the mixture of all heads with the least expected loss, by what they told in step 2.
Clients are served the body with their head; a newcomer is served W.
Decisions where the paper is silent, and cost: docs/methods/fedpac.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.aligned import AlignedUpdate
from coterie.clients.rules.two_heads import EvaluateHead, find_head, output_shape
from coterie.grouping.aggregate import mix_models
from coterie.grouping.simplex import minimise_on_simplex
from coterie.methods.client_rows import replace_rows
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.method import Cohort, Needs, ServerView, Split
from coterie.methods.one_model import GlobalState, OneModel
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS, Grid


@state("fedpac")
@dataclass(frozen=True, eq=False)
class FedPACState(GlobalState):
    """W `[1, P]`, each client's head `[n, H]`, and the prototypes `[C, d + 1]`: 1 behind each, 0 where none is."""

    heads: Tensor
    prototypes: Tensor


@METHODS.add("fedpac")
@dataclass(frozen=True)
class FedPAC(OneModel):
    """A common body with aligned features, and for each client a mixture of all heads (Xu et al., 2023).

    Per round, with C classes of d features: down `m (P + C (d + 1)) b` bytes, in the first `m P b`; up
    `m (P + C (2 d + 1) + 1) b` (docs/methods/fedpac.md).
    """

    family = "personal layers"

    lam: Annotated[float, Field(ge=0, description="weight of the alignment of features"), Grid(0.1, 1.0, 5.0)] = 1.0

    @property
    def needs(self) -> Needs:
        mixed = "its server mixes a head for each client from those of the cohort"
        return Needs(classes=True, models=mixed, pairs="cohort")

    own_aggregation = "each client's head is a mixture of its own"

    privacy_support = hides_nothing(
        "its clients send means of their features beside their model",
        samples="its clients send means of the features of their samples",
    )

    def start(self, server: ServerView) -> FedPACState:
        """Return the common initial model, and its head for everybody.

        Raises:
            BadInput: the network does not end in a dense layer.
        """
        model, head = server.initial(0)[None], find_head(server.layout)
        classes, width = output_shape(server.layout)
        return FedPACState(model, head.take(model).repeat(server.n, 1), torch.zeros(classes, width + 1))

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        assert isinstance(state, FedPACState)
        clients, server, head = cohort.clients, cohort.server, find_head(cohort.server.layout)
        send = self._send_models(state, clients, server)
        if state.prototypes.any():
            send["prototypes"] = Send.same(state.prototypes.flatten(), clients)
        replies: Replies = yield Exchange(clients, AlignedUpdate(self.lam), send)  # steps 1 to 3
        if not len(replies):
            return state
        model = server.aggregation.average(replies.models, state.model, replies.samples)  # step 4
        prototypes = merge_prototypes(replies.uploads["prototypes"], state.prototypes)
        told = replies.uploads["statistics"].double().numpy()
        mixed = mix_models(weigh_heads(told[:, :-1], told[:, -1]), head.take(replies.models))  # step 5
        return FedPACState(model, replace_rows(state.heads, replies.clients, mixed), prototypes)

    def evaluation(
        self, state: GlobalState, server: ServerView, clients: Ids, split: Split = "test", last: bool = False
    ) -> Exchange:
        assert isinstance(state, FedPACState)
        return Exchange(clients, EvaluateHead(split), self._send_models(state, clients, server))

    def _send_models(self, state: FedPACState, clients: Ids, server: ServerView) -> dict[str, Send]:
        body = server.layout.everything - find_head(server.layout)
        return {"model": Send.same(state.model[0], clients, body), "head": Send(state.heads, clients)}


def merge_prototypes(told: Tensor, previous: Tensor) -> Tensor:
    """Return each class's mean over samples, 1 behind it, `[C, d + 1]`; of whom nobody told stays as it was.

    Args:
        told: the clients' means, a class's samples behind each, `[r, C (d + 1)]`.
        previous: `[C, d + 1]`.
    """
    each = told.view(len(told), *previous.shape).double()
    counts = each[:, :, -1:]
    means = (each[:, :, :-1] * counts).sum(0) / counts.sum(0).clamp(min=1)
    found = torch.cat([means, torch.ones(len(previous), 1, dtype=torch.float64)], 1).float()
    return torch.where(counts.sum(0) > 0, found, previous)


def weigh_heads(h: NDArray[np.float64], variances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how much each head counts in each client's `[r, r]`; rows sum to 1 (Xu et al., 2023).

    Row i has the least `a' Q a` with `Q_jk = <h_i - h_j, h_i - h_k> + [j = k] v_j`.

    Args:
        h: see `describe_features`, `[r, C d]`.
        variances: v `[r]`.
    """
    weights = np.empty((len(h), len(h)))
    for row, own in zip(weights, h, strict=True):
        row[:] = minimise_on_simplex((own - h) @ (own - h).T + np.diag(variances))
    return weights
