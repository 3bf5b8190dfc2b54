"""Golden vectors of FedRC from its authors (https://github.com/LINs-lab/FedRC, commit ce79229, MIT).

    git clone https://github.com/LINs-lab/FedRC && git -C FedRC checkout ce79229
    python -m tests.golden.from_fedrc FedRC

Runs their aggregator, clients (`FedRC`) and learners as their `run_experiment.py` builds them, all clients in every
round. That file's loop adds up the classes that clients tell and hands out their shares; the three lines of it are
here, for they are in no function. Their `models` asks for torchvision, of which nothing is used here.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.golden.from_fedem import COMPONENTS, EPOCHS, ROUNDS, NotedNumbers, Numbered, draw_components
from tests.golden.notes import pad_orders
from tests.golden.vectors import BATCH, CLASSES, SIZES, draw_federation, flatten, write


def main(checkout: Path) -> None:
    """Write one file."""
    sys.path.insert(0, str(checkout.resolve()))
    sys.modules["models"] = ModuleType("models")
    vars(sys.modules["models"])["Classifier"] = object
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
            each[-1].phi_model = None  # for a look at the data after the first round, which other methods use
        return ensemble.LearnersEnsemble(each, torch.ones(COMPONENTS) / COMPONENTS, "cpu")

    logger = SimpleNamespace(add_scalar=lambda *_: None)
    loaders, all_clients = [], []
    for a, b in bounds:
        samples = Numbered(inputs[a:b], labels[a:b])
        loaders.append(NotedNumbers(DataLoader(samples, BATCH, shuffle=True)))
        plain = DataLoader(samples, BATCH)
        own = clients.FedRC(learners(), loaders[-1], plain, plain, logger, EPOCHS, class_number=CLASSES)
        all_clients.append(own)
        loaders[-1].passes.clear()

    class Silent(aggregator.CentralizedAggregator):  # type: ignore[misc]  # it is what the checkout says
        def write_logs(self) -> None:
            """Write no file of scores."""

    server = Silent(all_clients, learners(), 1000, logger, logger)
    models, shares, classes, orders = [], [], [], []
    for _ in range(ROUNDS):
        server.mix()
        counts = torch.stack([client.labels_learner_weights for client in all_clients]).sum(0).clamp_min(1e-8)
        told = (counts / counts.sum(1, keepdim=True)).tolist()
        for client in all_clients:
            client.update_labels_weights(told)
        models.append(np.stack([flatten(one.model.parameters()) for one in server.global_learners_ensemble]))
        shares.append(np.stack([c.learners_ensemble.learners_weights.numpy() for c in all_clients]))
        classes.append(np.array(told, np.float32))
        orders.append([[list(order) for order in loader.passes] for loader in loaders])
        for loader in loaders:
            loader.passes.clear()
    start = np.stack([flatten(network.parameters()) for network in networks])
    write(
        "fedrc",
        {
            "inputs": inputs, "labels": labels.astype(np.int8), "bounds": bounds.astype(np.int16),
            "initial": start[0], "start": start, "orders": pad_orders(orders),
            "cohort": np.tile(np.arange(len(SIZES), dtype=np.int8), (ROUNDS, 1)),
            "models": np.stack(models), "shares": np.stack(shares), "classes": np.stack(classes),
        },
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
