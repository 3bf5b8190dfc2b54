"""Golden vectors from PFLlib (https://github.com/TsingZ0/PFLlib, commit d832e76, Apache 2.0).

    git clone https://github.com/TsingZ0/PFLlib && git -C PFLlib checkout d832e76
    python -m tests.golden.from_pfllib PFLlib

Runs PFLlib's own servers and clients, which read the tiny federation from files as they always do. Besides PyTorch
and scikit-learn they need Matplotlib and, for FedPAC, CVXPY. `h5py` is an empty module here, because it serves
their file of accuracies alone, which is not written. Subclasses note the numbers and change none: which clients
take part, in which order a client meets its samples, and the weights of the server and of all clients. FedPAC alone
is mended, in two places that are said below.

A client's loader is seeded by client and round, so that Ditto's two models meet the same minibatches.
"""

from __future__ import annotations

import os
import random
import sys
from collections import OrderedDict
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tests.golden.notes import NotedLoader, pad_orders
from tests.golden.vectors import BATCH, CLASSES, FEATURES, HIDDEN, draw_federation, flatten, write

ROUNDS = 3

RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fedavg": ("serveravg", "FedAvg", {}),
    "fedprox": ("serverprox", "FedProx", {"mu": 0.5}),
    "fedper": ("serverper", "FedPer", {}),
    "fedrep": ("serverrep", "FedRep", {"plocal_epochs": 2, "local_epochs": 1}),
    "lg-fedavg": ("serverlg", "LG_FedAvg", {}),
    "fedbabu": ("serverbabu", "FedBABU", {"fine_tuning_epochs": 0}),
    "ditto": ("serverditto", "Ditto", {"mu": 0.5, "plocal_epochs": 1, "local_epochs": 1}),
    "per-fedavg": ("serverperavg", "PerAvg", {"local_epochs": 1}),
    "scaffold": ("serverscaffold", "SCAFFOLD", {"server_learning_rate": 1.0}),
    "fedbn": ("serverbn", "FedBN", {}),
    "pfedme": (
        "serverpFedMe",
        "pFedMe",
        {"lamda": 4.0, "K": 3, "p_learning_rate": 0.05, "beta": 1.0, "join_ratio": 1.0},
    ),
    "fedrod": ("serverrod", "FedROD", {"join_ratio": 1.0}),
    "fedpac": ("serverpac", "FedPAC", {"lamda": 0.8, "join_ratio": 1.0}),
    "fedamp": ("serveramp", "FedAMP", {"lamda": 0.0, "alphaK": 0.4, "sigma": 2.0, "join_ratio": 1.0}),
    "fedala": ("serverala", "FedALA", {"eta": 1.0, "rand_percent": 100, "layer_idx": 2, "join_ratio": 1.0}),
}
"""The file below `flcore/servers`, the class, and what differs from `settings`."""


def settings(model: nn.Module) -> dict[str, Any]:
    """Return what their servers and clients are built with; all that would be random but the order is off."""
    return {
        "model": model, "algorithm": "golden", "dataset": "tiny", "device": "cpu", "num_classes": CLASSES,
        "num_clients": 5, "global_rounds": ROUNDS - 1, "join_ratio": 0.8, "random_join_ratio": False,
        "local_epochs": 2, "batch_size": BATCH, "local_learning_rate": 0.1,
        "learning_rate_decay": False, "learning_rate_decay_gamma": 1.0,
        "few_shot": 0, "time_select": False, "goal": "", "time_threthold": 1e9, "save_folder_name": "items",
        "top_cnt": 100, "auto_break": False, "eval_gap": 1000, "client_drop_rate": 0.0, "train_slow_rate": 0.0,
        "send_slow_rate": 0.0, "dlg_eval": False, "dlg_gap": 100, "batch_num_per_client": 2,
        "num_new_clients": 0, "fine_tuning_epoch_new": 0,
    }  # fmt: skip


class NotedClient:
    """Beside one of their client classes: notes the orders of all passes of a round."""

    def load_train_data(self, *given: Any) -> Any:
        torch.manual_seed(100 * self.round + self.id)
        loader = super().load_train_data(*given)  # type: ignore[misc]  # of their class
        # FedRoD's looks at its labels before the first round.
        return NotedLoader(loader, self.inputs, self.passes) if self.round else loader

    def update_parameters(self, model: nn.Module, new: Any) -> None:
        """Note pFedMe's personal model, over which their code then loads the local one."""
        self.model_per = deepcopy(model)
        super().update_parameters(model, new)  # type: ignore[misc]  # of their class

    id: int
    round = 0
    inputs: NDArray[np.float32]
    passes: list[list[int]]


class NotedServer:
    """Beside one of their server classes: notes what happens in a round."""

    clients: list[Any]
    selected_clients: list[Any]
    global_model: nn.Module
    uploaded_heads: list[nn.Module]
    inputs: list[NDArray[np.float32]]
    """Of each client; beside their own, to recognise the samples by."""
    rs_test_acc: list[float]

    def set_clients(self, kind: type) -> None:
        super().set_clients(type("Noted", (NotedClient, kind), {}))  # type: ignore[misc]  # of their class
        self.rounds: list[dict[str, Any]] = []

    def send_models(self) -> None:
        super().send_models()  # type: ignore[misc]  # of their class
        for client in self.clients:
            client.inputs = self.inputs[client.id]
            client.passes, client.round = [], client.round + 1

    def evaluate(self) -> None:
        """Leave it out, for it only measures; their loop asks for the best accuracy in the end."""
        self.rs_test_acc = self.rs_test_acc_per = [0.0]

    evaluate_one_step = evaluate_personalized = evaluate

    def save_results(self) -> None:
        """Write no accuracies."""

    def receive_models(self) -> None:
        super().receive_models()  # type: ignore[misc]  # of their class
        self.rounds.append({"cohort": sorted(client.id for client in self.selected_clients)})
        self.rounds[-1]["orders"] = [client.passes for client in self.clients]
        self.rounds[-1]["clients"] = [flatten_all(client.model) for client in self.clients]
        for name, theirs in (("personal", "model_per"), ("message", "client_u"), ("heads", "head")):
            found = [flatten(getattr(c, theirs).parameters()) for c in self.clients if hasattr(c, theirs)]
            self.rounds[-1] |= {name: found} if len(found) == len(self.clients) else {}

    def aggregate_and_send_heads(self) -> None:
        """Note FedPAC's heads, mixed of what was uploaded; theirs mix what others were given since, too."""
        self.uploaded_heads = deepcopy(self.uploaded_heads)
        super().aggregate_and_send_heads()  # type: ignore[misc]  # of their class
        self.rounds[-1]["heads"] = [flatten(client.model.head.parameters()) for client in self.clients]

    def aggregate_parameters(self) -> None:
        super().aggregate_parameters()  # type: ignore[misc]  # of their class
        self.rounds[-1]["global"] = flatten_all(self.global_model)


def flatten_all(module: nn.Module) -> NDArray[np.float32]:
    """Return a module's parameters and running statistics as one vector."""
    statistics = [values for values in module.buffers() if values.is_floating_point()]
    return flatten([*module.parameters(), *statistics])


def keep_order(clients: list[Any], count: int) -> list[Any]:
    """Return the first of some clients, in their order; in the place of a sample."""
    return clients[:count]


def main(checkout: Path) -> None:
    """Write one file a method."""
    sys.path.insert(0, str(checkout.resolve() / "system"))
    sys.modules["h5py"] = ModuleType("h5py")
    inputs, labels, bounds = draw_federation(seed=24)
    torch.manual_seed(24)
    base, head = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU()), nn.Linear(HIDDEN, CLASSES)
    bases = {"fedbn": nn.Sequential(OrderedDict(fc=base[0], bn=nn.BatchNorm1d(HIDDEN), relu=base[1]))}
    sample = random.sample
    with TemporaryDirectory() as folder:
        for split in ("train", "test"):
            where = Path(folder, "dataset", "tiny", split)
            where.mkdir(parents=True)
            for client, (a, b) in enumerate(bounds):
                data = np.array({"x": inputs[a:b], "y": labels[a:b]}, object)
                np.savez(where / f"{client}.npz", data=data)
        Path(folder, "system").mkdir()
        os.chdir(Path(folder, "system"))
        for name, (file, kind, own) in RUNS.items():
            model = import_module("flcore.trainmodel.models").BaseHeadSplit(bases.get(name, base), head)
            random.seed(24)
            np.random.seed(24)
            # Their FedPAC weighs clients in the order of one draw, and mixes their heads in that of another.
            random.sample = keep_order if name == "fedpac" else sample  # type: ignore[assignment]  # of lists alone
            args = SimpleNamespace(**settings(model) | own)
            theirs = getattr(import_module(f"flcore.servers.{file}"), kind)
            server: Any = type("Noted", (NotedServer, theirs), {"inputs": [inputs[a:b] for a, b in bounds]})(
                args, 0
            )
            server.train()
            keys = sorted(server.rounds[0].keys() - {"orders"})
            found = {key: np.array([some[key] for some in server.rounds]) for key in keys}
            write(
                f"pfllib-{name}",
                {
                    "inputs": inputs, "labels": labels.astype(np.int8), "bounds": bounds.astype(np.int16),
                    "initial": flatten_all(model),
                    "orders": pad_orders([some["orders"] for some in server.rounds]), **found,
                },
            )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
