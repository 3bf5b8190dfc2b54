"""The networks by name, and how one is built and initialised.

A network is a function of the samples' shape and of the number of classes. It registers its modules in
forward order, which is the order of its flat vector (`Layout.of`).

A federation stores a sample as an image `(height, width, channels)`, a signal `(time, channels)` or a flat
vector `(features,)`. Networks see channels first, as PyTorch does, but as a permuted view: the memory stays
channels-last, which is what convolutions on a CPU want.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.catalogue import Entry
from coterie.errors import BadInput
from coterie.models import cnn, deep, gaussian
from coterie.models.calling import count_outputs, prepare
from coterie.models.factory import NetworkCatalog, OwnEntry
from coterie.models.features import format_shape
from coterie.models.layout import BYTES_PER_SCALAR, Layout
from coterie.models.mlp import linear, mlp
from coterie.models.origin import PLAIN, Origin, add_noise, initialise, load_start, modules_without_reset
from coterie.plugins import give, is_path
from coterie.randomness import address
from coterie.room import require

NETWORKS = NetworkCatalog("network", group="coterie.networks")
"""Networks by name: functions of a sample's shape, the number of outputs, and settings, that give a module."""
NETWORKS.add("mlp")(mlp)
NETWORKS.add("linear")(linear)
NETWORKS.add("cnn")(cnn.cnn)
NETWORKS.add("har-cnn")(cnn.har_cnn)
NETWORKS.add("lenet")(cnn.lenet)
NETWORKS.add("lenet-wide")(cnn.lenet_wide)
NETWORKS.add("femnist-cnn")(cnn.femnist_cnn)
NETWORKS.add("simple-cnn")(cnn.simple_cnn)
NETWORKS.add("fedtsdp-cnn")(cnn.fedtsdp_cnn)
NETWORKS.add("fedcr-cnn")(cnn.fedcr_cnn)
NETWORKS.add("fedcr-cnn-small")(cnn.fedcr_cnn_small)
NETWORKS.add("gaussian-mlp")(gaussian.gaussian_mlp)
NETWORKS.add("gaussian-cnn")(gaussian.gaussian_cnn)
NETWORKS.add("resnet18")(deep.resnet18)
NETWORKS.add("vgg16")(deep.vgg16)


def is_own(name: str) -> bool:
    """Whether a name means a network of somebody's own, which comes with weights, and not a registered one."""
    return name != "auto" and isinstance(NETWORKS[name], OwnEntry)


def channels_first(batch: Tensor) -> Tensor:
    """A stored batch as a network takes it, without copying.

    Args:
        batch: `[B, height, width, channels]`, `[B, time, channels]`, volumes `[B, depth, height, width, channels]`,
            or `[B, features]`.

    Returns:
        `[B, channels, ...]`, or the batch itself where a sample is flat: a view of the same memory.
    """
    return batch.movedim(-1, 1) if batch.dim() > 2 else batch


def default_network(features: tuple[int, ...], gaussian: bool = False) -> str:
    """The network a newcomer would take for samples of this shape.

    A perceptron for flat vectors and for images up to 8x8 or narrower than that, `cnn` for larger images,
    `har-cnn` for signals of four time steps or more. With `gaussian`, one with Gaussian features.
    """
    if gaussian:
        return "gaussian-cnn" if default_network(features) == "cnn" else "gaussian-mlp"
    if len(features) == 3 and min(features[:2]) >= 8 and max(features[:2]) > 8:
        return "cnn"
    if len(features) == 2 and features[0] >= 4:
        return "har-cnn"
    return "mlp"


@dataclass(frozen=True, eq=False)
class Built:
    """A network, where its tensors lie in a model, the model `[P]` that it starts from, and what is said of it."""

    network: nn.Module
    """The module, whose parameters may be views of a flat vector."""
    layout: Layout
    """Where each of its tensors lies in a model."""
    initial: Tensor
    """The model `[P]`."""
    notes: tuple[str, ...] = ()
    """Sentences on where its weights come from."""

    def copy(self) -> Built:
        """Another network of the kind, which has no memory in common with this one but what is frozen."""
        return Built(copy_network(self.network), self.layout, self.initial, self.notes)


def build(
    name: str,
    settings: Mapping[str, Any],
    features: tuple[int, ...],
    classes: int,
    seed: int,
    variant: int = 0,
    origin: Origin = PLAIN,
) -> tuple[nn.Module, Layout]:
    """A network, initialised reproducibly and bound to a flat vector of its own, and the layout of that vector.

    See `build_network`. A person gives the name.
    """
    give([name] if is_path(name) else ())
    built = build_network(name, settings, features, classes, seed, variant, origin)
    return built.network, built.layout


def build_network(
    name: str,
    settings: Mapping[str, Any],
    features: tuple[int, ...],
    classes: int,
    seed: int,
    variant: int = 0,
    origin: Origin = PLAIN,
    is_trained: bool = False,
) -> Built:
    """Build a network, bound to a flat vector of its own, which holds the model that it starts from.

    Args:
        name: a name in `NETWORKS`, or `auto` for `default_network(features)`.
        settings: the network's settings by name; those left out take their defaults.
        features: shape of one sample: `(height, width, channels)`, `(depth, height, width, channels)`,
            `(time, channels)` or `(features,)`.
        classes: number of outputs for a prediction.
        seed: seed of the run. PyTorch's global generator is neither used nor disturbed.
        variant: 0, 1, … give different initial models under one seed.
        origin: where the weights come from, and what else an experiment says.
        is_trained: whether it only predicts, which takes less memory than training.

    Raises:
        BadInput: the name or a setting is unknown, a setting, `features` or `classes` is out of range, or the
            network cannot take these features.
    """
    entry = NETWORKS[default_network(features) if name == "auto" else name]
    own = isinstance(entry, OwnEntry)
    problems, bound = [], {}
    if not 1 <= len(features) <= 4 or min(features) < 1:
        problems.append(
            f"features = {format_shape(features)} is not possible; they must be height x width x channels, "
            "depth x height x width x channels, time x channels or one number, each at least 1"
        )
    if classes < 1:
        problems.append(f"outputs = {classes} is not possible; a network must give at least 1")
    try:
        bound = entry.bind(settings, prefix="network")
    except BadInput as refused:
        problems += refused.problems
    if problems:
        raise BadInput(problems)
    if not own:
        _refuse_too_large(entry, features, classes, bound, is_trained)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(address(seed, f"build/{variant}"))
        network: nn.Module = entry.target(features, classes, **bound)
    _work_around_onednn(network)
    notes: list[str] = []
    if own:
        network.train()
        for parameter in network.parameters():
            if parameter.requires_grad and parameter.dtype != torch.float32:
                network.float()
                break
        call = str(prepare(network, entry.name, features, classes, origin.output))
        notes += [f"the network receives its inputs {call}"] * bool(call)
    elif origin.output is not None:
        raise BadInput(f"network.output = {origin.output!r} is not possible: {entry.name} gives one tensor")
    layout = Layout.of(network, origin.head)
    kept = origin.initial == "kept" or (origin.initial is None and (own or origin.weights is not None))
    if origin.weights is not None:
        keeping = load_start(network, layout, origin)
        notes.append(f"weights from {origin.start}{_but(keeping)}")
    elif kept:
        notes.append("the network keeps the weights that it comes with")
    elif own:
        notes.append(f"weights drawn anew{_but(modules_without_reset(network))}")
    vector = layout.flatten(network) if kept else initialise(network, layout, seed, variant)
    if kept and variant:
        first = build_network(name, settings, features, classes, seed, 0, origin, is_trained).initial
        vector = add_noise(vector, layout, seed, variant) if torch.equal(vector, first) else vector
    layout.bind(network, vector)
    if layout.frozen:
        notes.append(f"{layout.frozen_size:,} frozen parameters are shared by all clients, who download them once")
    return Built(network, layout, vector.clone(), tuple(notes))


def count_tokens(
    name: str, settings: Mapping[str, Any], features: tuple[int, ...], used: int, output: str | None
) -> int:
    """Return how many tokens a network knows whose data use 0 to `used` - 1; it may know more than these.

    A registered network is built for the data and knows as many. One's own is built to see.

    Raises:
        BadInput: it cannot be built, or cannot take such samples.
    """
    entry = NETWORKS[name]
    if not isinstance(entry, OwnEntry):
        return used
    with torch.random.fork_rng(devices=[]):
        network: nn.Module = entry.target(features, used, **entry.bind(settings, prefix="network"))
    return max(used, count_outputs(network, entry.name, features, output))


LARGE = 10_000
"""A setting, or a number of outputs, from which on a network is counted before any memory is taken for it."""
COPIES = 6
"""Copies of a model that a run holds at least: the start, the state before and after a round, a network's own
values, its gradient, and a reply."""
PREDICTING_COPIES = 2
"""Copies that there are while a network is built that only predicts."""


def _refuse_too_large(
    entry: Entry, features: tuple[int, ...], classes: int, settings: Mapping[str, Any], is_trained: bool
) -> None:
    """Let a network pass that this machine has memory for.

    Raises:
        BadInput: it has more parameters.
    """
    numbers = [n for value in settings.values() for n in (value if isinstance(value, tuple) else (value,))]
    if max((n for n in (*numbers, classes) if isinstance(n, int)), default=0) < LARGE:
        return
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in entry.target(features, classes, **settings).parameters())
    copies, purpose, instead = COPIES, "training", "make it smaller"
    if is_trained:
        copies, purpose, instead = PREDICTING_COPIES, "building", "free memory"
    what = f"network.name = {entry.name!r} has {count:,} parameters with these settings and data: {purpose} it"
    require(copies * BYTES_PER_SCALAR * count, what, instead)


def _but(modules: list[str]) -> str:
    return f"; {', '.join(modules[:5])}{' and others' * (len(modules) > 5)} as built" if modules else ""


_ONEDNN_BLOCK = 8
"""Channels that oneDNN's AVX2 kernels take at a time."""


def _work_around_onednn(network: nn.Module) -> None:
    """Give strided pointwise convolutions of few channels their images channels first.

    oneDNN's gradient of their weights writes past its memory where the images are stored channels last, as all
    are here (uxlfoundation/oneDNN issue 6035, on processors without AVX-512): the process dies, hangs, or goes on
    with wrong numbers.
    """
    for module in network.modules():
        if not isinstance(module, nn.Conv2d) or _copy_channels_first in module._forward_pre_hooks.values():
            continue
        if module.kernel_size == (1, 1) and module.stride != (1, 1) and module.in_channels < _ONEDNN_BLOCK:
            module.register_forward_pre_hook(_copy_channels_first)


def _copy_channels_first(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    # `contiguous` returns an image of one channel as it is: it lies both ways.
    return tuple(x.clone(memory_format=torch.contiguous_format) for x in inputs)


def has_hooks(module: nn.Module) -> bool:
    """Whether something is called before or behind a module: then its `forward` is not all that it computes."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def copy_network(network: nn.Module) -> nn.Module:
    """A copy that shares with the network what is frozen, and nothing else."""
    held: dict[int, Any] = {id(p): p for p in network.parameters() if not p.requires_grad}
    held |= {id(b): b for m in frozen_modules(network) for b in m.buffers(recurse=False)}
    return deepcopy(network, held)


def frozen_modules(network: nn.Module) -> list[nn.Module]:
    """Modules with parameters of their own that are all frozen, and buffers, which stay as they are, too."""
    return [
        module
        for module in network.modules()
        if (own := list(module.parameters(recurse=False)))
        and not any(p.requires_grad for p in own)
        and next(module.buffers(recurse=False), None) is not None
    ]


def set_training(network: nn.Module) -> None:
    """Put a network into training mode, but for its `frozen_modules`, whose norms go on by their statistics."""
    network.train()
    for module in frozen_modules(network):
        module.eval()
