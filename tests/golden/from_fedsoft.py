"""Golden vectors of FedSoft from its authors (https://github.com/ycruan/FedSoft, commit e71a4ab, no licence).

    git clone https://github.com/ycruan/FedSoft && git -C FedSoft checkout e71a4ab
    python -m tests.golden.from_fedsoft FedSoft

Runs their server and clients, all of which take part (`do_selection` off), with plain SGD where they have Adam.
Their server hands `estimate_importance_weights` a word that it does not take; here it is dropped. Their logger is
silent, for it writes files. Their loaders do not shuffle, so the orders are known.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.golden.vectors import BATCH, CLASSES, FEATURES, HIDDEN, SIZES, draw_federation, flatten, write

ROUNDS, CLUSTERS, EPOCHS = 5, 2, 2


def main(checkout: Path) -> None:
    """Write one file."""
    sys.path.insert(0, str(checkout.resolve()))
    sys.modules["utils"] = ModuleType("utils")
    vars(sys.modules["utils"])["logger"] = None
    servers: Any = import_module("servers")
    clients: Any = import_module("clients")
    solvers: Any = import_module("solvers")
    inputs, labels, bounds = draw_federation(24, groups=2)

    class Solver(solvers.Cifar10CNNClientSolver):  # type: ignore[misc]  # it is what the checkout says
        def __init__(self) -> None:
            super().__init__()
            self.batch_size, self.local_epoch, self.num_classes = BATCH, EPOCHS, CLASSES
            self.optimizer_type, self.lr, self.reg_weight = torch.optim.SGD, 0.1, 0.5

    class Client(clients.Client):  # type: ignore[misc]
        def estimate_importance_weights(self, *_: Any) -> None:
            super().estimate_importance_weights()

    torch.manual_seed(24)

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))

    def on_samples(a: int, b: int) -> TensorDataset:
        return TensorDataset(torch.from_numpy(inputs[a:b]), torch.from_numpy(labels[a:b]))

    all_clients = [Client(i, on_samples(a, b), Solver()) for i, (a, b) in enumerate(bounds)]
    rounds: list[dict[str, Any]] = []

    class Noted:
        """What their server calls after every round."""

        def validate(self, client_vec: Any, cluster_vec: Any, t: int) -> None:
            rounds.append(
                {
                    "clients": np.stack([flatten(client.model.parameters()) for client in client_vec]),
                    "models": np.stack([flatten(model.parameters()) for model in cluster_vec]),
                    "shares": np.stack([client.get_importance(count=False) for client in client_vec]),
                }
            )

    servers.logger = type("Silent", (), {"log_validation_data": lambda *_: None})
    solver = solvers.ServerSolver(do_selection=False, estimation_interval=2)
    server = servers.Server(network, all_clients, CLUSTERS, Noted(), solver)
    initial = flatten(server.client_init_model.parameters())
    start = np.stack([flatten(model.parameters()) for model in server.cluster_vec])
    server.run(ROUNDS)
    orders = np.full((ROUNDS, len(SIZES), EPOCHS, max(SIZES)), -1, np.int8)
    for client, size in enumerate(SIZES):
        orders[:, client, :, :size] = np.arange(size)
    write(
        "fedsoft",
        {
            "inputs": inputs, "labels": labels.astype(np.int8), "bounds": bounds.astype(np.int16),
            "initial": initial, "start": start, "orders": orders,
            "cohort": np.tile(np.arange(len(SIZES), dtype=np.int8), (ROUNDS, 1)),
            **{name: np.stack([one[name] for one in rounds]) for name in ("clients", "models", "shares")},
        },
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
