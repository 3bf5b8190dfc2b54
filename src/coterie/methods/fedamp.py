"""FedAMP: clients pulled to messages of those who are like them (Huang et al., AAAI 2021).

Personalized cross-silo federated learning on non-IID data, https://arxiv.org/abs/2007.03797

Algorithm 1, every round:
    1. The server sends u_i = xi_ii w_i + sum_j xi_ij w_j of the clients' last models, where
           xi_ij = alpha exp(-||w_i - w_j||^2 / sigma) / sigma and xi_ii = 1 - sum_j xi_ij.
    2. Client i trains its own model on F_i(w) + (lam/2) ||w - u_i||^2, keeps the result w_i and uploads it.
Clients are served their own models; a newcomer is served the mean of all.
Decisions where the paper is silent, and cost: docs/methods/fedamp.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.local_update import TrainOwnPulled
from coterie.grouping.affinity import model_distances
from coterie.grouping.aggregate import mean, mix_models
from coterie.methods.client_rows import replace_rows
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.method import Affinity, Assignment, Cohort, Method, Needs, ServerView
from coterie.methods.privacy import UNTRIED, PrivacySupport
from coterie.methods.registry import METHODS, Grid


@state("fedamp")
@dataclass(frozen=True, eq=False)
class FedAMPState:
    """The clients' last models, at first the common initial one, `[n, P]`, and who has uploaded yet `[n]`."""

    models: Tensor
    known: NDArray[np.bool_]


@METHODS.add("fedamp")
@dataclass(frozen=True)
class FedAMP(Method[FedAMPState]):
    """A model for each client, pulled to a mixture in which those that are near weigh more (Huang et al., 2021).

    Without a pull every client trains alone. Per round: down and up `m P b` bytes (docs/methods/fedamp.md).
    """

    family = "personal models"

    lam: Annotated[
        float,
        Field(ge=0, description="strength of the pull to the message (lambda / alpha_k)"),
        Grid(0.1, 1.0, 5.0),
    ] = 1.0
    sigma: Annotated[
        float | None,
        Field(gt=0, description="squared distance at which attention fades; without it, their mean over all pairs"),
    ] = None
    alpha: Annotated[
        float | None, Field(gt=0, description="attention as a whole (alpha_k); without it, sigma over the clients")
    ] = None

    def amounts_to(self, layout: object, rounds: int) -> str:
        return "" if self.lam else "training alone"

    needs = Needs(models="its server mixes a model for each client from those of all", pairs="everybody")

    own_aggregation = "each client has a mixture of its own, in which models weigh by how near they are"

    privacy_support = PrivacySupport(
        "its server mixes single clients' models by how near they are", UNTRIED, UNTRIED
    )

    def start(self, server: ServerView) -> FedAMPState:
        return FedAMPState(server.initial(0).repeat(server.n, 1), np.zeros(server.n, np.bool_))

    def round(self, state: FedAMPState, cohort: Cohort) -> Exchanges[FedAMPState]:
        clients, server = cohort.clients, cohort.server
        messages = mix_models(self.weigh_models(state, server)[clients], state.models)  # step 1
        send = {"model": Send(messages, np.arange(len(clients)))}
        pull = {"mu": np.full(len(clients), self.lam)}
        replies: Replies = yield Exchange(clients, TrainOwnPulled(), send, pull)  # step 2
        known = state.known.copy()
        known[replies.clients] = True
        return FedAMPState(replace_rows(state.models, replies.clients, replies.models), known)

    def weigh_models(self, state: FedAMPState, server: ServerView) -> NDArray[np.float64]:
        """Return `xi` `[n, n]`, whose rows sum to 1; who has not uploaded yet weighs nothing with others."""
        squares = model_distances(server.layout.trainable.take(state.models)) ** 2
        others = ~np.eye(server.n, dtype=np.bool_) & np.outer(state.known, state.known)
        mean_square = float(squares[others].mean()) if others.any() else 0.0
        sigma = mean_square if self.sigma is None else self.sigma
        height = 1 / server.n if self.alpha is None else self.alpha / (sigma or 1.0)
        weights = np.where(others, height * np.exp(-squares / (sigma or 1.0)), 0.0)
        np.fill_diagonal(weights, 1 - weights.sum(1))
        return weights

    def assignment(self, state: FedAMPState, server: ServerView) -> Assignment:
        return Assignment(state.models, np.zeros(server.n, np.int64), rows=server.everyone, own="model")

    def newcomer(self, state: FedAMPState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Serve newcomers the mean of the models that were uploaded."""
        yield from ()
        return Assignment(mean(state.models[state.known], state.models[:1]), np.zeros(len(clients), np.int64))

    def affinity(self, state: FedAMPState, server: ServerView, clients: Ids) -> Affinity:
        return Affinity("attention", self.weigh_models(state, server)[np.ix_(clients, clients)])
