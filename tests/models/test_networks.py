"""The networks of the papers, to the parameter, and what each of them takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, pad, relu

from coterie.errors import BadInput
from coterie.models.deep import BasicBlock
from coterie.models.networks import NETWORKS, build, channels_first, default_network

# network, settings, features, classes, trainable scalars, trainable tensors
PUBLISHED: list[tuple[str, dict[str, object], tuple[int, ...], int, int, int]] = [
    ("mlp", {"hidden": (32,)}, (64,), 10, 2_410, 4),
    ("mlp", {"hidden": "32"}, (8, 8, 1), 10, 2_410, 4),
    ("mlp", {"hidden": ""}, (64,), 10, 650, 2),
    ("mlp", {}, (28, 28, 1), 10, 159_010, 4),
    ("linear", {}, (8, 8, 1), 10, 650, 2),
    ("simple-cnn", {}, (32, 32, 3), 10, 1_626_442, 8),
    ("fedtsdp-cnn", {}, (32, 32, 3), 10, 6_447_562, 8),
    ("fedtsdp-cnn", {"pool": "twice"}, (32, 32, 3), 10, 1_204_682, 8),
    ("gaussian-mlp", {}, (28, 28, 1), 10, 183_378, 6),
    ("gaussian-mlp", {"hidden": "", "dim": 5}, (64,), 10, 710, 4),
    ("gaussian-cnn", {}, (28, 28, 1), 10, 141_066, 10),
    ("resnet18", {}, (32, 32, 3), 10, 11_173_962, 62),
    ("femnist-cnn", {}, (28, 28, 1), 62, 845_510, 8),
    ("lenet", {}, (32, 32, 3), 10, 62_006, 10),
    ("lenet-wide", {}, (28, 28, 1), 10, 212_542, 10),
    ("fedcr-cnn", {}, (32, 32, 3), 10, 2_806_602, 10),
    ("fedcr-cnn-small", {}, (28, 28, 1), 10, 1_258_798, 10),
    ("vgg16", {}, (32, 32, 3), 10, 15_245_130, 32),
    ("vgg16", {"head": "full"}, (32, 32, 3), 10, 33_638_218, 32),
    ("vgg16", {"batch_norm": True}, (28, 28, 1), 26, 15_260_634, 58),
    ("cnn", {}, (28, 28, 1), 10, 105_866, 8),
    ("har-cnn", {}, (128, 9), 6, 143_302, 8),
]

CONV, POOL, FC = "Conv2d", "MaxPool2d", "Linear ReLU"
STEP = f"{CONV} {POOL} ReLU"

# The smallest samples that each network takes, beside what a shape must be.
SMALLEST: list[tuple[str, dict[str, object], tuple[int, ...]]] = [
    ("cnn", {}, (8, 8, 1)),
    ("cnn", {"channels": (4, 4, 4, 4)}, (16, 16, 1)),
    ("simple-cnn", {}, (6, 6, 1)),
    ("fedtsdp-cnn", {}, (6, 6, 1)),
    ("fedtsdp-cnn", {"pool": "twice"}, (10, 10, 1)),
    ("femnist-cnn", {}, (4, 4, 1)),
    ("lenet", {}, (16, 16, 1)),
    ("lenet-wide", {}, (4, 4, 1)),
    ("fedcr-cnn", {}, (16, 16, 1)),
    ("fedcr-cnn-small", {}, (16, 16, 1)),
    ("gaussian-cnn", {"dim": 16}, (8, 8, 1)),
    ("gaussian-cnn", {"channels": (4, 4, 4, 4)}, (16, 16, 1)),
    ("resnet18", {"width": 2}, (8, 8, 1)),
    ("vgg16", {}, (28, 28, 1)),
    ("har-cnn", {}, (4, 3)),
    ("har-cnn", {"channels": "2,2,2"}, (8, 3)),
]


def stored(features: tuple[int, ...], samples: int = 3) -> Tensor:
    return torch.randn(samples, *features, generator=torch.Generator().manual_seed(0))


@pytest.mark.medium
@pytest.mark.parametrize(("name", "settings", "features", "classes", "scalars", "tensors"), PUBLISHED)
def test_size(
    name: str, settings: dict[str, object], features: tuple[int, ...], classes: int, scalars: int, tensors: int
) -> None:
    network, layout = build(name, settings, features, classes, seed=0)
    assert layout.trainable.size == scalars
    assert len(layout.tensors) == tensors
    assert network.eval()(channels_first(stored(features))).shape == (3, classes)


def test_every_network_has_a_published_size() -> None:
    own = {e.name for e in NETWORKS if e.target.__module__.startswith("coterie.")}  # a test may add one
    assert {row[0] for row in PUBLISHED} == own
    assert {row[0] for row in SMALLEST} == own - {"linear", "mlp", "gaussian-mlp"}


@pytest.mark.parametrize(("name", "settings", "features"), SMALLEST)
def test_networks_take_the_smallest_samples_they_promise_and_refuse_smaller_ones(
    name: str, settings: dict[str, object], features: tuple[int, ...]
) -> None:
    network, _ = build(name, settings, features, 3, seed=0)
    assert network(channels_first(stored(features))).shape == (3, 3)
    for axis in range(len(features) - 1):
        smaller = tuple(size - (place == axis) for place, size in enumerate(features))
        with pytest.raises(BadInput, match=f"{name} .* {'x'.join(map(str, smaller))}; "):
            build(name, settings, smaller, 3, seed=0)


@pytest.mark.parametrize("name", ["lenet", "lenet-wide", "femnist-cnn", "fedcr-cnn-small", "cnn", "vgg16"])
def test_networks_take_images_of_any_proportion(name: str) -> None:
    features = (33, 70, 2)
    network, _ = build(name, {}, features, 3, seed=0)
    assert network(channels_first(stored(features))).shape == (3, 3)


@pytest.mark.medium
@pytest.mark.parametrize("side", [28, 30, 31])
def test_vgg16_pads_with_zeros_to_32(side: int) -> None:
    network, _ = build("vgg16", {}, (side, side, 1), 4, seed=0)
    plain, _ = build("vgg16", {}, (32, 32, 1), 4, seed=0)
    images = channels_first(stored((side, side, 1)))
    before, after = (32 - side) // 2, 32 - side - (32 - side) // 2
    padded = pad(images, (before, after, before, after))
    assert torch.equal(network.eval()(images), plain.eval()(padded))


@pytest.mark.parametrize(
    ("name", "features", "says"),
    [
        ("resnet18", (64,), "vectors of 64;.* 8x8 "),
        ("vgg16", (128, 9), "signals of 128x9;.* 28x28 "),
        ("har-cnn", (28, 28, 1), "images of 28x28x1;.*signals .* 4 "),
    ],
)
def test_features_that_a_network_cannot_take(name: str, features: tuple[int, ...], says: str) -> None:
    with pytest.raises(BadInput, match=f"^.*{name} .*{says}.*$"):
        build(name, {}, features, 10, seed=0)


def test_everything_wrong_is_said_at_once() -> None:
    named = r"features = 8x0x1 .*\noutputs = 0 .*\nnetwork\.hidden = '64,x' .*\nnetwork\.depth .*mlp.* hidden"
    with pytest.raises(BadInput, match=named):
        build("mlp", {"hidden": "64,x", "depth": 3}, (8, 0, 1), 0, seed=0)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("mlp", {"hidden": (64, 0)}, r"hidden\.1 = 0 .*1"),
        ("cnn", {"channels": ""}, "channels = ''.*16,32"),
        ("fedtsdp-cnn", {"pool": "thrice"}, "pool = 'thrice' .*'once' or 'twice'"),
        ("fedtsdp-cnn", {"dense_dropout": 1.0}, r"dense_dropout = 1\.0 .*1"),
    ],
)
def test_settings_out_of_range(name: str, settings: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=rf"^network\.{says}.*$"):
        build(name, settings, (32, 32, 1), 10, seed=0)


@pytest.mark.parametrize("hidden", [(64, 32), [64, 32], "64,32", "64, 32"])
def test_widths_may_be_written_as_a_list_or_with_commas(hidden: object) -> None:
    _, layout = build("mlp", {"hidden": hidden}, (10,), 3, seed=0)
    assert [e.shape for e in layout.tensors if e.role == "weight"] == [(64, 10), (32, 64), (3, 32)]


def test_every_setting_is_described() -> None:
    ours = [e for e in NETWORKS if e.target.__module__.startswith("coterie.")]  # others are of tests
    assert [(e.name, s.name) for e in ours for s in e.settings if not s.help] == []
    assert [e.name for e in ours if not e.summary.endswith(".")] == []


@pytest.mark.parametrize(
    ("features", "name"),
    [
        ((64,), "mlp"),
        ((8, 8, 1), "mlp"),
        ((4, 100, 1), "mlp"),
        ((2, 9), "mlp"),
        ((9, 8, 1), "cnn"),
        ((4, 1), "har-cnn"),
        ((128, 9), "har-cnn"),
    ],
)
def test_auto_takes_a_network_that_takes_the_samples(features: tuple[int, ...], name: str) -> None:
    assert default_network(features) == name
    network, layout = build("auto", {}, features, 3, seed=0)
    assert network(channels_first(stored(features))).shape == (3, 3)
    assert layout == build(name, {}, features, 3, seed=0)[1]


@pytest.mark.parametrize(("features", "order"), [((5, 4, 3), (0, 3, 1, 2)), ((5, 3), (0, 2, 1)), ((5,), (0, 1))])
def test_channels_first_is_a_view(features: tuple[int, ...], order: tuple[int, ...]) -> None:
    batch = stored(features)
    seen = channels_first(batch)
    assert torch.equal(seen, batch.permute(order))
    assert seen.data_ptr() == batch.data_ptr()
    if len(features) == 3:
        assert seen.is_contiguous(memory_format=torch.channels_last)


def test_networks_see_channels_where_they_are() -> None:
    """A network must read channel 1 of a stored image as its channel 1, and time as time."""
    for name, features in (("lenet", (16, 18, 2)), ("har-cnn", (12, 3))):
        network, _ = build(name, {}, features, 4, seed=0)
        with torch.no_grad():
            network.get_parameter("conv1.weight")[:, 1].zero_()
        blind = stored(features)
        blind[..., 1] = 9.0
        assert torch.equal(network(channels_first(blind)), network(channels_first(stored(features)))), name
        blind[..., 0] = 9.0
        assert not torch.equal(network(channels_first(blind)), network(channels_first(stored(features)))), name


@pytest.mark.parametrize(
    ("name", "settings", "features", "order"),
    [
        ("mlp", {"hidden": "9,9"}, (5,), "Flatten Linear ReLU Linear ReLU Linear"),
        ("simple-cnn", {}, (9, 9, 1), f"{CONV} ReLU {CONV} {POOL} ReLU Dropout Flatten {FC} Dropout Linear"),
        ("fedtsdp-cnn", {}, (9, 9, 1), f"{CONV} ReLU {CONV} {POOL} ReLU Dropout Flatten {FC} Dropout Linear"),
        ("fedtsdp-cnn", {"pool": "twice"}, (16, 16, 1), f"{STEP} {STEP} Dropout Flatten {FC} Dropout Linear"),
        ("lenet", {}, (16, 16, 1), f"{STEP} {STEP} Flatten {FC} {FC} Linear"),
        ("cnn", {"channels": "2,3,4"}, (9, 9, 1), f"{STEP} {STEP} {STEP} Flatten {FC} Linear"),
        ("gaussian-mlp", {"hidden": "9,9"}, (5,), "Flatten Linear ReLU Linear ReLU Linear Gaussian Linear"),
        ("gaussian-cnn", {"channels": "2,3"}, (9, 9, 1), f"{STEP} {STEP} Flatten {FC} Linear Gaussian Linear"),
        ("har-cnn", {}, (9, 3), "Conv1d MaxPool1d ReLU Conv1d MaxPool1d ReLU Flatten Linear ReLU Linear"),
    ],
)
def test_order_of_modules(name: str, settings: dict[str, object], features: tuple[int, ...], order: str) -> None:
    network, _ = build(name, settings, features, 3, seed=0)
    assert [type(module).__name__ for module in network.children()] == order.split()


def test_order_of_modules_of_vgg16() -> None:
    network, _ = build("vgg16", {"batch_norm": True}, (32, 32, 1), 3, seed=0)
    short = {"HeConv2d": "C", "BatchNorm2d": "B", "ReLU": "R", "MaxPool2d": "P"}
    order = "".join(short.get(type(module).__name__, "-") for module in network.children())
    assert order.startswith(2 * "CBRCBPR" + 3 * "CBRCBRCBPR" + "-")
    assert order.count("C") == 13


def test_a_residual_block_adds_its_shortcut_before_the_last_relu() -> None:
    block = BasicBlock(3, 4, stride=2).eval()
    images = stored((3, 8, 8))
    inner = relu(conv2d(images, block.conv1.weight, stride=2, padding=1))
    outer = conv2d(inner, block.conv2.weight, padding=1)
    ways = outer / (1 + 1e-5) ** 0.5, block.shortcut(images)  # a norm that saw nothing yet divides by this
    torch.testing.assert_close(block(images), relu(ways[0] + ways[1]), rtol=1e-4, atol=1e-4)
    assert (ways[0] + ways[1] < 0).any()
    assert (conv2d(images, block.conv1.weight, stride=2, padding=1) < 0).any()


class Shortcut(nn.Module):
    """A strided pointwise convolution of so many channels, twice, so that the first has a gradient to hand on."""

    def __init__(self, features: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(features[2], features[2], 1, stride=2)
        self.second = nn.Conv2d(features[2], classes, 1, stride=(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self.first(x)).mean((2, 3))
        return found


@pytest.mark.parametrize("channels", [1, 2, 3, 7, 8])
def test_gradients_of_strided_pointwise_convolutions_of_few_channels(channels: int) -> None:
    """oneDNN's are wrong, or written past their memory, on a processor with AVX2 alone and images channels last."""
    network, _ = build(f"{__name__}:Shortcut", {}, (16, 16, channels), 3, 0)
    exact = Shortcut((16, 16, channels), 3).double()
    exact.load_state_dict(network.state_dict())
    noise = torch.Generator().manual_seed(0)
    for _ in range(100):
        x, y = torch.randn(7, 16, 16, channels, generator=noise), torch.arange(7) % 3
        found = torch.autograd.grad(cross_entropy(network(channels_first(x)), y), list(network.parameters()))
        expected = torch.autograd.grad(
            cross_entropy(exact(channels_first(x.double()).contiguous()), y), list(exact.parameters())
        )
        for gradient, other in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient.double(), other, atol=1e-5, rtol=1e-4)


@pytest.mark.medium
def test_dropout_rates() -> None:
    def rates(name: str, settings: dict[str, object]) -> list[float]:
        network, _ = build(name, settings, (32, 32, 3), 10, seed=0)
        return [m.p for m in network.modules() if isinstance(m, nn.Dropout)]

    assert rates("simple-cnn", {}) == [0.25, 0.5]
    assert rates("fedtsdp-cnn", {}) == [0.25, 0.5]
    assert rates("fedtsdp-cnn", {"conv_dropout": 0, "dense_dropout": 0.1}) == [0.1]
    assert rates("vgg16", {}) == [0.5, 0.5]
    assert rates("vgg16", {"dropout": 0}) == []
