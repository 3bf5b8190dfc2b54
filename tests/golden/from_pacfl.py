"""Golden vectors of PACFL from its authors (https://github.com/MMorafah/PACFL, commit 7ef000d, no licence).

    git clone https://github.com/MMorafah/PACFL && git -C PACFL checkout 7ef000d
    python -m tests.golden.from_pacfl PACFL

Runs their main script with their clients, singular vectors, angles, clustering and averages. What is handed to it
instead of its own is the data and the network (`src.data`, `src.models`, `src.utils`), and a torchvision that is
empty. It needs a GPU by name, and asks NumPy for a name of infinity that is gone.

Their angles tell a vector from its opposite, and which of the two comes out is up to LAPACK. So inputs are
positive, as pixels are, only the first vector of each class is compared, and it points to where its numbers are
positive.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.golden.notes import NotedLoader, pad_orders
from tests.golden.vectors import BATCH, CLASSES, HIDDEN, SIZES, draw_federation, flatten, write

ROUNDS, USERS, FEATURES, VECTORS, THRESHOLD = 4, len(SIZES), 16, 1, 21.0


class Local(TensorDataset):
    """Samples of one client; theirs asks for them by these names."""

    @property
    def data(self) -> Any:
        return self.tensors[0].numpy()

    @property
    def target(self) -> Any:
        return self.tensors[1].numpy()


def options() -> SimpleNamespace:
    """Return what their command line would say."""
    return SimpleNamespace(
        rounds=ROUNDS, num_users=USERS, frac=0.8, local_ep=2, local_bs=BATCH, batch_size=BATCH, lr=0.1,
        momentum=0.5, gpu=0, savedir="save/", datadir="", logdir="", alg="pacfl", partition="golden",
        dataset="generated", beta=0.5, model="", cluster_alpha=THRESHOLD, n_basis=VECTORS, linkage="average",
        noise=0, noise_type="level", load_initial="", print_freq=100, trial=1,
    )  # fmt: skip


def module(name: str, **content: Any) -> Any:
    """Stand in for a module of theirs."""
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content)
    return sys.modules[name]


def main(checkout: Path) -> None:
    """Write one file."""
    sys.path.insert(0, str(checkout.resolve()))
    vars(torch.cuda).update(set_device=lambda _: None)
    torch.Tensor.cuda = lambda self: self  # type: ignore[assignment,method-assign,misc]  # all stay on the CPU
    vars(np)["NINF"] = -np.inf
    svd = np.linalg.svd

    def positive_svd(columns: Any, full_matrices: bool) -> Any:
        left, values, right = svd(columns, full_matrices=full_matrices)
        return left * np.where(left.sum(0) < 0, -1, 1), values, right

    np.linalg.svd = positive_svd  # type: ignore[assignment]
    inputs, labels, bounds = draw_federation(24, features=FEATURES, groups=1)
    inputs = np.exp(inputs / 2)
    rows = {i: np.arange(a, b) for i, (a, b) in enumerate(bounds)}
    for client in range(1, USERS, 2):
        inputs[rows[client]] = inputs[rows[client], ::-1]
    turns: list[dict[str, Any]] = []
    found: dict[str, Any] = {}

    def loaders(*given: Any, dataidxs_test: Any = None) -> tuple[Any, ...]:
        """Return their four things: for all, or for the client whose samples are asked for."""
        own = np.arange(len(inputs)) if len(given) == 4 else given[4]
        data = Local(torch.from_numpy(inputs[own]), torch.from_numpy(labels[own]))
        return DataLoader(data, BATCH, shuffle=len(given) > 4), DataLoader(data, BATCH), data, data

    def network() -> nn.Module:
        torch.manual_seed(24)
        return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))

    counts = {i: Counter(labels[own].tolist()) for i, own in rows.items()}
    transforms = module("torchvision.transforms")
    module("torchvision", datasets=module("torchvision.datasets"), transforms=transforms)
    partition = (inputs, labels, inputs, labels, rows, rows, counts, counts)
    module("src.data", partition_data=lambda *_, **__: partition, get_dataloader=loaders)
    module("src.data.data", DatasetSplit=object)
    module("src.models", PerceptronModel=network)
    clustering: Any = import_module("src.clustering")
    clients: Any = import_module("src.client")
    module("src.utils", args_parser=options, eval_test=import_module("src.clustering.cluster_fl").eval_test)

    class Noted(clients.Client_ClusterFL):  # type: ignore[misc]  # it is what the checkout says
        def train(self, is_print: bool = False) -> Any:
            turn: dict[str, Any] = {"client": self.name, "orders": []}
            plain: Any = vars(self)["ldr_train"]
            self.ldr_train: Any = NotedLoader(plain, inputs[rows[self.name]], turn["orders"])
            loss = super().train(is_print)
            self.ldr_train = plain
            turns.append(turn | {"trained": flatten(self.net.parameters())})
            return loss

    their_angles, their_clusters = clustering.calculating_adjacency, clustering.hierarchical_clustering

    def noted_angles(*given: Any) -> Any:
        found["angles"] = their_angles(*given)
        return found["angles"].copy()

    def noted_clusters(*given: Any, **others: Any) -> Any:
        found["clusters"] = their_clusters(*given, **others)
        return found["clusters"]

    clustering.calculating_adjacency, clustering.hierarchical_clustering = noted_angles, noted_clusters
    clients.Client_ClusterFL = Noted
    initial = flatten(network().parameters())
    np.random.seed(24)
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        # Their report at the end asks for more than a run of four rounds has.
        theirs = runpy.run_path(str(Path(sys.path[0], "main_pacfl.py")), run_name="__main__")
        os.chdir("/")
    groups = np.zeros(USERS, np.int8)
    for label, members in enumerate(found["clusters"]):
        groups[members] = label
    last = np.stack([flatten(theirs["w_glob_per_cluster"][k].values()) for k in groups])
    each = len(turns) // ROUNDS
    orders: list[list[Any]] = [[[] for _ in range(USERS)] for _ in range(ROUNDS)]
    trained = np.zeros((ROUNDS, USERS, len(initial)), np.float32)
    for number in range(ROUNDS):
        for turn in turns[number * each : (number + 1) * each]:
            trained[number, turn["client"]] = turn["trained"]
            orders[number][turn["client"]] = turn["orders"]
    cohort = np.array([[t["client"] for t in turns[i * each : (i + 1) * each]] for i in range(ROUNDS)], np.int8)
    write(
        "pacfl",
        {
            "inputs": inputs, "labels": labels.astype(np.int8), "bounds": bounds.astype(np.int16),
            "initial": initial, "orders": pad_orders(orders), "clients": trained, "cohort": np.sort(cohort),
            "angles": found["angles"], "groups": groups, "last": last, "threshold": np.array(THRESHOLD),
        },
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
