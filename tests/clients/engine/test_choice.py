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
from coterie.clients.rules import LocalUpdate, Order, Training
from coterie.errors import BadInput
from coterie.models.layout import Layout
from coterie.models.networks import build
from tests.clients.engine.networks import Shifted
from tests.federated import planted

IMAGE = (28, 28, 1)


def choice(name: str, features: tuple[int, ...], batch_size: int, wanted: str = "auto", **settings: object) -> str:
    network, layout = build(name, settings, features, 10, 0)
    engine, reason = choose_engine(network, layout, Training(batch_size=batch_size), features, wanted)
    assert reason
    return engine


@pytest.mark.parametrize(
    ("name", "settings", "features", "batch_size", "engine"),
    [
        ("mlp", {"hidden": (32,)}, (8, 8, 1), 256, "batched"),
        ("mlp", {"hidden": (200,)}, IMAGE, 32, "batched"),
        ("mlp", {"hidden": (200,)}, IMAGE, 64, "sequential"),
        ("mlp", {"hidden": (500,)}, IMAGE, 10, "batched"),
        ("mlp", {"hidden": (512,)}, IMAGE, 1, "sequential"),
        ("mlp", {"hidden": ()}, IMAGE, 32, "batched"),
        ("cnn", {}, (8, 8, 1), 32, "batched"),
        ("cnn", {}, (8, 8, 1), 128, "sequential"),
        ("cnn", {}, (12, 12, 1), 10, "sequential"),
        ("har-cnn", {}, (128, 9), 10, "sequential"),
        ("lenet", {}, IMAGE, 10, "sequential"),
    ],
)
def test_networks_by_size(
    name: str, settings: dict[str, Any], features: tuple[int, ...], batch_size: int, engine: str
) -> None:
    assert choice(name, features, batch_size, **settings) == engine
    assert choice(name, features, batch_size, "sequential", **settings) == "sequential"
    assert choice(name, features, batch_size, "batched", **settings) == "batched"


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
        ((6, 4), [nn.Linear(4, 3), nn.Flatten()], "6x4"),
        ((6, 4), [nn.Conv2d(1, 2, 3), nn.Flatten()], "6x4"),
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
        ((4,), [Shifted(4, 2)]),
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


def test_an_unknown_request_is_named() -> None:
    network, layout = build("mlp", {"hidden": [4]}, (8, 8, 1), 10, 0)
    engine = Batched(network, layout, planted(clients=2), Training(), 0, torch.zeros(layout.size))
    asked: Any = ["maml", "maml"]
    with pytest.raises(TypeError, match=r"str; .*Train, Losses"):
        engine.answer([engine.client(Order(i, 1, LocalUpdate(), {}), {}) for i in range(2)], asked)
