"""Which engine an experiment gets, and why."""

from __future__ import annotations

import pytest
from torch import nn

from coterie.clients import Training
from coterie.engine.choice import LARGEST_CHUNK, choose_engine, chunk_size
from coterie.models.layout import Layout
from coterie.models.networks import build
from coterie.problems import BadInput

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
        ((64,), IMAGE, 50, "batched"),
        ((64,), IMAGE, 64, "sequential"),
        ((200,), IMAGE, 10, "batched"),
        ((200,), IMAGE, 32, "sequential"),
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


@pytest.mark.parametrize("name", ["cnn", "lenet", "resnet18", "fedtsdp-cnn"])
def test_other_networks_go_one_by_one(name: str) -> None:
    assert choice(name, IMAGE, 10) == "sequential"
    with pytest.raises(
        BadInput, match=r"^engine = 'batched' is not possible: only .*; it must be sequential or auto$"
    ):
        choice(name, IMAGE, 10, "batched")


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        ([nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)], "1 is a BatchNorm1d"),
        ([nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)], "2 is a Dropout"),
        ([nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)], "1 is a Tanh"),
        ([nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2)], "0 has none"),
        ([nn.Linear(4, 8), nn.Linear(8, 2)], "one ReLU between each two"),
        ([nn.Linear(4, 2), nn.ReLU()], "one ReLU between each two"),
        ([nn.Linear(4, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)], "one ReLU between each two"),
    ],
)
def test_what_cannot_be_batched(modules: list[nn.Module], says: str) -> None:
    network = nn.Sequential(*modules)
    layout = Layout.of(network)
    engine, reason = choose_engine(network, layout, Training(), (4,), "auto")
    assert engine == "sequential"
    assert says in reason
    with pytest.raises(BadInput, match=says) as error:
        choose_engine(network, layout, Training(), (4,), "batched")
    assert len(error.value.problems) == 1


def test_a_network_that_does_not_flatten_needs_flat_samples() -> None:
    network = nn.Sequential(nn.Linear(4, 3))
    layout = Layout.of(network)
    assert choose_engine(network, layout, Training(), (4,), "auto")[0] == "batched"
    assert choose_engine(network, layout, Training(), (6, 4), "auto")[0] == "sequential"


def test_an_engine_that_is_none() -> None:
    with pytest.raises(BadInput, match="engine 'bached' is unknown; did you mean batched"):
        choice("mlp", (4,), 10, "bached")


def test_chunks_shrink_as_models_and_minibatches_grow() -> None:
    sizes = [
        chunk_size(build("mlp", {"hidden": (width,)}, IMAGE, 10, 0)[1], batch)
        for width, batch in ((1, 10), (64, 10), (64, 256), (200, 10), (4096, 10))
    ]
    assert sizes[0] == LARGEST_CHUNK
    assert sizes[-1] == 2
    assert sizes == [64, 17, 3, 6, 2]
