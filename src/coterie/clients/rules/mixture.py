"""Rules of clients whose samples come from a mixture of K components, found by EM (FedEM, FedRC)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.objective import LocalModel
from coterie.clients.rules.requests import Inspect, Request, Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.models.layout import Layout

SAMPLES_AT_A_TIME = 256
"""Samples that go through the network together."""

UNLIKELY = 1e30
"""The loss of a sample whose loss is not finite."""


def sample_losses(batch: Batch, model: LocalModel | None) -> Tensor:
    """Return the loss of each sample `[s]`."""
    assert model is not None
    parts = [slice(at, at + SAMPLES_AT_A_TIME) for at in range(0, len(batch.labels), SAMPLES_AT_A_TIME)]
    found = [batch.task.losses(model(batch.inputs[some]), batch.labels[some]) for some in parts]
    return torch.cat(found).nan_to_num(UNLIKELY, UNLIKELY)


def read_labels(batch: Batch, _: LocalModel | None) -> Tensor:
    """Return the class of each sample `[s]`."""
    return batch.labels


@rule("mixture-shares")
@dataclass(frozen=True)
class MixtureShares(Rule):
    """Tell the client's shares of the received `models` `[K, P]`; nothing is trained (FedEM's E-step).

    Who is sent no `shares` `[K]` to begin with has equal ones. With `classes` `[K, C]`, how often each class is in
    each component, a sample's likelihood is divided by its class's (FedRC).
    """

    writes = False

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        return {f"share{k}": (0.0, 1.0) for k in range(len(order.items["models"].values))}

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the numbers `share0`, `share1`, …"""
        numbers, _ = yield from self._expect(client, order)
        return Answer(numbers=numbers)

    def _expect(self, client: Client, order: Order) -> Generator[Request, Any, tuple[dict[str, float], Tensor]]:
        """Return the shares, and how likely each sample comes from each component `[K, s]`."""
        models = order.items["models"].values
        equal = torch.full((len(models),), 1 / len(models))
        shares = order.items["shares"].values if "shares" in order.items else equal
        losses = torch.empty(len(models), client.samples)
        for row, model in zip(losses, models, strict=True):
            row.copy_((yield Inspect(sample_losses, model=model)))
        if "classes" in order.items:
            labels = yield Inspect(read_labels)
            losses += order.items["classes"].values.log()[:, labels]
        likely = (shares.log()[:, None] - losses).softmax(0)
        found = likely.mean(1).clamp(0, 1) if client.samples else shares
        return {f"share{k}": float(share) for k, share in enumerate(found)}, likely


@rule("mixture-update")
@dataclass(frozen=True)
class MixtureUpdate(MixtureShares):
    """Train all received `models` `[K, P]`, samples weighted by how likely they come from each (FedEM)."""

    components: Annotated[int, Field(ge=1, description="models K")] = 1
    uploads: ClassVar[tuple[str, ...]] = ("models",)

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"models": (self.components, layout.size)}

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the `models` `[K, P]`, and the shares as `MixtureShares` does."""
        numbers, likely = yield from self._expect(client, order)
        return (yield from self._train(client, order, numbers, likely))

    def _train(self, client: Client, order: Order, numbers: Mapping[str, float], likely: Tensor) -> Work:
        models, losses = torch.empty(self.components, client.layout.size), []
        for k, start in enumerate(order.items["models"].values):
            trained: Trained = yield Train(
                start,
                weights=None if self.components == 1 else likely[k],
                purpose=f"batches of component {k}" if k else "batches",
            )
            models[k] = trained.model
            losses.append(trained.loss)
        return Answer({"models": models}, numbers, report={"train_loss": sum(losses)})


@rule("concept-update")
@dataclass(frozen=True)
class ConceptUpdate(MixtureUpdate):
    """Do what `MixtureUpdate` does, and tell how often each class is in each component (FedRC)."""

    classes: Annotated[int, Field(ge=1, description="classes C")] = 1
    uploads: ClassVar[tuple[str, ...]] = ("models", "counts")

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {**super().shapes(layout), "counts": (self.components, self.classes)}

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the `models` `[K, P]`, the `counts` `[K, C]`, and the shares as `MixtureShares` does."""
        numbers, likely = yield from self._expect(client, order)
        answer = yield from self._train(client, order, numbers, likely)
        counts = torch.zeros(self.components, self.classes)
        if client.samples:
            counts.index_add_(1, (yield Inspect(read_labels)), likely)
        return replace(answer, uploads={**answer.uploads, "counts": counts})
