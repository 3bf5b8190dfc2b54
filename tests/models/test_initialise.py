"""How networks start: from an addressed stream, anew for every variant, disturbing nobody."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coterie.models.layout import Layout
from coterie.models.networks import build, channels_first
from coterie.models.origin import initialise, modules_without_reset
from coterie.randomness import address


def images(samples: int) -> Tensor:
    return torch.randn(samples, 32, 32, 3, generator=torch.Generator().manual_seed(0))


def test_initialisation_draws_tensor_after_tensor_from_its_stream() -> None:
    network, layout = build("mlp", {"hidden": 2}, (3,), 2, seed=7, variant=5)
    generator = torch.Generator().manual_seed(address(7, "init/5"))
    bounds = [(6, 3**-0.5), (2, 3**-0.5), (4, 2**-0.5), (2, 2**-0.5)]  # PyTorch starts at up to 1 / sqrt(fan-in)
    wanted = [torch.empty(size).uniform_(-bound, bound, generator=generator) for size, bound in bounds]
    torch.testing.assert_close(layout.flatten(network), torch.cat(wanted))


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    network, layout = build("cnn", {}, (8, 8, 1), 3, seed=0)
    initialise(network, layout, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["cnn", "lenet", "resnet18", "vgg16"])
def test_initialise_gives_what_build_gives_and_leaves_the_network(name: str) -> None:
    settings: dict[str, object] = {"batch_norm": True} if name == "vgg16" else {}
    network, layout = build(name, settings, (32, 32, 3), 10, seed=0, variant=3)
    start = layout.flatten(network)
    network(channels_first(images(3)))  # moves running statistics where there are any
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)
    trained = layout.flatten(network)
    assert torch.equal(initialise(network, layout, seed=0, variant=3), start)
    assert torch.equal(layout.flatten(network), trained)
    assert not torch.equal(initialise(network, layout, seed=0, variant=4), start)


def test_initial_norms_are_neutral() -> None:
    network, layout = build("resnet18", {"width": 4}, (8, 8, 3), 10, seed=0)
    vector = layout.flatten(network)
    for entry in (e for e in layout.entries if e.kind == "norm"):
        wanted = 1.0 if entry.name.endswith(("weight", "running_var")) else 0.0
        assert (entry.view(vector) == wanted).all(), entry.name


def test_a_module_that_cannot_be_initialised_keeps_what_it_has() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.full((2,), 7.0))

    network = nn.Sequential(nn.Linear(2, 2), Shift(), nn.MultiheadAttention(2, 1))
    layout = Layout.of(network)
    start = initialise(network, layout, seed=0)
    assert modules_without_reset(network) == ["1"]
    assert torch.equal(start[6:8], torch.full((2,), 7.0))
    before = layout.flatten(network)
    assert not torch.equal(start[:6], before[:6])
    assert not torch.equal(start[8:20], before[8:20])


@pytest.mark.parametrize("name", ["vgg16", "resnet18"])
def test_deep_networks_start_with_a_signal_at_the_output(name: str) -> None:
    """With PyTorch's default start, what VGG-16 answers would differ by less than 1e-6 between images."""
    network, _ = build(name, {}, (32, 32, 3), 10, seed=0)
    spread = network.eval()(channels_first(images(8))).std(0).mean()
    assert 0.05 < spread < 50
