"""Networks of one's own: built from their signature, called as PyTorch people expect, with PyTorch's gradients."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.clients.engine.bound_network import BoundNetwork
from coterie.errors import BadInput
from coterie.models.factory import give
from coterie.models.networks import NETWORKS, build, build_network, channels_first
from coterie.models.origin import Origin
from coterie.plugins import allow
from tests.own_networks import Frozen, Language, Recurrent, ViT, hybrid

IMAGES = torch.randn(6, 8, 8, 1, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(0, 10, (6, 4), generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 3, 4, 9])


@pytest.fixture(autouse=True)
def _are_allowed() -> None:
    names = ("ViT", "Recurrent", "Language", "Frozen", "tied", "hybrid")
    allow(f"tests.own_networks:{name}" for name in names)


@pytest.mark.parametrize(
    ("name", "inputs", "origin"),
    [
        ("tests.own_networks:ViT", IMAGES, Origin()),
        ("tests.own_networks:Recurrent", IMAGES, Origin()),
        ("tests.own_networks:Language", TOKENS, Origin(output="logits")),
        ("tests.own_networks:Frozen", IMAGES, Origin()),
        ("tests.own_networks:tied", IMAGES, Origin()),
        ("tests.own_networks:hybrid", IMAGES, Origin()),
        ("tests.own_networks:ViT", IMAGES, Origin(head=("attention", "norm"))),
    ],
)
def test_gradients_are_pytorch_s_own(name: str, inputs: Tensor, origin: Origin) -> None:
    built = build_network(name, {}, tuple(inputs.shape[1:]), 10, seed=0, origin=origin)
    plain = deepcopy(built.network)
    bound = BoundNetwork(built.network, built.layout, 0, built.initial)
    bound.train_mode()
    plain.train()
    for module in plain.modules():
        if isinstance(module, nn.BatchNorm2d) and not module.weight.requires_grad:
            module.eval()
    x = channels_first(inputs)
    loss = cross_entropy(plain(x), LABELS)
    names = [e.name for e in built.layout.tensors]
    wanted = torch.autograd.grad(loss, [plain.get_parameter(n) for n in names])
    found, gradients = bound.chain.gradients(x, LABELS, range(len(names)))
    torch.testing.assert_close(found, loss.detach())
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_factory_is_called_with_what_it_asks_for() -> None:
    seen: list[dict[str, Any]] = []

    def factory(features: Any, num_classes: int, width: int = 3, *, act: Any = nn.ReLU) -> nn.Module:
        seen.append({"features": features, "num_classes": num_classes, "width": width, "act": act})
        return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

    name = give(factory, NETWORKS)
    build(name, {"width": 5}, (8, 8, 1), 10, seed=0)
    assert seen == [{"features": (8, 8, 1), "num_classes": 10, "width": 5, "act": nn.ReLU}]
    assert NETWORKS[name].bind({}) == {"width": 3}  # what can be written down
    with pytest.raises(BadInput, match=r"network\.width"):
        NETWORKS[name].bind({"width": "wide"}, "network")
    with pytest.raises(BadInput, match="widht"):
        NETWORKS[name].bind({"widht": 3}, "network")


def test_a_module_keeps_its_weights_and_is_left_alone() -> None:
    module = ViT(10)
    before = deepcopy(module.state_dict())
    name = give(module, NETWORKS)
    assert give(deepcopy(module), NETWORKS) == name
    built = build_network(name, {}, (8, 8, 1), 10, seed=0)
    for key, values in built.network.state_dict().items():
        assert torch.equal(values, before[key])
    built.network.requires_grad_(False)
    with torch.no_grad():
        built.network.get_parameter("head.weight").zero_()
    assert all(torch.equal(values, before[key]) for key, values in module.state_dict().items())
    frozen = deepcopy(module)
    frozen.head.requires_grad_(False)
    assert give(frozen, NETWORKS) != name


def test_further_initial_models_are_other_ones_near_a_trained_one() -> None:
    name = give(hybrid(10), NETWORKS)
    built = [build_network(name, {}, (8, 8, 1), 10, seed=0, variant=variant) for variant in (0, 1, 2, 1)]
    weights = built[0].layout.of_kind("conv") | built[0].layout.of_kind("dense")
    first, second, third, again = (weights.take(each.initial) for each in built)
    assert torch.equal(second, again)
    for other in (second, third):
        assert 0.05 < float((other - first).norm() / first.norm()) < 0.15
    norms = built[0].layout.everything - weights
    assert torch.equal(norms.take(built[0].initial), norms.take(built[1].initial))
    # A factory that draws its weights gives other ones under another variant, and they are taken as they are.
    drawn = [build_network("tests.own_networks:ViT", {}, (8, 8, 1), 10, 0, v).initial for v in (0, 1)]
    assert abs(float(torch.corrcoef(torch.stack([t[:1000] for t in drawn]))[0, 1])) < 0.9


def test_fresh_weights_leave_frozen_ones_alone() -> None:
    module = Frozen(10)
    name = give(module, NETWORKS)
    built = build_network(name, {}, (8, 8, 1), 10, seed=0, origin=Origin(initial="fresh"))
    assert torch.equal(built.network.get_parameter("body.0.weight"), module.get_parameter("body.0.weight"))
    assert not torch.equal(built.network.get_parameter("head.weight"), module.head.weight)
    vit = ViT(10)
    drawn = build_network(give(vit, NETWORKS), {}, (8, 8, 1), 10, seed=0, origin=Origin(initial="fresh")).network
    assert torch.equal(drawn.get_parameter("token"), vit.token)  # no module draws it
    assert not torch.equal(drawn.get_parameter("head.weight"), vit.head.weight)


def test_copies_share_what_is_frozen_and_nothing_else() -> None:
    built = build_network("tests.own_networks:Frozen", {}, (8, 8, 1), 10, seed=0)
    other = built.copy().network
    for name, parameter in built.network.named_parameters():
        same = other.get_parameter(name).data_ptr() == parameter.data_ptr()
        assert same == name.startswith("body"), name


@pytest.mark.parametrize("as_stored", [False, True])
def test_a_sequence_comes_as_the_module_takes_it(as_stored: bool) -> None:
    seen: list[torch.Size] = []

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2) if as_stored else nn.Conv1d(3, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.shape)
            y: Tensor = self.inner(x).flatten(1)[:, :2]
            return y

    network, _ = build(give(Reader(), NETWORKS), {}, (9, 3), 2, seed=0)
    network(channels_first(torch.zeros(5, 9, 3)))
    assert seen[-1] == ((5, 9, 3) if as_stored else (5, 3, 9))


def test_tokens_and_their_mask_stay_whole_numbers() -> None:
    network, _ = build("tests.own_networks:Language", {}, (2, 4), 10, seed=0, origin=Origin(output="logits"))
    tokens, mask = TOKENS, torch.tensor([[1, 1, 0, 0]]).expand(6, 4)
    given = network(channels_first(torch.stack([tokens, mask], 1)))
    direct = Language(10)
    direct.load_state_dict(network.state_dict())
    torch.testing.assert_close(given, direct(tokens, mask)["logits"])
    first, _ = build("tests.own_networks:Recurrent", {}, (8, 8, 1), 10, seed=0)
    assert first(channels_first(IMAGES)).shape == (6, 10)
    assert Recurrent(10).classifier.out_features == 10
