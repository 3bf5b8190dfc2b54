"""Where the first weights of a network come from: as it is built, drawn anew, or out of a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coterie.errors import BadInput, shorten
from coterie.models.features import format_shape
from coterie.models.layout import Layout
from coterie.randomness import address

Initial = Literal["kept", "fresh"]

SPREAD = 0.1
"""Of a weight tensor's own deviation: what a further initial model has in noise where the network comes trained."""


@dataclass(frozen=True)
class Origin:
    """What an experiment says of a network beside its name and settings.

    Attributes:
        initial: keep the weights that the network is built with, or draw them anew; without it, a registered
            network is drawn anew, and one of somebody's own kept.
        start: the file of weights to start from.
        weights: what it holds, tensors by name.
        output: which of several outputs counts; without it, the first.
        head: the modules that are the last layer together; without it, the last one that is registered.
    """

    initial: Initial | None = None
    start: str | None = None
    weights: Mapping[str, Tensor] | None = None
    output: str | None = None
    head: tuple[str, ...] = ()


PLAIN = Origin()
"""Nothing is said beside name and settings."""


def load_start(network: nn.Module, layout: Layout, origin: Origin) -> list[str]:
    """Put the weights of `origin` into the network; return the modules of the head that keep their own.

    Every tensor of the file must be one of the network's, and the other way round; only the last layer, of another
    number of classes, may be left out.

    Raises:
        BadInput: names or shapes differ.
    """
    given, own, path = dict(origin.weights or {}), network.state_dict(), origin.start
    aliases = dict(layout.tied)
    given |= {name: given[first] for name, first in aliases.items() if name not in given and first in given}
    last = len(layout.layers) - 1
    head = {e.name for e in layout.entries if e.layer == last}
    lacks = [name for name, values in own.items() if name not in given and values.is_floating_point()]
    left_out = set(lacks) if set(lacks) <= head else set()
    strange = [name for name in given if name not in own]
    shapes = [
        f"{name} is {format_shape(tuple(given[name].shape))}, not {format_shape(tuple(own[name].shape))}"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    parts = [_listed("it lacks", [] if left_out else lacks), _listed("the network has no", strange), *shapes[:3]]
    if found := [part for part in parts if part]:
        raise BadInput(f"network.start = {path!r} does not fit the network: {'; '.join(found)}")
    broken = [n for n, t in given.items() if t.is_floating_point() and not bool(t.isfinite().all()) and n in own]
    if bad := [n for n in broken if bool(own[n].isfinite().all())]:
        raise BadInput(f"network.start = {path!r} has numbers that are not finite, in {', '.join(bad[:3])}")
    network.load_state_dict({**own, **given})
    return list(dict.fromkeys(name.rpartition(".")[0] or name for name in left_out))


def _listed(what: str, names: Iterable[str]) -> str:
    some = list(names)
    return f"{what} {shorten(some)}" if some else ""


def initialise(network: nn.Module, layout: Layout, seed: int, variant: int = 0) -> Tensor:
    """A new initialisation of the network as a flat vector `[P]`; the network itself stays as it is.

    Every module draws its parameters anew, in the order of registration, from the stream of
    (`seed`, "init", `variant`), on the CPU. One that cannot (`modules_without_reset`) keeps what it has.
    """
    fresh = deepcopy(network).cpu()
    for parameter in fresh.parameters():
        # Random numbers fill a tensor in the order of its memory, which must not depend on who bound it.
        parameter.data = parameter.data.contiguous()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(address(seed, f"init/{variant}"))
        for module in fresh.modules():
            reset = _reset_of(module)
            if reset is not None:
                reset()
    return layout.flatten(fresh)


def modules_without_reset(network: nn.Module) -> list[str]:
    """The paths of modules that own parameters to train and have no method that draws them anew."""
    return [
        path or "the network"
        for path, module in network.named_modules()
        if any(p.requires_grad for p in module.parameters(recurse=False)) and _reset_of(module) is None
    ]


def _reset_of(module: nn.Module) -> Any:
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        return reset
    hidden = getattr(module, "_reset_parameters", None)  # attention's
    return hidden if callable(hidden) and next(module.parameters(recurse=False), None) is not None else None


def add_noise(vector: Tensor, layout: Layout, seed: int, variant: int) -> Tensor:
    """Another initial model `[P]` beside trained weights: with noise of `SPREAD` times each weight's deviation.

    Methods that begin with several models tell them apart by that, and each is nearly as good as the first. Biases,
    norms and buffers stay; where nothing else is trained, they get noise, too.
    """
    found = vector.clone()
    generator = torch.Generator().manual_seed(address(seed, f"init/{variant}"))
    weights = [e for e in layout.tensors if len(e.shape) > 1 and e.kind != "norm"] or list(layout.tensors)
    for entry in weights:
        values = entry.view(found)
        std = float(values.std()) if entry.size > 1 else 0.0
        values.add_(torch.randn(entry.shape, generator=generator), alpha=SPREAD * (std or 1.0))
    return found
