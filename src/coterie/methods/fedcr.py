"""FedCR: a common body with stochastic features, private heads, one Gaussian of the features per class.

Zhang, Li, Dai, Zou and Xiong, ICML 2023. The body gives mu(x) and sigma(x); the head sees draws of N(mu, sigma^2).

Every round:
    1. The server sends the body and the Gaussians of the classes.
    2. Each client trains body and head: the cross-entropy over M draws, and beta times the divergence of a sample's
       Gaussian from that of its class.
    3. It uploads its body, and for every class the product of its samples' Gaussians.
    4. The server averages the bodies and multiplies the Gaussians.
Before the last evaluation every client trains its head once more.
Decisions where the paper is silent, and cost: docs/methods/fedcr.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.gaussian import EvaluateDraws, GaussianUpdate, reference_shape
from coterie.clients.rules.rule import Rule
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Replies, Send
from coterie.methods.method import Cohort, Needs, ServerView, Split
from coterie.methods.privacy import hides_nothing
from coterie.methods.private_layers import PartlyShared, SharedLayers, send_shared_part
from coterie.methods.registry import METHODS, Grid
from coterie.models.layout import Layout, Part


@state("fedcr")
@dataclass(frozen=True, eq=False)
class FedCRState(PartlyShared):
    """What the server remembers beside the model, and who has started."""

    gaussians: Tensor  # [C, 2, Z], mean and standard deviation of every class's features


@METHODS.add("fedcr")
@dataclass(frozen=True)
class FedCR(SharedLayers):
    """Private heads over features that follow one Gaussian a class, the same everywhere (Zhang et al., 2023).

    Predictions average the logits of M draws. The authors train with lr 0.05, 10 epochs, batches of 48, and a tenth
    of 100 clients a round; beta and M are those of their command for CIFAR-100.

    Per round: down and up `m b (P_body + 2 C Z)` bytes; a client's first download adds the head.
    """

    family = "personal layers"

    uniform: ClassVar[bool] = True
    beta: Annotated[
        float,
        Field(ge=0, description="weight of the divergence, usually 0.0001 to 0.001"),
        Grid(0.0001, 0.0005, 0.001),
    ] = 1e-4
    samples: Annotated[
        int, Field(ge=1, description="draws of the features, usually 12 to 18 (M)"), Grid(12, 15, 18)
    ] = 18
    clip: Annotated[float, Field(ge=0, description="largest norm of a gradient; 0 for no limit")] = 10.0
    head_epochs: Annotated[int, Field(ge=0, description="passes for the head before the last evaluation")] = 10

    privacy_support = hides_nothing("its clients send Gaussians of every class")

    needs = Needs(gaussian=True, classes=True)

    def start(self, server: ServerView) -> FedCRState:
        classes, _, dim = reference_shape(server.layout)
        standard = torch.tensor([0.0, 1.0])[None, :, None].repeat(classes, 1, dim)
        return FedCRState(server.initial(0)[None], np.zeros(server.n, np.bool_), standard)

    def round(self, state: PartlyShared, cohort: Cohort) -> Exchanges[PartlyShared]:
        assert isinstance(state, FedCRState)
        clients, layout = cohort.clients, cohort.server.layout
        shared, rows = self.shared(layout), np.zeros(len(clients), np.int64)
        send = send_shared_part(state.model, rows, shared, layout, state.started[clients])
        send["gaussians"] = Send.same(state.gaussians.flatten(), clients)
        mean, part = Reduce.mean(clients), {"model": shared}
        replies: Replies = yield Exchange(
            clients, self.update(cohort), send, upload_part=part, reduce={"model": mean}
        )
        body = cohort.server.aggregation.centres(replies, "model", mean, shared.take(state.model), shared)
        started = state.started.copy()
        started[replies.clients] = True
        gaussians = multiply_gaussians(replies.uploads["gaussians"], state.gaussians)
        return FedCRState(shared.put(state.model.clone(), body), started, gaussians)

    def shared(self, layout: Layout) -> Part:
        return layout.everything - layout.last_layers(1)

    def update(self, cohort: Cohort) -> Rule:
        return GaussianUpdate(self.beta, self.samples, self.clip)

    def measure(self, split: Split, last: bool) -> Rule:
        return EvaluateDraws(split, "model", self.samples, self.head_epochs if last else 0, self.clip)


def multiply_gaussians(gaussians: Tensor, previous: Tensor) -> Tensor:
    """Return for each class the product of the clients' Gaussians and a standard normal one.

    Its precision is `1 + sum_i rho_i^-2`, its mean `sum_i r_i rho_i^-2` over that.

    Args:
        gaussians: means r_i and standard deviations rho_i `[r, C, 2, Z]`, in ascending client id; a client without
            samples of a class gives 0 for both.
        previous: `[C, 2, Z]`; what nobody has samples of stays as it is there, as in the authors' code.

    Returns:
        `[C, 2, Z]`; sums are taken in float64, client after client.
    """
    precision, weighted = torch.ones_like(previous[:, 0]).double(), torch.zeros_like(previous[:, 0]).double()
    for own in gaussians.double():
        r, rho = own.unbind(1)
        precisions = torch.where(rho > 0, rho**-2, 0.0)
        precision += precisions
        weighted += precisions * r
    found = torch.stack([weighted / precision, precision**-0.5], 1).float()
    return torch.where((precision > 1)[:, None], found, previous)
