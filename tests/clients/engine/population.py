"""Clients with synthetic samples, and engines that work for them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import Client, Training
from coterie.clients.rules.requests import Split
from coterie.clients.tasks import CLASSIFICATION, Task
from coterie.models.layout import Layout
from coterie.models.networks import build
from coterie.models.origin import initialise

SEED = 3
COUNTS = (50, 23, 33, 1, 64, 5, 20)
"""Samples of the clients: some fill their minibatches, some do not, one has a single sample."""


class Samples:
    """Gaussian samples with random labels; the test split of a client is its training split in reverse."""

    augment = None

    def __init__(self, counts: Sequence[int], features: tuple[int, ...], classes: int) -> None:
        self.classes = self.outputs = classes
        self.task: Task = CLASSIFICATION
        noise = torch.Generator().manual_seed(11)
        self.inputs = [torch.randn(n, *features, generator=noise) for n in counts]
        self.labels = [torch.randint(classes, (n,), generator=noise) for n in counts]

    def slice(self, client: int, split: Split) -> tuple[Tensor, Tensor]:
        x, y = self.inputs[client], self.labels[client]
        return (x, y) if split == "train" else (x.flip(0), y.flip(0))

    def to_numbers(self, stored: Tensor) -> Tensor:
        return stored


@dataclass(frozen=True)
class Population:
    """An engine, its clients, and a model of its own for each."""

    engine: Engine
    clients: list[Client]
    models: list[Tensor]
    data: Samples
    network: nn.Module
    """A network of nobody's, to compute with."""
    layout: Layout


def population(
    kind: type[Sequential] | type[Batched],
    training: Training,
    name: str | nn.Module = "mlp",
    counts: Sequence[int] = COUNTS,
    features: tuple[int, ...] = (8, 8, 1),
    classes: int = 4,
    **settings: Any,
) -> Population:
    """The same clients, samples and models for either kind of engine; the network by name, or one to copy."""
    if name == "mlp":
        settings = {"hidden": (16,), **settings}
    data = Samples(counts, features, classes)
    if isinstance(name, str):
        own, layout = build(name, settings, features, classes, SEED)
    else:
        own, layout = deepcopy(name), Layout.of(name)
        layout.bind(own, initialise(own, layout, SEED))
    other = deepcopy(own)
    initial = layout.flatten(own)
    engine = kind(own, layout, data, training, SEED, initial)
    noise = torch.Generator().manual_seed(12)
    models = []
    for _ in counts:
        model = initial.clone()
        part = layout.trainable.take(model)
        part += 0.05 * torch.randn(part.shape, generator=noise)
        models.append(model)
    clients = [Client(i, 2, n, SEED, layout, training, {}, initial.clone) for i, n in enumerate(counts)]
    return Population(engine, clients, models, data, other, layout)
