"""FedSR at the client: stochastic features under a learnt prior (docs/methods/fedsr.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.gaussian import check_shape
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.objective import Extras, LocalModel, Loss, Objective, objective
from coterie.clients.rules.requests import Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.models.gaussian import class_features, divergence, draws, moments, positive
from coterie.models.layout import Layout


@objective("invariant")
@dataclass(frozen=True)
class Invariant(Objective):
    """FedSR's loss: cross-entropy, the norm of the features, and their divergence from a prior of the class.

    That of a sample is `CE(h(z), y) + l2r ||z|| + cmi KL(N(c mu(x), (c sigma(x))^2) || N(r_y, softplus(s_y)^2))`,
    with one draw of z. The trained extra `prior` `[2 C Z + 1]` holds r, s and c. The
    cross-entropy is reported.

    Raises:
        ValueError: the network has no Gaussian features, or `prior` is of another size.
    """

    l2r: float
    cmi: float
    batchable = False  # it draws features

    def loss(self, model: LocalModel, batch: Batch, extras: Extras) -> Loss:
        body, dim, head = model.halves
        prior = extras["prior"]
        mean, deviation = moments(body(batch.inputs))
        z = draws(mean, deviation, 1)[0]
        logits = head(z)
        classes = logits.shape[1]
        check_shape("prior", prior, (2 * classes * dim + 1,))
        entropy = batch.loss(logits)
        r, s = prior[:-1].view(2, classes, dim)[:, batch.labels]
        scale = prior[-1]
        apart = batch.mean(divergence(scale * mean, scale * deviation, r, positive(s)))
        return Loss(entropy + self.l2r * batch.mean(z.norm(dim=1)) + self.cmi * apart, entropy)


@rule("invariant-update")
@dataclass(frozen=True)
class InvariantUpdate(Rule):
    """Train the received `model` and the received `prior` `[2 C Z + 1]` together, and send both (FedSR)."""

    l2r: Annotated[float, Field(ge=0, description="weight of the features' norm (c_L2R)")] = 1e-2
    cmi: Annotated[float, Field(ge=0, description="weight of the divergence from the prior (c_CMI)")] = 5e-4
    uploads = ("model", "prior")

    def run(self, client: Client, order: Order) -> Work:
        """One local update."""
        model, prior = order.items["model"].values, order.items["prior"].values
        trained: Trained = yield Train(
            model, objective=Invariant(self.l2r, self.cmi), trained_extras={"prior": prior}
        )
        uploads = {"model": trained.model, "prior": trained.extras["prior"]}
        return Answer(uploads, report={"train_loss": trained.loss})

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"prior": initial_prior(layout).shape}


@rule("own-prior-update")
@dataclass(frozen=True)
class OwnPriorUpdate(Rule):
    """Train the received `model` and the client's own `prior` `[2 C Z + 1]` together; send the model (FedSR)."""

    l2r: Annotated[float, Field(ge=0, description="weight of the features' norm (c_L2R)")] = 1e-2
    cmi: Annotated[float, Field(ge=0, description="weight of the divergence from the prior (c_CMI)")] = 5e-4
    uploads, client_state = ("model",), ("prior",)

    def run(self, client: Client, order: Order) -> Work:
        """One local update, from the prior that the last one ended with."""
        prior = client.state["prior"] if "prior" in client.state else initial_prior(client.layout)
        trained: Trained = yield Train(
            order.items["model"].values,
            objective=Invariant(self.l2r, self.cmi),
            trained_extras={"prior": prior},
        )
        return Answer(
            {"model": trained.model},
            client_state={"prior": trained.extras["prior"]},
            report={"train_loss": trained.loss},
        )

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"prior": initial_prior(layout).shape}


def initial_prior(layout: Layout) -> Tensor:
    """Return r = 0, s = 1 and c = 1 for every class and feature, `[2 C Z + 1]`."""
    classes, dim = class_features(layout)
    return torch.cat([torch.zeros(classes * dim), torch.ones(classes * dim + 1)])
