"""An engine on a device of its own: the same bits on the CPU, and every tensor in its place on any other."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.choice import choose_engine
from coterie.clients.engine.device import OnDevice
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import TaskLoss, Train, Training
from coterie.clients.rules.training import solver_size
from coterie.errors import BadInput
from coterie.models.networks import build
from coterie.models.origin import initialise
from tests.clients.engine.placement import CPU, SOLVERS, parts, requests
from tests.clients.engine.population import SEED, population


@pytest.mark.medium
@pytest.mark.parametrize(
    ("kind", "name", "solver"),
    [(Sequential, "fedtsdp-cnn", "momentum"), (Batched, "mlp", "sgd"), (Batched, "mlp", "adam")],
)
def test_on_the_cpu_it_gives_the_same_bits(kind: type[Sequential | Batched], name: str, solver: str) -> None:
    training = SOLVERS[solver]
    people = population(kind, training, name, counts=(20, 13, 5), features=(8, 8, 1))
    own, layout = build(name, {"hidden": [16]} if name == "mlp" else {}, (8, 8, 1), 4, SEED)
    initial = initialise(own, layout, SEED)
    moved = OnDevice(own, layout, people.data, training, SEED, initial, kind=kind, device=CPU)
    assert (moved.together, moved.one_process) == (people.engine.together, True)
    models = torch.stack(people.models)
    brought = Train(models[0], objective=TaskLoss(), extras={"other": models[1]})
    for request in [*requests(models, 0.1 * torch.ones(solver_size(training, layout))), brought]:
        found = moved.answer(people.clients, [request] * 3)
        expected = people.engine.answer(people.clients, [request] * 3)
        for a, b in zip(found, expected, strict=True):
            for one, other in zip(parts(a), parts(b), strict=True):
                assert type(one) is type(other)
                assert one is None or np.array_equal(one, other, equal_nan=True)
    x, _ = people.data.slice(0, "train")
    assert torch.equal(moved.outputs(models, x, 2.0), people.engine.outputs(models, x, 2.0))


@pytest.mark.slow
def test_no_tensor_is_left_behind() -> None:
    """In a process of its own, for PyTorch has one place for a device that it does not know."""
    done = subprocess.run([sys.executable, "-m", "tests.clients.engine.placement"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4", "combinations"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_device_there_is_no_such_engine() -> None:
    network, layout = build("mlp", {}, (4,), 3, 0)
    with pytest.raises(BadInput, match=r"run\.engine = 'gpu'.*no CUDA device"):
        choose_engine(network, layout, Training(), (4,), "gpu")


def test_what_a_gpu_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    network, layout = build("mlp", {}, (4,), 3, 0)
    assert choose_engine(network, layout, Training(), (4,), "gpu") == ("gpu", "as asked")
    assert choose_engine(network, layout, Training(precision="bf16"), (4,), "gpu") == ("gpu", "as asked")
    network, layout = build("gaussian-mlp", {}, (4,), 3, 0)
    with pytest.raises(BadInput, match=r"run\.engine = 'gpu'.*stochastic"):
        choose_engine(network, layout, Training(), (4,), "gpu")
