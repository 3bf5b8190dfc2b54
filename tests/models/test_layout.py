"""Where each tensor of a network lies in the flat vector, and that the vector is the network."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from coterie.errors import BadInput
from coterie.models.deep import BatchNorm2d
from coterie.models.layout import Layout, Part, table
from coterie.models.networks import build, channels_first

# A norm after its layer, a convolution without a bias, and one of every rank that a parameter may have.
NORMED: dict[str, object] = {"width": 4}
BUILDS: list[tuple[str, dict[str, object], tuple[int, ...]]] = [
    ("mlp", {"hidden": "32"}, (8, 8, 1)),
    ("cnn", {}, (12, 10, 2)),
    ("har-cnn", {}, (32, 9)),
    ("fedtsdp-cnn", {"pool": "twice"}, (12, 12, 1)),
    ("resnet18", NORMED, (8, 8, 3)),
]


def normed() -> tuple[nn.Module, Layout]:
    return build("resnet18", NORMED, (8, 8, 3), 10, seed=0)


class Scale(nn.Module):
    """Owns one parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_tensors_lie_one_after_another_in_forward_order() -> None:
    _, layout = build("lenet", {}, (32, 32, 3), 10, seed=0)
    assert [e.name for e in layout.tensors] == [
        f"{layer}.{role}" for layer in ("conv1", "conv2", "fc1", "fc2", "fc3") for role in ("weight", "bias")
    ]
    assert [e.size for e in layout.tensors] == [450, 6, 2400, 16, 48_000, 120, 10_080, 84, 840, 10]
    assert [e.kind for e in layout.tensors] == ["conv"] * 4 + ["dense"] * 6
    assert [e.role for e in layout.tensors] == ["weight", "bias"] * 5
    assert layout.entries[0].start == 0
    assert all(a.stop == b.start for a, b in pairwise(layout.entries))
    assert layout.size == layout.trainable.size == layout.everything.size == 62_006
    assert layout.layers == ("conv1", "conv2", "fc1", "fc2", "fc3")


def test_norms_belong_to_the_layer_they_follow_and_buffers_are_the_tail() -> None:
    network, layout = normed()
    by_name = {e.name: e for e in layout.entries}
    assert all(a.stop == b.start for a, b in pairwise(layout.entries))
    assert layout.layers[:3] == ("conv1", "stage1.0.conv1", "stage1.0.conv2")
    for norm, owner in [
        ("norm1", "conv1"),
        ("stage2.0.norm1", "stage2.0.conv1"),
        ("stage2.0.norm2", "stage2.0.conv2"),
        ("stage2.0.shortcut.1", "stage2.0.shortcut.0"),
    ]:
        for tensor in ("weight", "bias", "running_mean", "running_var"):
            assert layout.layers[by_name[f"{norm}.{tensor}"].layer] == owner
            assert by_name[f"{norm}.{tensor}"].kind == "norm"
    assert {e.role for e in layout.entries[: len(layout.tensors)]} == {"weight", "bias"}
    assert {e.role for e in layout.entries[len(layout.tensors) :]} == {"buffer"}
    assert layout.buffers[0].start == layout.trainable.size
    assert layout.trainable.size == sum(p.numel() for p in network.parameters())
    assert layout.size - layout.trainable.size == sum(b.numel() for b in network.buffers())


def test_integer_buffers_are_not_part_of_a_model() -> None:
    layout = Layout.of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    assert [e.name for e in layout.buffers] == ["1.running_mean", "1.running_var"]


def test_buffers_before_every_layer_belong_to_the_first() -> None:
    layout = Layout.of(nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2), nn.Linear(2, 2)))
    assert [e.layer for e in layout.buffers] == [0, 0]
    assert layout.of_layers([0]).size == 8 + 6
    assert layout.first_tensors(1).size == 6
    assert sum(layout.of_layers([i]).size for i in range(len(layout.layers))) == layout.size


def test_a_leading_norm_is_a_layer_of_its_own() -> None:
    layout = Layout.of(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)))
    assert layout.layers == ("0", "1")
    assert [e.layer for e in layout.entries] == [0, 0, 1, 1, 0, 0]


def test_tied_parameters_are_one_slice() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    network[2].weight = network[0].weight
    layout = Layout.of(network)
    assert [e.name for e in layout.entries] == ["0.weight", "0.bias", "2.bias"]
    assert layout.tied == (("2.weight", "0.weight"),)
    layout.bind(network, vector := torch.arange(float(layout.size)))
    assert network[2].weight is network[0].weight
    assert torch.equal(layout.flatten(network), vector)


def test_frozen_parameters_are_no_part_of_a_model() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    network[:2].requires_grad_(False)
    layout = Layout.of(network)
    assert [e.name for e in layout.entries] == ["3.weight", "3.bias"]
    assert layout.layers == ("3",)
    assert layout.frozen_size == 12 + 4 + 4 + 4 + 8  # also the running statistics of the norm


def test_bare_parameters_and_buffers_that_are_no_result() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cls = nn.Parameter(torch.randn(1, 1, 4))
            self.attention = nn.MultiheadAttention(4, 2)
            self.register_buffer("mask", torch.full((2, 2), float("-inf")))
            self.register_buffer("scale", torch.ones(2), persistent=False)
            self.register_buffer("kept", torch.ones(3))

    layout = Layout.of(network := Tokens())
    assert layout.layers == ("cls", "attention", "attention.out_proj")
    assert [e.name for e in layout.buffers] == ["kept"]
    before = {name: p.clone() for name, p in network.named_parameters()}
    layout.bind(network, layout.flatten(network))
    assert all(torch.equal(before[name], p) and p.is_contiguous() for name, p in network.named_parameters())


def test_a_named_head_is_the_last_layer() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
            self.body = nn.Linear(3, 4)

    assert Layout.of(Backwards()).layers == ("classifier.0", "classifier.2", "body")
    layout = Layout.of(Backwards(), ["classifier"])
    assert layout.layers == ("body", "classifier")
    assert layout.last_layers(1).size == 20 + 10
    with pytest.raises(BadInput, match=r"network\.head = 'clasifier'.* classifier\b"):
        Layout.of(Backwards(), ["clasifier"])


def test_a_module_used_twice_is_one_layer() -> None:
    inner = nn.Linear(3, 3)
    assert Layout.of(nn.Sequential(inner, nn.ReLU(), inner)).size == 12


def test_a_parameter_without_dimensions() -> None:
    scale = Scale()
    network = nn.Sequential(nn.Linear(2, 2), scale)
    layout = Layout.of(network)
    vector = layout.flatten(network)
    assert vector[-1] == 3.0
    assert layout.entries[-1].views(vector.expand(4, -1)).shape == (4,)
    layout.bind(network, vector)
    vector[-1] = 5.0
    assert scale.weight.item() == 5.0


def test_a_network_without_parameters() -> None:
    layout = Layout.of(nn.ReLU())
    assert layout.size == 0
    assert layout.everything == layout.trainable == layout.nothing
    assert layout.of_layers([]) == layout.nothing
    assert layout.flatten(nn.ReLU()).shape == (0,)


@pytest.mark.parametrize("conv", [nn.Conv1d(3, 4, 5), nn.Conv2d(3, 4, (5, 2)), nn.Conv3d(3, 4, (5, 2, 3))])
def test_convolutions_are_stored_channels_last(conv: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
    layout = Layout.of(conv)
    vector = layout.flatten(conv)
    weight = layout.entries[0]
    stored = conv.weight.detach().movedim(1, -1)  # [out, *space, in]
    assert torch.equal(vector[: weight.size], stored.reshape(-1))
    assert torch.equal(weight.view(vector), conv.weight)
    population = torch.stack([vector, 2 * vector])
    assert torch.equal(weight.views(population)[1], 2 * conv.weight)


def test_a_view_of_an_image_kernel_is_channels_last_memory() -> None:
    conv = nn.Conv2d(3, 4, 5)
    layout = Layout.of(conv)
    kernel = layout.entries[0].view(layout.flatten(conv))
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert not kernel.is_contiguous()


@pytest.mark.parametrize(("name", "settings", "features"), BUILDS)
def test_bind_and_flatten_are_inverse_and_change_no_output(
    name: str, settings: dict[str, object], features: tuple[int, ...]
) -> None:
    network, layout = build(name, settings, features, 5, seed=0)
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):  # so that no tensor is still all zeros or ones
            parameter.add_(0.01 * (number + 1))
    batch = channels_first(torch.randn(4, *features, generator=torch.Generator().manual_seed(1)))
    wanted = network.eval()(batch)
    vector = layout.flatten(network)
    other, _ = build(name, settings, features, 5, seed=1)
    assert not torch.allclose(other.eval()(batch), wanted)
    layout.bind(other, vector)
    assert torch.equal(other(batch), wanted)
    assert torch.equal(layout.flatten(other), vector)
    for entry in layout.tensors:
        assert torch.equal(other.get_parameter(entry.name), network.get_parameter(entry.name))


def test_what_a_step_writes_into_a_bound_network_lands_in_the_vector() -> None:
    network, layout = build("cnn", {}, (8, 8, 1), 3, seed=0)
    vector = layout.flatten(network)
    layout.bind(network, vector)
    before = vector.clone()
    loss = network(torch.randn(2, 1, 8, 8)).square().sum()
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter.sub_(0.1 * gradient)
    assert not torch.equal(vector, before)
    for entry, gradient in zip(layout.tensors, gradients, strict=True):
        assert torch.equal(entry.view(vector), entry.view(before) - 0.1 * gradient)


def test_running_statistics_of_a_bound_network_land_in_the_vector() -> None:
    free, layout = normed()
    bound = deepcopy(free)
    vector = layout.flatten(free)
    layout.bind(bound, vector)
    before = vector.clone()
    batch = channels_first(torch.randn(6, 8, 8, 3, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(bound.train()(batch), free.train()(batch))
    assert torch.equal(layout.trainable.take(vector), layout.trainable.take(before))
    for entry in layout.buffers:
        assert not torch.equal(entry.view(vector), entry.view(before)), entry.name
        assert torch.equal(entry.view(vector), free.get_buffer(entry.name)), entry.name
    first = batch.mean((0, 2, 3)), batch.var((0, 2, 3))
    norm = BatchNorm2d(3).train()
    norm(batch)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_mean, 0.1 * first[0])
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * first[1])


def test_layers_are_disjoint_and_cover_everything() -> None:
    _, layout = normed()
    slices = [layout.of_layers([i]) for i in range(len(layout.layers))]
    union = layout.nothing
    for part in slices:
        assert not union & part
        union = union | part
    assert union == layout.everything
    assert layout.first_layers(4) | layout.last_layers(len(slices) - 4) == layout.everything
    assert layout.first_layers(4) & layout.last_layers(len(slices) - 4) == layout.nothing
    assert layout.of_layers([0, 1, 2, 3]) == layout.first_layers(4)
    assert layout.of_layers([-1, -2]) == layout.last_layers(2)


@pytest.mark.parametrize("number", [21, -22])
def test_a_layer_that_does_not_exist_is_refused(number: int) -> None:
    _, layout = normed()
    with pytest.raises(BadInput, match=f"layer {number} .*21 layers"):
        layout.of_layers([0, number])


def test_buffers_go_with_the_last_tensor_of_their_layer() -> None:
    _, layout = normed()
    stem = 4 * 3 * 9  # a kernel without bias, then the norm's scale, shift and two buffers of 4 each
    assert [layout.first_tensors(count).size for count in (1, 2, 3)] == [stem, stem + 4, stem + 8 + 8]
    assert layout.first_tensors(3) == layout.first_layers(1)
    assert layout.first_tensors(len(layout.tensors)) == layout.everything


def test_select() -> None:
    _, layout = build("lenet", {}, (32, 32, 3), 10, seed=0)
    assert layout.select("all") == layout.everything
    assert layout.select("conv").size == 456 + 2_416
    assert layout.select("dense") == layout.everything - layout.select("conv")
    assert layout.select("first:2") == layout.select("conv") == layout.select("conv1, conv2")
    assert layout.select("last:2") == layout.select("fc3,fc2")
    assert layout.select("last:5") == layout.everything
    assert layout.select("fc1").size == 48_120


def test_select_of_a_kind_leaves_the_other_kinds_of_the_layer() -> None:
    _, layout = normed()
    assert layout.select("norm") == layout.where(lambda e: "norm" in e.name or ".shortcut.1" in e.name)
    assert layout.select("conv") | layout.select("norm") | layout.select("dense") == layout.everything
    assert layout.select("stage1.0.conv1") == layout.of_layers([1])
    assert layout.select("stage1.0.conv1") & layout.select("norm")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("norm", "'norm'.*norm layer"),
        ("first:6", "'first:6'.* first:1 … first:5"),
        ("last:0", "'last:0'.* last:1 … last:5"),
        ("first:²", "'first:²'.* first:1 … first:5"),
        ("conv_1", "'conv_1'.* conv1"),
        ("zz,conv1,fc11", "'zz'.*: conv1, conv2, fc1, fc2, fc3\nlayers = 'fc11'.* fc1"),
        ("", "''.*: conv1, conv2, fc1, fc2, fc3"),
    ],
)
def test_select_says_what_would_be_right(text: str, says: str) -> None:
    _, layout = build("lenet", {}, (32, 32, 3), 10, seed=0)
    with pytest.raises(BadInput, match=f"^layers = {says}.?$"):
        layout.select(text)


def test_table() -> None:
    _, layout = build("lenet", {}, (32, 32, 3), 10, seed=0)
    assert table(layout)[0] == ("conv1", "conv", 2, 456)
    assert table(layout)[4] == ("fc3", "dense", 2, 850)
    _, layout = normed()
    rows = table(layout)
    assert rows[0] == ("conv1", "conv + norm", 3, 108 + 16)
    assert [row.layer for row in rows] == list(layout.layers)
    assert sum(row.tensors for row in rows) == len(layout.tensors) == 62
    assert sum(row.scalars for row in rows) == layout.size


def test_output_kernel() -> None:
    _, layout = build("lenet", {}, (32, 32, 3), 10, seed=0)
    assert layout.output_kernel == Part(((layout.size - 850, layout.size - 10),))
    last_is_normed = Layout.of(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.LayerNorm(4)))
    assert last_is_normed.output_kernel == Part(((9, 21),))
