"""Forward and backward written out: products, dropout, bfloat16; gradients are compared in `test_engines`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.clients.engine import layer_gradients
from coterie.clients.engine.chain import Chain
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import Gradients, MetaTrain, Score, Scored, Train, Trained, Training
from coterie.clients.rules.training import Precision
from coterie.models.layout import Layout
from coterie.models.networks import build, channels_first
from tests.clients.engine.networks import CHAINS
from tests.clients.engine.population import population

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "wide": (lambda: nn.Sequential(nn.Linear(900, 200), nn.ReLU(), nn.Linear(200, 3)), (900,)),
    "cnn": (lambda: build("cnn", {}, (9, 8, 3), 3, 0)[0], (9, 8, 3)),
    "lenet": (lambda: build("lenet", {}, (16, 16, 3), 3, 0)[0], (16, 16, 3)),
    "others": CHAINS["others"],
    "resnet": (lambda: build("resnet18", {"width": 2}, (8, 8, 1), 3, 0)[0], (8, 8, 1)),
}


def bound(name: str, precision: Any = "fp32") -> tuple[nn.Module, Layout, Chain, Tensor, Tensor]:
    """A network with noise for parameters, its chain, and a minibatch."""
    make, features = NETWORKS[name]
    noise = torch.Generator().manual_seed(5)
    network = make()
    layout = Layout.of(network)
    vector = layout.flatten(network)
    layout.trainable.take(vector).copy_(0.3 * torch.randn(layout.trainable.size, generator=noise))
    layout.bind(network, vector)
    x = channels_first(torch.randn(7, *features, generator=noise))
    return network, layout, Chain(network, layout, vector, precision), x, torch.arange(7) % 3


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5])
def test_dropout_keeps_the_mean_and_its_rate(rate: float) -> None:
    network = nn.Sequential(nn.Dropout(rate), nn.Linear(2, 2))
    layout = Layout.of(network)
    dropout = layer_gradients.link(network[0], [])
    torch.manual_seed(3)
    x = torch.ones(300, 400).T
    y, scale = dropout.forward(x, [], layer_gradients.Use(True, True, False))
    dropped = float((y == 0).float().mean())
    assert dropped == pytest.approx(rate, abs=5 * (rate * (1 - rate) / y.numel()) ** 0.5)
    assert set(y.flatten().tolist()) == {0.0, float(torch.tensor(1 / (1 - rate)))}
    into, _ = dropout.backward(torch.ones_like(y), scale, [], True)
    assert into is not None
    assert torch.equal(into, y)
    # No column, no row and no lag goes without: what one unit draws says nothing of the next.
    for lag in (1, 2, 4, 400):
        both = float(((y.flatten()[lag:] == 0) & (y.flatten()[:-lag] == 0)).float().mean())
        assert both == pytest.approx(rate**2, abs=6 * (rate / y.numel()) ** 0.5)
    network.eval()
    assert Chain(network, layout, layout.flatten(network)).logits(torch.ones(3, 2)).shape == (3, 2)
    assert dropout.forward(x, [], layer_gradients.Use(False, False, False))[0] is x


def test_gradients_under_dropout_are_those_of_the_same_draw() -> None:
    network = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 3))
    layout = Layout.of(network)
    vector = layout.flatten(network)
    layout.bind(network, vector)
    chain = Chain(network, layout, vector)
    x, y = torch.randn(30, 6, generator=torch.Generator().manual_seed(2)), torch.arange(30) % 3

    start = vector.clone()

    def at(model: Tensor, seed: int = 9) -> tuple[float, Tensor]:
        torch.manual_seed(seed)
        vector.copy_(model)
        found, gradients = chain.gradients(x, y, range(4))
        return float(found), torch.cat([g.flatten() for g in gradients])

    here, gradient = at(start)
    slope = float(gradient.norm())
    way = 2e-3 * gradient / slope
    assert (at(start + way)[0] - at(start - way)[0]) / 4e-3 == pytest.approx(slope, rel=0.01)
    assert at(start, seed=10)[0] != here


@pytest.mark.parametrize("name", ["wide", "cnn", "others"])
def test_gradients_in_bfloat16_are_near(name: str) -> None:
    _, _, exact, x, y = bound(name)
    network, layout, half, *_ = bound(name, "bf16")
    everything = range(len(layout.tensors))
    before = layout.flatten(network)
    loss, expected = exact.gradients(x, y, everything)
    found_loss, found = half.gradients(x, y, everything)
    assert float(found_loss) == pytest.approx(float(loss), rel=0.05)
    whole, other = (torch.cat([g.flatten() for g in gradients]) for gradients in (found, expected))
    assert whole.dtype == torch.float32
    assert 1e-5 < float((whole - other).norm() / other.norm()) < 0.1
    assert torch.equal(layout.trainable.take(layout.flatten(network)), layout.trainable.take(before))
    again = half.gradients(x, y, everything, exact=True)[1]
    assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))


def test_in_bfloat16_tokens_stay_what_they_are() -> None:
    network = nn.Sequential(nn.Embedding(1000, 4), nn.Flatten(), nn.Linear(8, 3))
    layout = Layout.of(network)
    vector = layout.flatten(network)
    layout.bind(network, vector)
    _, (embedding, *_) = Chain(network, layout, vector, "bf16").gradients(
        torch.tensor([[257, 999], [513, 3]]), torch.tensor([0, 2]), range(len(layout.tensors))
    )
    assert embedding.any(1).nonzero().flatten().tolist() == [3, 257, 513, 999]


@pytest.mark.medium
def test_training_in_bfloat16() -> None:
    """It learns what float32 learns, and is evaluated in float32."""
    settings: dict[str, Any] = {"epochs": 8, "batch_size": 16, "lr": 0.05}
    found: dict[str, Trained] = {}
    scores: dict[str, float] = {}
    asked: dict[str, Tensor] = {}
    for precision in ("fp32", "bf16"):
        people = population(
            Sequential, Training(**settings, precision=precision), "cnn", counts=[64], features=(8, 8, 1)
        )
        start = people.models[0]
        (first,), (scored,), (gradients,) = (
            people.engine.answer(people.clients, [request])
            for request in (Train(start), Score(start, "train"), Gradients(start))
        )
        assert isinstance(first, Trained)
        assert isinstance(scored, Scored)
        assert isinstance(gradients, Tensor)
        assert first.model.dtype == torch.float32
        found[precision], scores[precision], asked[precision] = first, scored.loss, gradients
    assert scores["bf16"] == scores["fp32"]
    moved = found["fp32"].model - start
    apart = float((found["fp32"].model - found["bf16"].model).norm() / moved.norm())
    assert 1e-5 < apart < 0.1
    assert found["bf16"].loss == pytest.approx(found["fp32"].loss, rel=0.05)
    apart = float((asked["fp32"] - asked["bf16"]).norm() / asked["fp32"].norm())
    assert 1e-5 < apart < 0.1, "what a rule asks for is in bfloat16, too"


def test_curvature_is_taken_in_float32() -> None:
    """Per-FedAvg of second order differs by two gradients a thousandth apart, which bfloat16 cannot tell apart."""
    models = []
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    for precision in precisions:
        training = Training(epochs=1, batch_size=10, precision=precision)
        people = population(Sequential, training, counts=[30])
        request = MetaTrain(people.models[0], alpha=0.1, beta=0.1, second_order=True)
        (found,) = people.engine.answer(people.clients, [request])
        assert isinstance(found, Trained)
        models.append(found.model - people.models[0])
    assert float((models[0] - models[1]).norm() / models[0].norm()) < 0.05


def test_a_model_is_evaluated_where_it_lies_to_the_same_bits() -> None:
    for name in ("lenet", "resnet"):
        _, layout, chain, x, _ = bound(name)
        memory = torch.randn(layout.size + 16, generator=torch.Generator().manual_seed(3)).abs()
        expected = None
        for start in (0, 1):  # the second lies otherwise in a cache line
            model = memory[start : start + layout.size]
            model.copy_(memory[: layout.size].clone())
            given = model.clone()
            found = chain.logits(x, chain.load(model))
            assert torch.equal(model, given)
            assert expected is None or torch.equal(found, expected)
            expected = found
