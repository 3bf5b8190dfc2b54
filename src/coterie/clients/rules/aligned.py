"""FedPAC at the client: features drawn to everybody's, and what is told of them (docs/methods/fedpac.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.objective import Extras, LocalModel, Objective, objective
from coterie.clients.rules.requests import Inspect, Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.clients.rules.two_heads import find_head, output_shape
from coterie.models.layout import Layout


@objective("aligned-features")
@dataclass(frozen=True)
class AlignedFeatures(Objective):
    """The task's loss, and `lam` times the mean squared distance of features to the prototype of their class.

    The extra `prototypes` is `[C, d + 1]`: behind each stands 1, or 0 for a class that has none.
    """

    lam: float = 1.0

    def loss(self, model: LocalModel, batch: Batch, extras: Extras) -> Tensor:
        logits, features = model.with_features(batch.inputs)
        found = extras["prototypes"][batch.labels]
        away = (features - found[:, :-1]) * found[:, -1:]
        return batch.loss(logits) + self.lam * batch.mean(away.square().mean(1))


@rule("aligned-update")
@dataclass(frozen=True)
class AlignedUpdate(Rule):
    """Train the received `head` under the received body, then the body under it, aligned to received `prototypes`.

    Without prototypes, or with `lam` 0, the body is trained on the task's loss alone. Uploads, beside the `model`:
    `statistics` `[C d + 1]` of the features under the body as it was received, see `describe_features`, and as
    `prototypes` `[C (d + 1)]` the means of those under the new one, a class's samples behind each.
    """

    lam: Annotated[float, Field(ge=0, description="weight of the alignment")] = 1.0
    uploads = ("model", "statistics", "prototypes")

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        classes, width = output_shape(layout)
        return {"statistics": (classes * width + 1,), "prototypes": (classes * (width + 1),)}

    def run(self, client: Client, order: Order) -> Work:
        """Two phases; the loss reported is that of the second."""
        layout, head = client.layout, find_head(client.layout)
        classes, _ = output_shape(layout)
        start = head.put(order.items["model"].onto(client.initial()), order.items["head"].values)
        before: Tensor = yield Inspect(partial(describe_features, classes=classes), model=start)
        fitted: Trained = yield Train(start, part=head, epochs=1, purpose="head batches")
        aligned = self.lam > 0 and "prototypes" in order.items
        trained: Trained = yield Train(
            fitted.model,
            part=layout.everything - head,
            objective=AlignedFeatures(self.lam) if aligned else None,
            extras={"prototypes": order.items["prototypes"].values.view(classes, -1)} if aligned else {},
        )
        after: Tensor = yield Inspect(partial(sum_features, classes=classes), model=trained.model)
        means = torch.cat([after[:, :-1] / after[:, -1:].clamp(min=1), after[:, -1:]], 1)
        uploads = {"statistics": before, "prototypes": means.flatten()}
        return Answer({"model": trained.model, **uploads}, report={"train_loss": trained.loss})


def sum_features(batch: Batch, model: LocalModel | None, classes: int) -> Tensor:
    """Return the sums of the features of each class, and behind them how many samples it has, `[C, d + 1]`."""
    assert model is not None
    features = model.features(batch.inputs)
    counted = torch.cat([features, features.new_ones(len(features), 1)], 1)
    return features.new_zeros(classes, counted.shape[1]).index_add_(0, batch.labels, counted)


def describe_features(batch: Batch, model: LocalModel | None, classes: int) -> Tensor:
    """Return `h` `[C d]`, the mean of the features with those of other classes as 0, and their variance.

    With p_c the share of class c and m_c the mean of its features, h_c is `p_c m_c`. The variance is that of the
    mean, `(E|z|^2 - sum_c |h_c|^2) / n` (Xu, Tong and Huang, 2023).
    """
    assert model is not None
    features, count = model.features(batch.inputs), max(len(batch.labels), 1)
    h = features.new_zeros(classes, features.shape[1]).index_add_(0, batch.labels, features) / count
    variance = (features.square().sum() / count - h.square().sum()) / count
    return torch.cat([h.flatten(), variance.clamp(min=0)[None]])
