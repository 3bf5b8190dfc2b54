"""ClusterFL: each client its own model, drawn to those that predict alike (Ouyang et al., MobiSys 2021).

Extended version: https://doi.org/10.1145/3554980

The models are the rows of W. F is a relation between clients whose columns sum to 1. The constraint Omega = F^T W
is solved for by ADMM with duals U:
    minimise  sum_i F_i(w_i) + alpha tr(W W^T) - beta tr(F^T W W^T F)

Every round:
    1. The server sends each client sum_j F_ij (U_j + rho Omega_j) and rho sum_j F_ij^2, once there is a relation.
    2. The client trains its own model under that attraction, keeps it, and sends it with its loss.
    3. The server updates Omega and U.
    4. In every third round it finds F from the outputs of all models on its public samples.
    5. Once the losses change by less than `stop`, nothing is exchanged any more.
Decisions where the paper is silent, and cost: docs/methods/clusterfl.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.admm import RelatedUpdate
from coterie.errors import BadInput, count_of
from coterie.grouping.aggregate import mix_models
from coterie.grouping.labels import relabel
from coterie.grouping.relation import relation
from coterie.methods.client_rows import replace_rows
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, LogGap, Outputs, Replies, Send
from coterie.methods.method import UNKNOWN, Assignment, Cohort, Method, Needs, ServerView
from coterie.methods.privacy import hides_nothing
from coterie.methods.private_layers import send_shared_part
from coterie.methods.registry import METHODS, Grid
from coterie.models.layout import Part


@state("clusterfl")
@dataclass(frozen=True, eq=False)
class ClusterFLState:
    """What the server remembers; T counts the trainable parameters."""

    models: Tensor  # [n, P], every client's last
    relation: Tensor  # F [n, n], columns that sum to 1; 0 before the first, and for who has uploaded nothing
    omega: Tensor  # [n, T]
    dual: Tensor  # U [n, T]
    losses: NDArray[np.float64]  # [n], every client's last, infinite before the first
    changes: NDArray[np.float64]  # [n], by how much it last changed, infinite before a training under a relation

    @classmethod
    def initial(cls, server: ServerView) -> ClusterFLState:
        """Return a state without uploads; F, Omega and U are 0."""
        n, width = server.n, server.layout.trainable.size
        zeros, never = torch.zeros(n, width), np.full(n, np.inf)
        return cls(server.initial(0).repeat(n, 1), torch.zeros(n, n), zeros, zeros, never, never)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Who has uploaded a model `[n]`."""
        return np.isfinite(self.losses)

    @property
    def groups(self) -> NDArray[np.int64]:
        """Label clients `[n]` by the argmax of their column of F, ties to the first; -1 without a relation."""
        related = self.relation.numpy().T
        return relabel(np.where(related.any(1), related.argmax(1), UNKNOWN))

    def store_replies(self, replies: Replies) -> ClusterFLState:
        """Store the models and losses that came back. The loss of a client without training data is 0."""
        here, losses, changes = replies.clients, self.losses.copy(), self.changes.copy()
        losses[here] = np.nan_to_num(replies.numbers.get("loss", np.zeros(len(here))))
        if self.relation.any():
            changes[here] = np.abs(losses[here] - self.losses[here])
        models = replace_rows(self.models, here, replies.models)
        return replace(self, models=models, losses=losses, changes=changes)

    def update_omega(self, rho: float, beta: float, trainable: Part) -> ClusterFLState:
        """Set Omega_j to `(rho (F^T W)_j - U_j) / (rho - 2 beta)`, then add `rho (Omega_j - (F^T W)_j)` to U_j."""
        mixes = mix_models(self.relation.T.double().numpy(), trainable.take(self.models))
        omegas, duals = torch.empty_like(self.omega), torch.empty_like(self.dual)
        # One client at a time, for one fits the cache and n in float64 do not.
        for mix, dual, new_omega, new_dual in zip(mixes, self.dual, omegas, duals, strict=True):
            mix = mix.double()
            omega = (rho * mix - dual) / (rho - 2 * beta)
            new_omega.copy_(omega)
            new_dual.copy_(dual + rho * (omega - mix))
        return replace(self, omega=omegas, dual=duals)


@METHODS.add("clusterfl")
@dataclass(frozen=True)
class ClusterFL(Method[ClusterFLState]):
    """Models as rows of W, and a soft relation F between them, by ADMM (Ouyang et al., 2021).

    The authors' client adds the inner product with Omega and U. Their server's steps imply that it is subtracted,
    as here. They train in minibatches of 5 with lr 0.01, times 0.999 after every 100 steps, for 50 rounds at most.

    U ends every round as 2 beta Omega, so that Omega becomes `(rho F^T W - 2 beta Omega) / (rho - 2 beta)`. With
    the authors' rho = 4 beta, Omega swings between 0 and twice F^T W; with a larger rho it settles.

    A round takes a model about lr times its steps times rho of the way to what it is related to: 0.6 % with the
    defaults, 60 steps and lr 0.05. Clients then predict as they do alone (docs/methods/clusterfl.md, D4).

    The groups in the tables are the clients with equal argmax in F. A client's column holds the shares of its mix
    in F^T W. That of a row is often greatest at the client itself, and would leave it alone.

    Per round: down nothing before there is a relation, then `m (P b + 4)` bytes; up `m (P b + 4)`, for the loss
    that decides when to stop crosses too. Each client is sent the initial model once.
    """

    family = "clustered, soft"

    alpha: Annotated[
        float, Field(ge=0, description="weight of the models' squared norms"), Grid(0.0001, 0.001, 0.01)
    ] = 1e-3
    beta: Annotated[
        float, Field(ge=0, description="weight of the related models' likeness"), Grid(0.0001, 0.0005, 0.001)
    ] = 5e-4
    rho: Annotated[
        float,
        Field(gt=0, description="strength of the constraint Omega = F^T W, above 2 beta"),
        Grid(0.002, 0.004, 0.008),
    ] = 2e-3
    local_epochs: Annotated[int, Field(ge=0, description="passes over own data in a round")] = 20
    every: Annotated[int, Field(ge=1, description="rounds from one relation matrix to the next")] = 3
    temperature: Annotated[float, Field(gt=0, description="temperature of the outputs that are compared")] = 6.0
    stop: Annotated[
        float, Field(ge=0, description="mean change of the loss at which training stops; 0 for never")
    ] = 1e-2
    coupled: Annotated[
        bool,
        Field(
            description="the client's objective includes the constraint's products of its model with the models "
            "that it is mixed with"
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.rho <= 2 * self.beta:
            raise BadInput(
                f"rho = {self.rho:g} is not possible: Omega has no minimum there; it must be above "
                f"2 beta = {2 * self.beta:g}"
            )

    @property
    def needs(self) -> Needs:
        related = "its server relates single clients' models"
        return Needs(public=500, distributions=True, models=related, pairs="everybody")

    def final_warnings(self, state: ClusterFLState, server: ServerView, rounds: int) -> list[str]:
        """Say so if there was no relation, or none that parts the clients, and which setting makes one."""
        if not state.relation.any():
            need = f"method.every = {self.every} needs {count_of(self.every, 'round')}, and the run had {rounds}"
            return [f"no groups came about: clients were never compared; {need}"]
        found = np.unique(state.groups[state.known])
        if len(found) > 1 or server.n == 1:
            return []
        shares = state.relation[:, torch.from_numpy(state.known)].max(0).values
        return [
            "no groups came about: in the relation F every client has its greatest share, "
            f"{float(shares.min()):.2f} to {float(shares.max()):.2f}, with the same client; a method.temperature "
            f"below {self.temperature:g} makes outputs differ more"
        ]

    own_aggregation = "its server solves a regression over the models of all clients, and averages none"

    privacy_support = hides_nothing(
        "its server relates single clients' models and receives their losses",
        "its clients send their loss beside their model",
    )

    def start(self, server: ServerView) -> ClusterFLState:
        return ClusterFLState.initial(server)

    def round(self, state: ClusterFLState, cohort: Cohort) -> Exchanges[ClusterFLState]:
        server, clients, none = cohort.server, cohort.clients, cohort.server.layout.nothing
        trainable = server.layout.trainable
        if state.changes.mean() < self.stop:  # step 5
            yield Log("stopped", 1.0)
            return state
        rows = np.zeros(len(clients), np.int64)
        send = send_shared_part(server.initial(0)[None], rows, none, server.layout, state.known[clients])
        rule = RelatedUpdate(self.alpha, self.local_epochs)
        replies: Replies = yield Exchange(
            clients, rule, send | self._send_relation(state, clients, trainable)
        )  # steps 1, 2
        if not len(replies):
            return state
        state = state.store_replies(replies).update_omega(self.rho, self.beta, trainable)  # step 3
        if cohort.round % self.every == 0:  # step 4
            there = np.flatnonzero(state.known)
            outputs = yield Outputs(state.models[torch.from_numpy(there)], server.public_inputs(), self.temperature)
            found, related = relation(outputs), torch.zeros_like(state.relation)
            related[np.ix_(there, there)] = torch.from_numpy(found).float()
            yield LogGap("relation", there, found, "similarity")
            state = replace(state, relation=related)
        return state

    def assignment(self, state: ClusterFLState, server: ServerView) -> Assignment:
        return Assignment(state.models, state.groups, np.arange(server.n), own="model")

    def newcomer(self, state: ClusterFLState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers train as without a relation; each joins the group that F mixes into it most."""
        initial, rule = server.initial(0), RelatedUpdate(self.alpha, self.local_epochs)
        replies: Replies = yield Exchange(clients, rule, {"initial": Send.same(initial, clients)})
        answered, labels = np.isin(clients, replies.clients), state.groups
        groups, rows = np.full(len(clients), UNKNOWN, np.int64), np.zeros(len(clients), np.int64)
        rows[answered] = 1 + np.arange(len(replies))
        there = np.flatnonzero(labels != UNKNOWN)
        if len(replies) and len(there):
            models = torch.cat([state.models[torch.from_numpy(there)], replies.models])
            outputs = yield Outputs(models, server.public_inputs(), self.temperature)
            known, new = outputs[: len(there)], outputs[len(there) :]
            shares = np.array([relation(torch.cat([known, one[None]]))[:-1, -1] for one in new])
            of_groups = shares @ (labels[there, None] == np.arange(labels.max() + 1))
            groups[answered] = np.where(of_groups.any(1), of_groups.argmax(1), UNKNOWN)
        return Assignment(torch.cat([initial[None], replies.models]), groups, rows)

    def _send_relation(self, state: ClusterFLState, clients: Ids, trainable: Part) -> dict[str, Send]:
        """Return what clients are sent of the relation, if there is one."""
        if not state.relation.any():
            return {}
        shares, rows = state.relation[torch.from_numpy(clients)].double(), np.arange(len(clients))
        towards = mix_models(shares.numpy(), state.dual + self.rho * state.omega)
        strengths = (self.rho * shares.square().sum(1, keepdim=True)).float()
        if self.coupled:
            others = self.rho * (shares @ state.relation.double().T)
            others[rows, clients] = 0
            towards -= mix_models(others.numpy(), trainable.take(state.models))
        return {"attraction": Send(towards, rows), "strength": Send(strengths, rows)}
