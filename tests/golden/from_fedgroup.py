"""Golden vectors of FedGroup from its authors (https://github.com/morningD/FlexCFL, commit 968b5fa, no licence).

    git clone https://github.com/morningD/FlexCFL && git -C FlexCFL checkout 968b5fa
    python -m tests.golden.from_fedgroup FlexCFL

Runs their trainer (`fedgroup.py`) with their server, groups and clients. Keras is stood in for by a network that
takes their calls; it meets samples in the order in which they lie. So are their data and their writer of results.

Their clients first train for 50 minibatches. Here that is passes over their data, as in a line of theirs that is
commented out. Of eight clients six are clustered, so that others join.
"""

from __future__ import annotations

import random
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.golden.vectors import BATCH, CLASSES, FEATURES, HIDDEN, draw_federation, flatten, write

SIZES = (8, 20, 12, 32, 16, 24, 12, 28)
ROUNDS, TAKING_PART, GROUPS, POOL, FIRST_EPOCHS, EPOCHS, RATE, GROUP_LR = 5, 4, 2, 3, 6, 2, 0.1, 0.2


def module(name: str, **content: Any) -> None:
    """Stand in for a module."""
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content, __spec__=ModuleSpec(name, None))


class Network:
    """What their code asks of a model of Keras."""

    def __init__(self) -> None:
        torch.manual_seed(31)
        self.net = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
        self.layers = [SimpleNamespace(output_shape=(None, CLASSES))]

    def get_weights(self) -> list[Any]:
        return [values.detach().numpy().copy() for values in self.net.parameters()]

    def set_weights(self, weights: list[Any]) -> None:
        for values, given in zip(self.net.parameters(), weights, strict=True):
            values.data = torch.from_numpy(np.asarray(given, np.float32).copy())

    def fit(self, x: Any, y: Any, batch_size: int, epochs: int, verbose: int) -> Any:
        inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=RATE)
        for _ in range(epochs):
            for start in range(0, len(inputs), batch_size):
                some = slice(start, start + batch_size)
                optimizer.zero_grad()
                loss: Any = nn.functional.cross_entropy(self.net(inputs[some]), labels[some])
                loss.backward()
                optimizer.step()
        return SimpleNamespace(history={"accuracy": [0.0], "loss": [0.0]})

    def evaluate(self, *_: Any, verbose: int) -> tuple[float, float]:
        return 0.0, 0.0


def main(checkout: Path) -> None:
    """Write one file."""
    sys.path.insert(0, str(checkout.resolve()))
    vars(np)["float"] = float
    module("tensorflow", random=SimpleNamespace(set_seed=lambda _: None))
    module("termcolor", colored=lambda text, *_, **__: text)
    silent = SimpleNamespace(write_summary=lambda *_: None)
    module("utils.export_result", ResultWriter=lambda _: silent)
    inputs, labels, bounds = draw_federation(31, SIZES, groups=GROUPS)
    data = [{"x": inputs[a:b], "y": labels[a:b]} for a, b in bounds]
    module("utils.read_data", read_federated_data=lambda _: (list(range(len(SIZES))), data, data))
    module("flearn.model.golden.mlp", construct_model=lambda *_: Network())
    theirs: Any = import_module("flearn.trainer.fedgroup")
    actor: Any = import_module("flearn.actor").Actor

    def train_passes(client: Any, _: int, batch_size: int, pretrain: bool) -> Any:
        return client.solve_inner(FIRST_EPOCHS, batch_size, pretrain)

    actor.solve_iters = train_passes
    rounds: list[dict[str, Any]] = []

    class Noted(theirs.FedGroup):  # type: ignore[misc]  # it is what the checkout says
        def group_cold_start(self, *, random_centers: bool) -> None:
            super().group_cold_start(alpha=POOL, random_centers=random_centers)
            self.pool = [client.id for client in self.clients if client.clustering]
            self.first = [flatten(map(torch.from_numpy, group.opt_updates)) for group in self.groups]
            self.initial = flatten(map(torch.from_numpy, self.init_params))

        def select_clients(self, comm_round: int, num_clients: int = TAKING_PART) -> Any:
            chosen = random.Random(comm_round).sample(self.clients, num_clients)
            self.chosen = sorted(client.id for client in chosen)
            return chosen

        def update_auxiliary_global_model(self, groups: Any) -> None:
            super().update_auxiliary_global_model(groups)
            if hasattr(self, "chosen"):
                own = [client.uplink[0].id if client.uplink else -1 for client in self.clients]
                models = [np.concatenate([np.ravel(w) for w in group.latest_params]) for group in self.groups]
                rounds.append({"cohort": self.chosen, "groups": own, "models": np.stack(models).astype(np.float32)})

    trainer = {
        "dataset": "golden", "model": "mlp", "seed": 2077, "num_rounds": ROUNDS, "clients_per_round": TAKING_PART,
        "eval_every": 1, "eval_locally": False, "eval_global_model": False, "dynamic": False, "swap_p": 0,
        "shift_type": None, "num_group": GROUPS, "group_agg_lr": GROUP_LR, "measure": "EDC", "RAC": False,
        "RCC": False, "temp_metrics": "l2", "temp_func": "step", "temp_agg": False, "recluster_epoch": None,
    }  # fmt: skip
    client = {"local_epochs": EPOCHS, "learning_rate": RATE, "batch_size": BATCH, "temperature": None}
    group = {"consensus": False, "max_clients": 999, "allow_empty": True}
    run = Noted(
        SimpleNamespace(trainer_type="fedgroup", trainer_config=trainer, client_config=client, group_config=group)
    )
    run.train()
    orders = np.full((ROUNDS, len(SIZES), FIRST_EPOCHS, max(SIZES)), -1, np.int8)
    for number, size in enumerate(SIZES):
        orders[:, number, :, :size] = np.arange(size)
    noted = {name: np.array([one[name] for one in rounds]) for name in rounds[0]}
    write(
        "fedgroup",
        {
            "inputs": inputs, "labels": labels.astype(np.int8), "bounds": bounds.astype(np.int16),
            "initial": run.initial, "orders": orders, "pool": np.array(run.pool, np.int8),
            "updates": np.stack(run.first), "group_lr": np.array(GROUP_LR), "models": noted["models"],
            "groups": noted["groups"].astype(np.int8), "cohort": noted["cohort"].astype(np.int8),
        },
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
