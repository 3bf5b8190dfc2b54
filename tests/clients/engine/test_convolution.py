"""Convolutional networks of many clients in one kernel: the answers of `Sequential`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import Train, Trained, Training
from coterie.clients.rules.requests import Result
from coterie.errors import BadInput
from coterie.models.networks import build
from tests.clients.engine.population import Population, population
from tests.clients.engine.test_batched import KINDS, SOLVERS, numbers, requests

SMALL: dict[str, Any] = {"channels": (4, 6), "hidden": (8,)}
DIGIT = 2e-7
"""Relative size of a last digit of float32, or two."""


def both(training: Training, name: str | nn.Module = "cnn", **settings: Any) -> tuple[Population, Population]:
    """The same population under either engine."""
    return population(Sequential, training, name, **settings), population(Batched, training, name, **settings)


def same(one: Population, many: Population, kind: str) -> None:
    """Both engines answer alike, up to the last digits.

    Where two values of a max pooling differ by their last digits, these decide through which one the gradient
    flows, and training takes one of two courses. A client may then take the course that `Sequential` itself
    takes from a start whose last digits are others.
    """
    expected = one.engine.answer(one.clients, requests(one)[kind])
    found = many.engine.answer(many.clients, requests(many)[kind])
    assert len(found) == len(expected) == len(one.clients)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        request = requests(one)[kind][i]
        if not isinstance(request, Train) or near(a, b):
            torch.testing.assert_close(numbers(a), numbers(b), atol=CLOSE, rtol=CLOSE, equal_nan=True)
            continue
        noise = torch.randn(8, one.layout.size, generator=torch.Generator().manual_seed(0))
        starts = [request.start * (1 + DIGIT * n) for n in noise]
        others = one.engine.answer([one.clients[i]] * 8, [replace(request, start=s) for s in starts])
        assert any(near(a, other) for other in others), (numbers(a) - numbers(b)).abs().max()


CLOSE = 3e-5
"""Between two engines after a few steps with momentum, whose gradients are as long as 4."""


def near(a: Result, b: Result) -> bool:
    return torch.allclose(numbers(a), numbers(b), atol=CLOSE, rtol=CLOSE, equal_nan=True)


# Adam's steps keep their length. Under a strong pull they swing about the anchor, and the last digit decides where.
COMBINATIONS = [(solver, kind) for solver in SOLVERS for kind in KINDS if (solver, kind) != ("adam", "strong")]


@pytest.mark.medium
@pytest.mark.thinned(4)
@pytest.mark.parametrize(("solver", "kind"), COMBINATIONS)
def test_images(solver: str, kind: str) -> None:
    same(*both(SOLVERS[solver], **SMALL), kind)


@pytest.mark.medium
@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "features", "settings"),
    [
        ("har-cnn", (12, 3), SMALL),
        ("cnn", (8, 9, 3), SMALL),
        ("lenet", (17, 16, 1), {}),
        ("fedtsdp-cnn", (7, 6, 2), {"conv_dropout": 0.0, "dense_dropout": 0.0}),
    ],
)
def test_networks(name: str, features: tuple[int, ...], settings: dict[str, Any], kind: str) -> None:
    training = Training(epochs=2, batch_size=10, momentum=0.9)
    same(*both(training, name, features=features, **settings), kind)


TWICE = nn.Linear(8, 8)
CHAINS: dict[str, tuple[tuple[int, ...], list[nn.Module]]] = {
    "images": (
        (9, 7, 2),
        [
            nn.ZeroPad2d((1, 0, 2, 1)),
            nn.Conv2d(2, 6, 3, stride=(2, 1), groups=2, bias=False),
            nn.GroupNorm(3, 6),
            nn.Tanh(),
            nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
            nn.Sequential(nn.Conv2d(6, 4, 3, padding="same", dilation=2), nn.LayerNorm([4, 5, 6])),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.LayerNorm(3, eps=0.1, bias=False),
            nn.Identity(),
            nn.Dropout(0.0),
            nn.AdaptiveAvgPool2d(2),
            nn.GroupNorm(2, 4, affine=False),
            nn.Flatten(),
            nn.Linear(16, 8),
            nn.GroupNorm(2, 8),
            nn.ReLU(inplace=True),
            nn.LayerNorm(8),
            nn.Linear(8, 4, bias=False),
        ],
    ),
    "signals": (
        (16, 3),
        [
            nn.Conv1d(3, 6, 5, stride=2, padding=3, dilation=2),
            nn.LayerNorm(7),
            nn.ReLU(),
            nn.AvgPool1d(3, stride=1, padding=1),
            nn.GroupNorm(2, 6),
            nn.Conv1d(6, 4, 3, padding="same", groups=2, bias=False),
            nn.LayerNorm([4, 7]),
            nn.MaxPool1d(3, stride=2, padding=1),
            nn.Flatten(),
            nn.Linear(16, 4),
        ],
    ),
    "flat vectors": ((5,), [nn.Linear(5, 8), TWICE, nn.Tanh(), TWICE, nn.Linear(8, 4, bias=False)]),
    "flattened": ((3, 2, 2), [nn.Flatten(), nn.LayerNorm(12), nn.Flatten(), nn.Linear(12, 4)]),
    "pooled": ((6, 6, 1), [nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()]),
}


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["plain", "last", "nothing", "losses", "gradients", "full gradients", "score"])
@pytest.mark.parametrize("chain", CHAINS)
def test_every_module(chain: str, kind: str) -> None:
    features, modules = CHAINS[chain]
    training = Training(epochs=2, batch_size=10, momentum=0.5)
    same(*both(training, nn.Sequential(*modules), features=features), kind)


def test_what_is_not_trained_stays_to_the_bit() -> None:
    people = population(Batched, SOLVERS["decay"], "cnn", **SMALL)
    part = people.layout.select("conv2,fc2")
    rest = people.layout.everything - part
    found = people.engine.answer(people.clients, [Train(m, part=part, pull=0.3) for m in people.models])
    for result, start in zip(found, people.models, strict=True):
        assert isinstance(result, Trained)
        assert torch.equal(rest.take(result.model), rest.take(start))
        assert not torch.equal(part.take(result.model), part.take(start))


@pytest.mark.medium
def test_what_is_asked_is_not_changed() -> None:
    people = population(Batched, SOLVERS["sgd"], "cnn", **SMALL)
    before = [m.clone() for m in people.models]
    for asked in requests(people).values():
        people.engine.answer(people.clients, asked)
    assert all(torch.equal(a, b) for a, b in zip(before, people.models, strict=True))


@pytest.mark.parametrize("counts", [[0], [0, 0, 0], [0, 12, 0, 1]])
def test_clients_without_samples(counts: list[int]) -> None:
    training = Training(epochs=2, batch_size=10, momentum=0.5, weight_decay=0.1)
    one, many = both(training, counts=counts, **SMALL)
    for kind in KINDS:
        same(one, many, kind)


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_clients_give_the_same_bits(kind: str) -> None:
    """Whatever the engine did in between."""
    people = population(Batched, SOLVERS["momentum"], "cnn", **SMALL)
    first = people.engine.answer(people.clients, requests(people)[kind])
    people.engine.answer(people.clients[2:5], requests(people)["plain"][2:5])
    again = people.engine.answer(people.clients, requests(people)[kind])
    fresh = population(Batched, SOLVERS["momentum"], "cnn", **SMALL)
    other = fresh.engine.answer(fresh.clients, requests(fresh)[kind])
    for a, b, c in zip(first, again, other, strict=True):
        assert np.array_equal(numbers(a).numpy(), numbers(b).numpy(), equal_nan=True)
        assert np.array_equal(numbers(a).numpy(), numbers(c).numpy(), equal_nan=True)


@pytest.mark.parametrize(("name", "features"), [("cnn", (8, 8, 1)), ("har-cnn", (12, 3))])
def test_outputs(name: str, features: tuple[int, ...]) -> None:
    """Of more models than one kernel takes."""
    one, many = both(Training(batch_size=200), name, counts=(150, 3, 2), features=features, channels=(16, 32))
    x, _ = one.data.slice(0, "train")
    models = torch.stack(one.models)
    assert torch.allclose(many.engine.outputs(models, x), one.engine.outputs(models, x), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("resnet18", {}, "norm1 is a BatchNorm2d, which cannot be batched; it must be sequential or auto"),
        ("fedtsdp-cnn", {}, "conv-dropout drops units at a rate of 0.25, which cannot be batched"),
    ],
)
def test_what_is_refused(name: str, settings: dict[str, Any], says: str) -> None:
    network, layout = build(name, settings, (8, 8, 1), 3, 0)
    data = population(Sequential, Training()).data
    with pytest.raises(BadInput, match=says) as error:
        Batched(network, layout, data, Training(), 0, layout.flatten(network))
    assert len(error.value.problems) == 1
