"""Golden vectors of StoCFL from its authors (https://github.com/dunzeng/StoCFL, commit bd6d031, MIT).

    git clone https://github.com/dunzeng/StoCFL && git -C StoCFL checkout bd6d031
    python -m tests.golden.from_stocfl StoCFL

Runs their server (`StoCFL-FCC.py`) and the training of their clients (`FEMNISTTrainer`). FedLab, by which they hand
vectors to networks and average them, is stood in for by the few functions that they use; so are their data. Their
loaders do not shuffle, so the orders are known.

In their loop over the clients of a round the common model goes on from client to client before it is averaged. Here
each client starts from the common model, as in the paper's Algorithm 1.
"""

from __future__ import annotations

import os
import random
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.golden.vectors import BATCH, CLASSES, FEATURES, HIDDEN, SIZES, draw_federation, flatten, write

ROUNDS, EPOCHS, FIRST_EPOCHS, COHORT, THRESHOLD = 5, 2, 6, 3, 0.3


def module(name: str, **content: Any) -> None:
    """Stand in for a module; what nothing here uses is `object`."""

    def find(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        return object

    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content, __getattr__=find, __path__=[], __spec__=ModuleSpec(name, None))


def serialise(model: nn.Module) -> torch.Tensor:
    return torch.from_numpy(flatten(model.parameters()))


def deserialise(model: nn.Module, values: torch.Tensor) -> None:
    nn.utils.vector_to_parameters(values.clone(), model.parameters())


class Holder:
    """What their server and their trainer are derived from: something that holds a network."""

    def __init__(self, model: nn.Module, *_: Any) -> None:
        self._model = model
        self.cuda = False

    @property
    def model_parameters(self) -> torch.Tensor:
        return serialise(self._model)


def stand_in_for_fedlab() -> None:
    tools = SimpleNamespace(serialize_model=serialise, deserialize_model=deserialise)
    averages = SimpleNamespace(fedavg_aggregate=lambda models: torch.stack(models).mean(0))
    silent = type("Logger", (), {"__init__": lambda *_: None, "info": lambda *_: None})
    module("fedlab")
    module("fedlab.core")
    module("fedlab.core.client")
    module("fedlab.core.model_maintainer", ModelMaintainer=Holder)
    module("fedlab.core.client.serial_trainer", SerialTrainer=Holder)
    module("fedlab.utils", SerializationTool=tools, Aggregators=averages, Logger=silent)
    for name in ("functional", "dataset", "dataset.slicing"):
        module(f"fedlab.utils.{name}", evaluate=lambda *_: (0.0, 0.0))
    others = (
        "cvxopt",
        "torchvision",
        "torchvision.transforms",
        "models",
        "models.cnn",
        "models.linear",
        "settings",
    )
    for name in (*others, "leaf", "leaf.dataloader", "leaf.pickle_dataset", "datasets", "tqdm"):
        module(name, tqdm=lambda some: some)


def main(checkout: Path) -> None:
    """Write one file."""
    sys.path.insert(0, str(checkout.resolve()))
    stand_in_for_fedlab()
    trainer: Any = import_module("trainer")
    spec = spec_from_file_location("stocfl", checkout / "StoCFL-FCC.py")
    assert spec is not None
    assert spec.loader is not None
    server_module: Any = module_from_spec(spec)
    spec.loader.exec_module(server_module)
    inputs, labels, bounds = draw_federation(25, groups=2)
    torch.manual_seed(24)
    network = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    initial = flatten(network.parameters())
    folder = TemporaryDirectory()
    args = SimpleNamespace(
        com_round=1, num_per_round=COHORT, tau=THRESHOLD, train=1, mu=0.5, lr=0.1, epochs=EPOCHS,
        obep=FIRST_EPOCHS, obbs=BATCH, batch_size=BATCH, client_num=len(SIZES), dir=folder.name, setting="golden",
        exp_logger=SimpleNamespace(info=lambda *_: None),
    )  # fmt: skip

    class Trainer(trainer.FEMNISTTrainer):  # type: ignore[misc]  # it is what the checkout says
        def __init__(self) -> None:
            Holder.__init__(self, network)
            self.args, self.client_num = args, args.client_num
            self.optimizer = torch.optim.SGD(network.parameters(), lr=args.lr)

        def _get_dataloader(self, client_id: int, batch_size: int) -> Any:
            a, b = bounds[client_id]
            samples = TensorDataset(torch.from_numpy(inputs[a:b]), torch.from_numpy(labels[a:b]))
            return DataLoader(samples, batch_size)

        def train(self, id_list: Any, cluster_models: Any, gmodel: Any) -> Any:
            each = [
                super(Trainer, self).train([i], [model], gmodel)
                for i, model in zip(id_list, cluster_models, strict=True)
            ]
            return [own for (own,), _ in each], [common for _, (common,) in each]

        def get_test_dataloader(self, *_: Any) -> None:
            """Score nothing."""

        def evaluate(self, *_: Any) -> tuple[float, float]:
            """Score nothing."""
            return 0.0, 0.0

    rounds: list[dict[str, Any]] = []

    class Server(server_module.StandaloneServer):  # type: ignore[misc]  # it is what the checkout says
        def bucket(self, client_list: Any, movements: Any) -> Any:
            self.cohort = client_list
            return super().bucket(client_list, movements)

    server = Server(network, False, Trainer(), args)
    random.seed(24)
    for _ in range(ROUNDS):
        server.main()
        groups = [server.find_client_cluster[i] if i in server.psi else -1 for i in range(len(SIZES))]
        none = torch.zeros(len(initial))
        models = [server.cluster_parameters.get(group, none).numpy() for group in groups]
        common = server.gmodel.numpy()
        rounds.append(
            {"groups": np.array(groups), "models": np.stack(models), "common": common, "cohort": server.cohort}
        )
    os.chdir("/")
    folder.cleanup()
    orders = np.full((ROUNDS, len(SIZES), FIRST_EPOCHS, max(SIZES)), -1, np.int8)
    for client, size in enumerate(SIZES):
        orders[:, client, :, :size] = np.arange(size)
    noted = {name: np.stack([one[name] for one in rounds]) for name in rounds[0]}
    write(
        "stocfl",
        {
            "inputs": inputs, "labels": labels.astype(np.int8), "bounds": bounds.astype(np.int16),
            "initial": initial, "orders": orders, **noted, "groups": noted["groups"].astype(np.int8),
            "cohort": noted["cohort"].astype(np.int8), "threshold": np.array(THRESHOLD),
        },
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
