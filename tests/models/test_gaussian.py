"""Stochastic features: what goes in and comes out, and the divergence of two Gaussians."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal, kl_divergence

from coterie.models.gaussian import (
    SMALLEST_DEVIATION,
    Gaussian,
    class_features,
    divergence,
    draws,
    gaussian_dim,
    halves,
    moments,
)
from coterie.models.networks import build

numbers = st.floats(-3, 3)
deviations = st.floats(0.05, 5)


def test_draws_in_training_and_means_in_evaluation() -> None:
    layer = Gaussian(3)
    outputs = torch.tensor([[1.0, -2.0, 5.0, 0.0, 1.0, -1.0]]).repeat(40_000, 1)
    assert torch.equal(layer.eval()(outputs), outputs[:, :3])
    torch.manual_seed(0)
    z = layer.train()(outputs)
    sigma = [math.log1p(math.exp(s)) for s in (0.0, 1.0, -1.0)]
    assert z.mean(0).tolist() == pytest.approx([1.0, -2.0, 5.0], abs=0.03)
    assert z.std(0).tolist() == pytest.approx(sigma, rel=0.02)
    assert list(layer.parameters()) == []


def test_several_draws() -> None:
    mean, deviation = torch.zeros(2, 3), torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    torch.manual_seed(0)
    z = draws(mean, deviation, 5000)
    assert z.shape == (5000, 2, 3)
    assert z[:, 0].std(0).tolist() == pytest.approx([1, 2, 3], rel=0.05)
    assert not z[:, 1].any()


def test_a_deviation_never_leaves_the_range() -> None:
    _, deviation = moments(torch.tensor([[0.0, -1e4]]))
    assert deviation.item() == pytest.approx(SMALLEST_DEVIATION)
    assert torch.isfinite(deviation**-2)


@given(numbers, deviations, numbers, deviations)
def test_the_divergence_is_that_in_closed_form(a: float, b: float, c: float, d: float) -> None:
    found = divergence(*(torch.tensor([x, x / 2 + 1], dtype=torch.float64) for x in (a, b, c, d)))
    pairs = [(a, b, c, d), tuple(x / 2 + 1 for x in (a, b, c, d))]
    expected = [math.log(sq / sp) + (sp**2 + (mp - mq) ** 2) / (2 * sq**2) - 0.5 for mp, sp, mq, sq in pairs]
    assert found.item() == pytest.approx(sum(expected), abs=1e-9)
    p, q = (Normal(torch.tensor(m), torch.tensor(s)) for m, s in ((a, b), (c, d)))
    library = kl_divergence(p, q)
    assert expected[0] == pytest.approx(library.item(), rel=1e-3, abs=1e-3)


def test_the_divergence_of_a_thing_from_itself_is_0_and_of_a_sign_there_is_none() -> None:
    mean, deviation = torch.tensor([0.5, -1.0]), torch.tensor([0.1, 3.0])
    assert divergence(mean, deviation, mean, deviation).item() == 0
    other = torch.tensor([1.0, 0.0]), torch.tensor([2.0, 2.0])
    assert divergence(mean, -deviation, *other) == divergence(mean, deviation, *other)


def test_body_and_head() -> None:
    network, layout = build("gaussian-mlp", {"hidden": (9,), "dim": 4}, (5,), 3, 0)
    body, dim, head = halves(network)
    x = torch.randn(7, 5)
    assert body(x).shape == (7, 8)
    assert dim == gaussian_dim(network) == 4
    assert torch.equal(head(body(x)[:, :4]), network.eval()(x))
    assert layout.layers == ("fc1", "fc2", "head")
    assert layout.last_layers(1).size == sum(p.numel() for p in head.parameters())
    assert class_features(layout) == (3, 4)
    assert class_features(build("gaussian-cnn", {}, (8, 8, 1), 10, 0)[1]) == (10, 256)


@pytest.mark.parametrize(
    ("network", "count"),
    [
        (nn.Sequential(nn.Linear(4, 2)), 0),
        (nn.Linear(4, 2), 0),
        (nn.Sequential(nn.Linear(4, 4), Gaussian(2), nn.Linear(2, 4), Gaussian(2), nn.Linear(2, 2)), 2),
        (nn.Sequential(nn.Sequential(nn.Linear(4, 4), Gaussian(2)), nn.Linear(2, 2)), 0),
    ],
)
def test_networks_without_one_such_layer_between_two_others(network: nn.Module, count: int) -> None:
    with pytest.raises(ValueError, match=rf"{count} .*Gaussian"):
        halves(network)


def test_a_network_without_stochastic_features() -> None:
    assert gaussian_dim(build("mlp", {}, (5,), 3, 0)[0]) is None
