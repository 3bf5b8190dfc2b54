"""Golden vectors of CFL-GP from its authors (commit 0b1b4dd, no licence).

    git clone https://github.com/Heasung-Kim/clustered-federated-learning-via-gradient-based-partitioning CFL-GP
    git -C CFL-GP checkout 0b1b4dd
    python -m tests.golden.from_cfl_gp CFL-GP

Runs their server (`CentralUnit.run_CFLGP`, averaging models) with their clients. A network, data and a TensorBoard
that writes nothing are handed to it. All its models start alike, as here.

Clients are grouped in the first round alone. When they are grouped later, their code means to let clients train the
model that is sent to all, but lets them train their own, and files the update under that model. Grouping anew is
therefore run by itself: their `spectral_clustering_and_matching` gets profiles and the clusters before.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.golden.notes import NotedLoader, pad_orders
from tests.golden.vectors import BATCH, CLASSES, FEATURES, HIDDEN, draw_federation, flatten, write

SIZES = (20, 20, 12, 32, 16, 24, 12, 28)
ROUNDS, CLUSTERS, EPOCHS, REGROUPINGS = 4, 2, 2, 4


def module(name: str, **content: Any) -> None:
    """Stand in for a module."""
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content, __spec__=ModuleSpec(name, None))


def build() -> nn.Module:
    torch.manual_seed(32)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def main(checkout: Path) -> None:
    """Write one file."""
    sys.path.insert(0, str(checkout.resolve()))
    module("torch.utils.tensorboard", SummaryWriter=lambda **_: SimpleNamespace(flush=lambda: None))
    module("tqdm", tqdm=lambda some: some)
    theirs: Any = import_module("learning_agent.central_unit")
    their_client: Any = import_module("learning_agent.client").Client
    inputs, labels, bounds = draw_federation(32, SIZES, groups=CLUSTERS)
    orders: list[list[list[list[int]]]] = [[[] for _ in SIZES] for _ in range(ROUNDS)]
    clients = []
    for number, (a, b) in enumerate(bounds):
        data = TensorDataset(torch.from_numpy(inputs[a:b]), torch.from_numpy(labels[a:b]))
        client = their_client(
            build, lambda weights: torch.optim.SGD(weights, lr=0.1), data, data, use_scheduler=False,
            batch_size=BATCH, train_dataset_ratio=1.0, local_update_epoch=EPOCHS, task="classification",
            device="cpu",
        )  # fmt: skip
        client.train_dataset_loader = NotedLoader(client.train_dataset_loader, inputs[a:b], orders[0][number])
        clients.append(client)
    rounds: list[dict[str, Any]] = []

    def note_round(*_: Any, protocol: int) -> None:
        """Stand in for what keeps their figures at the end of a round."""
        models = [flatten(model.parameters()) for model in server.models]
        rounds.append({"groups": server.estimated_cluster_ids, "models": np.stack(models)})
        for client, after in zip(clients, orders[len(rounds) % ROUNDS], strict=True):
            client.train_dataset_loader.passes = after

    theirs.pickle = SimpleNamespace(dump=note_round, HIGHEST_PROTOCOL=0)
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        server = theirs.CentralUnit(
            build, clients, "golden", clustering_period=100, n_communication_rounds=ROUNDS, learning_rate=0.1,
            n_models=CLUSTERS, results_path_name=folder, load=False, optimizer_name="sgd", algorithm="CFLGP",
            evaluation_interval=100, protocol="model_averaging", subprotocol="no_subprotocol",
            task="classification", use_reduced_G=False, unknown_k=False, warmup_epoch=0,
            clustering_termination_threshold=1, device="cpu",
        )  # fmt: skip
        server.train()
        os.chdir("/")
    rng = np.random.default_rng(32)
    regroup: Any = import_module("learning_agent.utils").spectral_clustering_and_matching
    truth = rng.integers(0, 3, (REGROUPINGS, 12))
    profiles = (
        np.eye(3)[truth] @ rng.normal(size=(3, 30)) + 0.4 * rng.normal(size=(REGROUPINGS, 12, 30)) + 1
    ).astype(np.float32)
    before = np.where(rng.random(truth.shape) < 0.7, (truth + rng.integers(0, 3, (REGROUPINGS, 1))) % 3, 0)
    after = [
        regroup(each.T, 3, 12, old)["estimated_cluster_ids"] for each, old in zip(profiles, before, strict=True)
    ]
    noted = {name: np.stack([one[name] for one in rounds]) for name in rounds[0]}
    write(
        "cfl-gp",
        {
            "inputs": inputs, "labels": labels.astype(np.int8), "bounds": bounds.astype(np.int16),
            "initial": flatten(build().parameters()), "orders": pad_orders(orders), "models": noted["models"],
            "groups": noted["groups"].astype(np.int8),
            "cohort": np.tile(np.arange(len(SIZES), dtype=np.int8), (ROUNDS, 1)),
            "coordinates": server.reduced_gradient_profile_matrix.T, "profiles": profiles,
            "before": before.astype(np.int8), "after": np.stack(after).astype(np.int8),
        },
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
