"""FedCR at the client: features drawn to Gaussians of their class (docs/methods/fedcr.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.evaluate import Evaluate
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.objective import Extras, LocalModel, Loss, Objective, objective
from coterie.clients.rules.private_layers import overlay_own_model
from coterie.clients.rules.requests import Score, Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.models.gaussian import class_features, divergence, draws, moments
from coterie.models.layout import Layout


@objective("class-gaussians")
@dataclass(frozen=True)
class ClassGaussians(Objective):
    """FedCR's loss: the cross-entropy of some draws of the features, and their divergence from those of the class.

    That of a sample is `(1/M) sum_s CE(h(z_s), y) + beta KL(N(r_y, rho_y^2) || N(mu(x), sigma(x)^2))`, with M =
    `samples` draws of z, h the head, and the divergence summed over the Z features. The extra `reference`
    `[C, 2, Z]` holds the means r_c and the standard deviations rho_c. The cross-entropy alone is reported.

    Raises:
        ValueError: the network has no Gaussian features, or `reference` is of another shape.
    """

    beta: float
    samples: int = 1
    batchable = False  # it draws features, and observes them

    def loss(self, model: LocalModel, batch: Batch, extras: Extras) -> Loss:
        body, dim, head = model.halves
        mean, deviation = moments(body(batch.inputs))
        z = draws(mean, deviation, self.samples).flatten(0, 1)
        logits = head(z).view(self.samples, len(mean), -1)
        check_shape("reference", extras["reference"], (logits.shape[2], 2, dim))
        entropy = batch.loss_of_draws(logits)
        r, rho = extras["reference"][batch.labels].unbind(1)
        apart = batch.mean(divergence(r, rho, mean, deviation))
        seen = {"mean": mean.detach(), "deviation": deviation.detach(), "labels": batch.labels}
        return Loss(entropy + self.beta * apart, entropy, seen)

    def summarise(self, observed: Sequence[Extras], extras: Extras) -> Extras:
        """What the last epoch met of each class: `posterior` `[C, 2, Z]` and `counts` `[C]`.

        The posterior holds mean and standard deviation of the precision-weighted product of the Gaussians
        N(mu(x), sigma(x)^2) of all samples of a class, each as it was when its minibatch was met. The counts are of
        float32, for they may cross. A class that was not met has zeros.
        """
        classes, _, dim = extras["reference"].shape
        precision, weighted = torch.zeros(2, classes, dim, dtype=torch.float64)
        counts = torch.zeros(classes)
        for seen in observed:
            own = seen["deviation"].double() ** -2
            precision.index_add_(0, seen["labels"], own)
            weighted.index_add_(0, seen["labels"], own * seen["mean"])
            counts += torch.bincount(seen["labels"], minlength=classes)
        product = torch.stack([weighted / precision, precision**-0.5], 1).float()
        return {"posterior": torch.where(counts[:, None, None] > 0, product, 0.0), "counts": counts}


@rule("gaussian-update")
@dataclass(frozen=True)
class GaussianUpdate(Rule):
    """Train the client's own model, what is received laid over it, towards the received `gaussians` (FedCR).

    Those are the global means and standard deviations of every class, `[C, 2, Z]` in a row. The client keeps the
    model and sends it, and its own `gaussians`: of each class the product of those of its samples, as they were in
    the last epoch; zeros for a class that it does not have, for no product has the deviation 0.
    """

    beta: Annotated[float, Field(ge=0, description="weight of the divergence from the class's Gaussian")] = 1e-4
    samples: Annotated[int, Field(ge=1, description="draws of the features for a minibatch (M)")] = 18
    clip: Annotated[float, Field(ge=0, description="limit of a gradient's norm; 0 for none")] = 10.0
    uploads, client_state = ("model", "gaussians"), ("model",)

    def run(self, client: Client, order: Order) -> Work:
        """One local update of body and head together."""
        reference = order.items["gaussians"].values.view(reference_shape(client.layout))
        trained: Trained = yield Train(
            overlay_own_model(client, order),
            objective=ClassGaussians(self.beta, self.samples),
            extras={"reference": reference},
            clip=self.clip,
        )
        model = trained.model
        return Answer(
            {"model": model, "gaussians": trained.summary["posterior"]},
            client_state={"model": model},
            report={"train_loss": trained.loss},
        )

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"gaussians": reference_shape(layout)}


@rule("evaluate-draws")
@dataclass(frozen=True)
class EvaluateDraws(Evaluate):
    """Score a model by the mean logits of some draws of its features; first, perhaps, train the head of a copy.

    With the body frozen, the divergence of its Gaussians is a constant: the head is trained on the cross-entropy of
    as many draws (FedCR's final round, docs/methods/fedcr.md).
    """

    draws: Annotated[int, Field(ge=1, description="draws of the features (M)")] = 18
    head_epochs: Annotated[int, Field(ge=0, description="passes over own data for the head")] = 0
    clip: Annotated[float, Field(ge=0, description="limit of a gradient's norm; 0 for none")] = 10.0

    def run(self, client: Client, order: Order) -> Work:
        """Report the scores, and the `choice` where there was one."""
        model, choice = yield from self._model(client, order)
        if self.head_epochs:
            head, anything = client.layout.last_layers(1), torch.ones(reference_shape(client.layout))
            fitted: Trained = yield Train(
                model,
                part=head,
                epochs=self.head_epochs,
                purpose="adaptation",
                objective=ClassGaussians(0.0, self.draws),
                extras={"reference": anything},
                clip=self.clip,
            )
            model = fitted.model
        scored = yield Score(model, self.split, self.draws)
        return Answer(report={"score": scored, "choice": choice})


def reference_shape(layout: Layout) -> tuple[int, int, int]:
    """`(C, 2, Z)`: a mean and a standard deviation of every feature, for every class."""
    classes, dim = class_features(layout)
    return classes, 2, dim


def check_shape(name: str, values: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse an extra of another shape.

    Raises:
        ValueError: it has one.
    """
    if values.shape != shape:
        raise ValueError(f"{name} has the shape {tuple(values.shape)}; it must be {shape}")
