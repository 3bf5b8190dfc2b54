"""Whether every tensor of an engine is on its device: `python -m tests.clients.engine.placement`.

The device is one that is not there. Its tensors have places and no values, and an operation on tensors of two
devices fails as it would on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import backend_registration

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.device import OnDevice
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import (
    Client,
    Gradients,
    Inspect,
    Losses,
    MetaTrain,
    Request,
    Score,
    Train,
    Training,
)
from coterie.clients.rules.training import solver_size
from coterie.models.layout import Layout
from coterie.models.networks import NETWORKS
from tests.clients.engine.population import SEED, Samples

CPU = torch.device("cpu")

SOLVERS = {
    "sgd": Training(epochs=2, batch_size=10, lr=0.1),
    "momentum": Training(epochs=1, batch_size=10, momentum=0.9, weight_decay=0.01),
    "adam": Training(epochs=1, batch_size=10, lr=0.01, optimizer="adam"),
}


def requests(models: Tensor, solver: Tensor) -> list[Request]:
    """Something of everything that an engine is asked for."""
    start, other = models[:2]
    return [
        Train(start),
        Train(start, pull=0.5, anchor=other, linear=0.1 * other),
        Train(start, solver=solver, keep_solver=True),
        Losses(models[:2]),
        Losses(models[:2], samples=3),
        Train(start, clip=0.5, epochs=1),
        Inspect(lambda batch, model: batch.inputs.mean(0), model=other),
        Gradients(start, batches=2),
        Gradients(start, full=True),
        Score(start),
        MetaTrain(start, alpha=0.1, beta=0.1, second_order=True),
    ]


def parts(result: Any) -> list[Any]:
    """A tensor, or the fields of a result, and what lies in a field by name."""
    values = [result] if isinstance(result, Tensor) else [getattr(result, f.name) for f in fields(result)]
    return [part for v in values for part in (v.values() if isinstance(v, Mapping) else [v])]


@contextmanager
def valueless() -> Iterator[None]:
    """Tensors without values, and something in their stead where a value is asked for."""

    def numbers(tensor: FakeTensor) -> np.ndarray:
        assert tensor.device == CPU, "NumPy cannot see what lies on a device"
        return np.zeros(tuple(tensor.shape), np.int64 if tensor.dtype == torch.int64 else np.float32)

    getitem = Tensor.__getitem__

    def picked(tensor: Tensor, key: Any) -> Tensor:
        # How many places a mask picks depends on values.
        return tensor if isinstance(key, Tensor) and key.dtype == torch.bool else getitem(tensor, key)

    with (
        patch.object(FakeTensor, "numpy", numbers, create=True),
        patch.object(FakeTensor, "tolist", lambda tensor: np.zeros(tuple(tensor.shape)).tolist(), create=True),
        patch.object(FakeTensor, "__float__", lambda tensor: 1.0, create=True),
        patch.object(FakeTensor, "item", lambda tensor: 1.0, create=True),
        patch.object(torch, "bincount", lambda t, minlength: t.new_zeros(minlength)),
        patch.object(Tensor, "__getitem__", picked),
        FakeTensorMode(),
    ):
        yield


def check(kind: type[Sequential | Batched], name: str, training: Training, device: torch.device) -> None:
    """Ask an engine on the device for everything."""
    counts, features = (20, 13, 5), (8, 8, 1)
    layout = Layout.of(NETWORKS[name].target(features, 4))  # which looks at the values of buffers
    with valueless():
        network: nn.Module = NETWORKS[name].target(features, 4)
        initial = torch.zeros(layout.size)
        data = Samples(counts, features, 4)
        engine = OnDevice(network, layout, data, training, SEED, initial, kind=kind, device=device)
        clients = [Client(i, 2, n, SEED, layout, training, {}, initial.clone) for i, n in enumerate(counts)]
        models = torch.zeros(3, layout.size)
        for request in requests(models, torch.zeros(solver_size(training, layout))):
            for result in engine.answer(clients, [request] * 3):
                assert all(part.device == CPU for part in parts(result) if isinstance(part, Tensor))
        assert engine.outputs(models, data.slice(0, "train")[0]).device == CPU


def main() -> None:
    """Check every engine with every solver, and say how many that were."""
    backend_registration._setup_privateuseone_for_python_backend("far")
    count = 0
    for solver, kind, name in (
        ("momentum", Sequential, "fedtsdp-cnn"),
        ("sgd", Sequential, "resnet18"),
        ("sgd", Batched, "mlp"),
        ("adam", Batched, "mlp"),
    ):
        check(kind, name, SOLVERS[solver], torch.device("far"))
        count += 1
    print(count, "combinations")


if __name__ == "__main__":
    main()
