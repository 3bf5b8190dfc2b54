"""Matched averaging, by the function a network computes: units are reordered in PyTorch's own terms."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.errors import BadInput
from coterie.grouping.aggregate import mean
from coterie.grouping.matching import align_units, average_matched, hidden_layers
from coterie.models.deep import BatchNorm2d
from coterie.models.layout import Layout
from coterie.models.networks import build

Network = Callable[[], tuple[nn.Module, Tensor]]
"""A network with random weights in eval mode, and inputs for it."""


def _mlp() -> tuple[nn.Module, Tensor]:
    return build("mlp", {"hidden": "7,5"}, (6,), 3, 0)[0], torch.randn(4, 6)


def _cnn() -> tuple[nn.Module, Tensor]:
    return build("cnn", {"channels": "3,4", "hidden": "6"}, (8, 8, 2), 3, 0)[0], torch.randn(4, 2, 8, 8)


def _har() -> tuple[nn.Module, Tensor]:
    return build("har-cnn", {"channels": "3,4", "hidden": "6"}, (12, 2), 3, 0)[0], torch.randn(4, 2, 12)


def _batch_norm() -> tuple[nn.Module, Tensor]:
    """Norms after a convolution, after the flattened channels, after a dense layer; no biases before them."""
    network = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 4, 3, bias=False),
            norm1=BatchNorm2d(4),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(4, 5, 3, bias=False),
            pool=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            norm2=nn.BatchNorm1d(20),
            fc1=nn.Linear(20, 6),
            norm3=nn.BatchNorm1d(6),
            relu3=nn.ReLU(),
            fc2=nn.Linear(6, 3),
        )
    )
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5 if tensor.dim() == 1 else torch.randn_like(tensor))
    return network, torch.randn(4, 1, 8, 8)


NETWORKS: dict[str, Network] = {"mlp": _mlp, "cnn": _cnn, "har-cnn": _har, "batch norm": _batch_norm}
every_network = pytest.mark.parametrize("name", NETWORKS)


class Chain:
    """A network, its layout, its initial vector, and what it says."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.network, self.inputs = NETWORKS[name]()
        self.network.eval()
        self.layout = Layout.of(self.network)
        self.model = self.layout.flatten(self.network)

    def logits(self, model: Tensor) -> Tensor:
        self.layout.bind(self.network, model.clone())
        with torch.no_grad():
            found: Tensor = self.network(self.inputs)
        return found

    def shuffled(self, model: Tensor, seed: int) -> Tensor:
        """The same function with the hidden units in another order, by PyTorch's modules."""
        rng = np.random.default_rng(seed)
        self.layout.bind(self.network, model.clone())
        modules = [m for m in self.network.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Linear)]
        with torch.no_grad():
            for module, after in pairwise(modules):
                width = len(module.weight)
                order = torch.from_numpy(rng.permutation(width))
                following = list(self.network.modules())
                following = following[following.index(module) : following.index(after)]
                for own in following:
                    for tensor in (*own.parameters(recurse=False), *own.buffers(recurse=False)):
                        if tensor.dim():
                            shape = tensor.shape
                            tensor.copy_(tensor.reshape(width, -1)[order].reshape(shape))
                incoming = after.weight
                split = incoming.reshape(len(incoming), width, -1)[:, order]
                incoming.copy_(split.reshape(incoming.shape))
        return self.layout.flatten(self.network)

    def squared(self, models: Tensor, centre: Tensor) -> Tensor:
        """Dist_MA of every model."""
        away = self.layout.trainable.take(align_units(models, centre, self.layout) - centre)
        return away.double().square().sum(1)

    def around(self, count: int, noise: float = 0.05) -> Tensor:
        return self.model + noise * torch.randn(count, len(self.model), generator=torch.Generator().manual_seed(1))


def means(models: Tensor, layout: Layout, sweeps: int = 5) -> Tensor:
    groups = np.zeros(len(models), np.int64)
    rng = np.random.default_rng(0)
    return average_matched(models, groups, models[:1], layout, rng, sweeps)[0]


@every_network
def test_another_order_of_units_is_the_same_function_at_distance_0(name: str) -> None:
    chain = Chain(name)
    other = torch.stack([chain.shuffled(chain.model, seed) for seed in range(3)])
    for model in other:
        assert not torch.equal(model, chain.model)
        torch.testing.assert_close(chain.logits(model), chain.logits(chain.model), atol=1e-5, rtol=1e-5)
    assert torch.equal(align_units(other, chain.model, chain.layout), chain.model.expand(3, -1))
    assert chain.squared(other, chain.model).tolist() == [0.0] * 3
    plain = chain.layout.trainable.take(other - chain.model).square().sum(1)
    assert (plain > 0.1).all()


@every_network
def test_reordering_keeps_the_function(name: str) -> None:
    """Whatever is matched with whatever: the units of two independent models."""
    chain = Chain(name)
    other = chain.model[torch.randperm(len(chain.model))].abs()
    (found,) = align_units(other[None], chain.model, chain.layout)
    assert not torch.equal(found, other)
    torch.testing.assert_close(chain.logits(found), chain.logits(other), atol=1e-3, rtol=1e-3)


@every_network
def test_the_distance_sees_no_order(name: str) -> None:
    chain = Chain(name)
    models = chain.around(4, 0.3)
    shuffled = torch.stack([chain.shuffled(m, i) for i, m in enumerate(models)])
    torch.testing.assert_close(
        chain.squared(shuffled, chain.model), chain.squared(models, chain.model), rtol=1e-9, atol=0
    )
    turned = chain.shuffled(chain.model, 9)
    torch.testing.assert_close(chain.squared(models, turned), chain.squared(models, chain.model), rtol=1e-5, atol=0)


def test_the_order_is_the_nearest_of_all() -> None:
    """Against all 24 orders of four units."""
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    layout = Layout.of(network)
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        model, centre = torch.randn(2, layout.size, generator=generator)

        def hidden(vector: Tensor) -> Tensor:
            return torch.cat([vector[:12].view(4, 3), vector[12:16, None]], 1)

        every = {order: hidden(model)[list(order)] for order in permutations(range(4))}
        best = min(every, key=lambda order: float((every[order] - hidden(centre)).square().sum()))
        (found,) = align_units(model[None], centre, layout)
        assert torch.equal(hidden(found), every[best])
        assert torch.equal(found[16:24].view(2, 4), model[16:24].view(2, 4)[:, list(best)])
        assert torch.equal(found[24:], model[24:])


@every_network
def test_the_mean_of_one_models_orders_is_that_model(name: str) -> None:
    chain = Chain(name)
    models = torch.stack([chain.shuffled(chain.model, seed) for seed in range(5)])
    assert torch.equal(means(models, chain.layout), models[0])
    assert not torch.allclose(mean(models, models[:1])[0], models[0], atol=0.1)


@every_network
def test_the_mean_sees_no_order(name: str) -> None:
    """Any member's units in another order leave the mean; those of the first give it their order."""
    chain = Chain(name)
    models = chain.around(5)
    expected = means(models, chain.layout)
    torch.testing.assert_close(expected, models.mean(0), atol=1e-5, rtol=0)  # near models correspond as they are
    others = torch.stack([models[0], *(chain.shuffled(m, i) for i, m in enumerate(models[1:]))])
    assert torch.equal(means(others, chain.layout), expected)
    first = torch.stack([chain.shuffled(models[0], 7), *models[1:]])
    turned = means(first, chain.layout)
    assert not torch.allclose(turned, expected, atol=1e-2)
    torch.testing.assert_close(turned, chain.shuffled(expected, 7), atol=1e-6, rtol=0)
    torch.testing.assert_close(chain.logits(turned), chain.logits(expected), atol=1e-4, rtol=1e-4)


def test_groups_weights_and_who_counts_nowhere() -> None:
    chain = Chain("mlp")
    models = torch.stack([chain.shuffled(m, i) for i, m in enumerate(chain.around(6))])
    previous = torch.zeros(3, chain.layout.size)
    groups, weights = np.array([2, 0, -1, 2, 0, 2]), np.array([1, 5, 9, 2, 3, 4])
    found = average_matched(models, groups, previous, chain.layout, np.random.default_rng(0), 5, weights)
    assert found[1].tolist() == previous[1].tolist()
    for group, first in ((0, 1), (2, 0)):
        members = np.flatnonzero(groups == group)
        together = torch.stack([align_units(models[i : i + 1], models[first], chain.layout)[0] for i in members])
        (expected,) = mean(together, together[:1], weights[members])
        assert torch.equal(found[group], expected)


def test_sweeps_improve_the_matching() -> None:
    """The first pass matches the second client to the first alone; sweeps match it to everybody."""
    chain = Chain("mlp")
    within = []
    for sweeps in (0, 5):
        total = 0.0
        for seed in range(10):
            noise = torch.randn(8, chain.layout.size, generator=torch.Generator().manual_seed(seed))
            models = torch.stack([chain.shuffled(m, i) for i, m in enumerate(chain.model + 0.25 * noise)])
            total += float(chain.squared(models, means(models, chain.layout, sweeps)).sum())
        within.append(total)
    assert within[1] < within[0]


@every_network
def test_identical_models(name: str) -> None:
    """Property 2.10.8: they come back as they are."""
    chain = Chain(name)
    models = chain.model.repeat(3, 1)
    assert torch.equal(means(models, chain.layout), chain.model)


def test_one_model_and_a_network_without_hidden_layers() -> None:
    chain = Chain("cnn")
    assert torch.equal(means(chain.model[None], chain.layout), chain.model)
    assert torch.equal(align_units(chain.model[None], chain.model, chain.layout)[0], chain.model)
    linear = Layout.of(nn.Linear(3, 2))
    assert hidden_layers(linear) == ()
    models = torch.randn(4, linear.size)
    assert torch.equal(means(models, linear), mean(models, models[:1])[0])
    assert torch.equal(align_units(models, models[0], linear), models)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (
            lambda: build("resnet18", {"width": 2}, (8, 8, 1), 3, 0)[0],
            "stage2.0.shortcut.0 .*2 .*stage2.0.conv2 .*4 ",
        ),
        (
            lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 2)),
            "1.weight",
        ),
        (
            lambda: nn.Sequential(OrderedDict(words=nn.Embedding(5, 4), fc=nn.Linear(4, 2))),
            "words",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(12, 2)),
            "layer 1 .*12 .*layer 0 .*6 ",
        ),
        (
            lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.Linear(6, 2)),
            "layer 0",
        ),
    ],
)
def test_no_chain(network: Callable[[], nn.Module], says: str) -> None:
    with pytest.raises(BadInput, match=f"^.*{says}.*mlp, cnn, lenet or vgg16$"):
        hidden_layers(Layout.of(network()))
