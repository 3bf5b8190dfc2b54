"""Golden vectors of FedEM from its authors (https://github.com/omarfoq/FedEM, commit 996fadd, Apache 2.0).

    git clone https://github.com/omarfoq/FedEM && git -C FedEM checkout 996fadd
    python -m tests.golden.from_fedem FedEM

Runs their aggregator, clients and learners as their `run_experiment.py` builds them, all clients in every round.
Their loaders hand out the number of each sample, so that orders need but be noted. The two components are drawn far
apart, for what starts alike separates only after hundreds of rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.golden.notes import pad_orders
from tests.golden.vectors import BATCH, CLASSES, FEATURES, HIDDEN, SIZES, draw_federation, flatten, write

ROUNDS, COMPONENTS, EPOCHS = 4, 2, 2


class Numbered(Dataset[Any]):
    """A client's samples, each with its number."""

    def __init__(self, inputs: Any, labels: Any) -> None:
        self.inputs, self.labels = torch.from_numpy(inputs), torch.from_numpy(labels)
        self.targets = labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Any, Any, int]:
        return self.inputs[number], self.labels[number], number


class NotedNumbers:
    """A loader that notes in which order it hands out the samples."""

    def __init__(self, loader: Any) -> None:
        self.dataset, self._loader = loader.dataset, loader
        self.passes: list[list[int]] = []

    def __iter__(self) -> Iterator[Any]:
        order: list[int] = []
        self.passes.append(order)
        for batch in self._loader:
            order += batch[2].tolist()
            yield batch


def draw_components() -> list[nn.Module]:
    """Return the networks that components start from, the same ones in every call."""
    torch.manual_seed(24)
    networks: list[nn.Module] = [
        nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)) for _ in range(COMPONENTS)
    ]
    for network in networks:
        for values in network.parameters():
            values.data.mul_(2)
    return networks


def main(checkout: Path) -> None:
    """Write one file."""
    sys.path.insert(0, str(checkout.resolve()))
    aggregator: Any = import_module("aggregator")
    clients: Any = import_module("client")
    learner: Any = import_module("learners.learner")
    ensemble: Any = import_module("learners.learners_ensemble")
    inputs, labels, bounds = draw_federation(24, groups=2)
    networks = draw_components()

    def learners() -> Any:
        """Return an ensemble of learners that start from the same models."""
        each = []
        for own in draw_components():
            loss, solver = nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(own.parameters(), lr=0.1)
            each.append(
                learner.Learner(own, loss, lambda guess, label: (guess.argmax(1) == label).sum(), "cpu", solver)
            )
        return ensemble.LearnersEnsemble(each, torch.ones(COMPONENTS) / COMPONENTS)

    logger = SimpleNamespace(add_scalar=lambda *_: None)
    loaders, all_clients = [], []
    for a, b in bounds:
        samples = Numbered(inputs[a:b], labels[a:b])
        loaders.append(NotedNumbers(DataLoader(samples, BATCH, shuffle=True)))
        plain = DataLoader(samples, BATCH)
        all_clients.append(clients.MixtureClient(learners(), loaders[-1], plain, plain, logger, EPOCHS))
        loaders[-1].passes.clear()  # the client's own first look, which nothing is trained on
    server = aggregator.CentralizedAggregator(all_clients, learners(), 1000, logger, logger)
    start = np.stack([flatten(network.parameters()) for network in networks])
    models, shares, orders = [], [], []
    for _ in range(ROUNDS):
        server.mix()
        models.append(np.stack([flatten(one.model.parameters()) for one in server.global_learners_ensemble]))
        shares.append(np.stack([c.learners_ensemble.learners_weights.numpy() for c in all_clients]))
        orders.append([[list(order) for order in loader.passes] for loader in loaders])
        for loader in loaders:
            loader.passes.clear()
    write(
        "fedem",
        {
            "inputs": inputs, "labels": labels.astype(np.int8), "bounds": bounds.astype(np.int16),
            "initial": start[0], "start": start, "orders": pad_orders(orders),
            "cohort": np.tile(np.arange(len(SIZES), dtype=np.int8), (ROUNDS, 1)),
            "models": np.stack(models), "shares": np.stack(shares),
        },
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
