"""Which engine an experiment gets, and why."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.choice import choose_engine, is_perceptron
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import LocalUpdate, Order, Training
from coterie.errors import BadInput
from coterie.models.layout import Layout
from coterie.models.networks import build
from tests.federated import planted

IMAGE = (28, 28, 1)


def choice(name: str, features: tuple[int, ...], batch_size: int, wanted: str = "auto", **settings: object) -> str:
    network, layout = build(name, settings, features, 10, 0)
    engine, reason = choose_engine(network, layout, Training(batch_size=batch_size), features, wanted)
    assert reason
    return engine


@pytest.mark.parametrize(
    ("hidden", "features", "batch_size", "engine"),
    [
        ((32,), (64,), 10, "batched"),
        ((32,), (8, 8, 1), 256, "batched"),
        ((64,), IMAGE, 64, "batched"),
        ((64,), IMAGE, 128, "sequential"),
        ((200,), IMAGE, 32, "batched"),
        ((200,), IMAGE, 64, "sequential"),
        ((500,), IMAGE, 10, "batched"),
        ((512,), IMAGE, 1, "sequential"),
        ((), IMAGE, 32, "batched"),
    ],
)
def test_perceptrons_by_size(
    hidden: tuple[int, ...], features: tuple[int, ...], batch_size: int, engine: str
) -> None:
    assert choice("mlp", features, batch_size, hidden=hidden) == engine
    assert choice("mlp", features, batch_size, "sequential", hidden=hidden) == "sequential"
    assert choice("mlp", features, batch_size, "batched", hidden=hidden) == "batched"


@pytest.mark.parametrize(
    ("name", "features", "batch_size", "engine"),
    [
        ("cnn", (8, 8, 1), 32, "batched"),
        ("cnn", (8, 8, 1), 128, "sequential"),
        ("cnn", (12, 12, 1), 10, "sequential"),
        ("cnn", IMAGE, 10, "sequential"),
        ("har-cnn", (32, 6), 32, "sequential"),
        ("har-cnn", (128, 9), 10, "sequential"),
        ("lenet", IMAGE, 10, "sequential"),
        ("femnist-cnn", IMAGE, 1, "sequential"),
    ],
)
def test_convolutions_by_work(name: str, features: tuple[int, ...], batch_size: int, engine: str) -> None:
    assert choice(name, features, batch_size) == engine
    assert choice(name, features, batch_size, "sequential") == "sequential"
    assert choice(name, features, batch_size, "batched") == "batched"


@pytest.mark.parametrize("name", ["resnet18", "fedtsdp-cnn", "gaussian-mlp", "gaussian-cnn"])
def test_other_networks_go_one_by_one(name: str) -> None:
    assert choice(name, IMAGE, 10) == "sequential"
    with pytest.raises(
        BadInput,
        match=r"engine = 'batched'.*sequential",
    ):
        choice(name, IMAGE, 10, "batched")


class Residual(nn.Sequential):
    """Its own kind of sequence, which adds what came in."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + found


class Squared(nn.Linear):
    """A dense layer that is none."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square()


@pytest.mark.parametrize(
    ("features", "modules", "says"),
    [
        (
            (4,),
            [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)],
            "1 .*BatchNorm1d",
        ),
        ((4,), [nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)], r"1 .*0\.5"),
        ((4,), [weight_norm(nn.Linear(4, 2))], "many models"),
        ((6, 4), [nn.Linear(4, 3), nn.Flatten()], "0 .*Linear,"),
        ((6, 4), [nn.Conv2d(1, 2, 3), nn.Flatten()], "0 .*Conv2d,"),
        (
            (6, 6, 1),
            [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, return_indices=True), nn.Flatten()],
            "zeros",
        ),
    ],
)
def test_what_cannot_be_batched(features: tuple[int, ...], modules: list[nn.Module], says: str) -> None:
    network = nn.Sequential(*modules)
    layout = Layout.of(network)
    engine, reason = choose_engine(network, layout, Training(), features, "auto")
    assert engine == "sequential"
    assert re.search(says, reason)
    with pytest.raises(BadInput, match=says) as error:
        choose_engine(network, layout, Training(), features, "batched")
    assert len(error.value.problems) == 1


@pytest.mark.parametrize(
    ("features", "modules"),
    [
        ((4,), [Residual(nn.Linear(4, 4)), nn.Linear(4, 2)]),
        ((4,), [Squared(4, 2)]),
        ((4,), [nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)]),
        ((6, 6, 1), [nn.Conv2d(1, 2, 3), nn.Linear(4, 3)]),
        ((6, 6, 1), [nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1)]),
        ((6, 6, 1), [nn.Conv2d(1, 2, 3), nn.Flatten(2)]),
        ((6, 6, 1), [nn.Conv2d(1, 2, 3, 1, 1, padding_mode="circular"), nn.Flatten()]),
    ],
)
def test_what_is_no_chain_is_vectorised(features: tuple[int, ...], modules: list[nn.Module]) -> None:
    network = nn.Sequential(*modules)
    layout = Layout.of(network)
    assert choose_engine(network, layout, Training(), features, "auto")[0] == "batched"
    assert choose_engine(network, layout, Training(), features, "batched") == ("batched", "as asked")


def test_perceptrons() -> None:
    first, last, twice = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(4, 4)
    assert is_perceptron(nn.Sequential(nn.Flatten(), first, nn.ReLU(), last))
    assert is_perceptron(nn.Sequential(last))
    for modules in (
        [first, nn.Tanh(), last],
        [first, last],
        [first, nn.ReLU()],
        [first, nn.ReLU(), nn.Flatten(), last],
        [nn.Linear(4, 2, bias=False)],
        [twice, nn.ReLU(), twice],
        [nn.Flatten()],
        [],
    ):
        assert not is_perceptron(nn.Sequential(*modules))


def test_an_engine_that_is_none() -> None:
    with pytest.raises(BadInput, match=r"'bached'.*batched"):
        choice("mlp", (4,), 10, "bached")


@pytest.mark.parametrize("kind", [Sequential, Batched])
def test_an_unknown_request_is_named(kind: type[Engine]) -> None:
    network, layout = build("mlp", {"hidden": [4]}, (8, 8, 1), 10, 0)
    engine = kind(network, layout, planted(clients=2), Training(), 0, torch.zeros(layout.size))
    asked: Any = ["maml", "maml"]
    with pytest.raises(TypeError, match=r"str; .*Train, Losses"):
        engine.answer([engine.client(Order(i, 1, LocalUpdate(), {}), {}) for i in range(2)], asked)
