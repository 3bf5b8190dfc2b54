"""A stack of modules of somebody's own, computed for many models at once by `torch.func.vmap`.

Nobody has to have foreseen what such a module does. Whether PyTorch can do the same for many models is found out
by trying it on made samples, once, before anything starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.clients.engine.differentiation import without_fused_kernels
from coterie.clients.engine.stacked import Stacked
from coterie.clients.rules.objective import LocalModel
from coterie.models.gaussian import Gaussian
from coterie.models.layout import Layout
from coterie.models.networks import channels_first, copy_network, set_training

FEWEST = 4
"""Clients from which a kernel is worth what `vmap` costs: with three and fewer, training was never faster."""

OPERATIONS_IN_CACHE = 4
"""Operations whose results a chunk of clients is to keep in the cache; all of them, as of a chain, are too many."""

OPERATIONS_IN_MEMORY = 16
"""The most that all results of a forward pass may take, as a multiple of what is to stay in the cache."""


class Vectorised(Stacked):
    """Any module without a `find_fixed_obstacle`, for which `find_obstacle_by_trial` finds none either.

    As with convolutions, the last digits of a model's results depend on who shares its stack.
    """

    worthwhile = FEWEST

    def activations(self, features: tuple[int, ...]) -> int:
        """Scalars of one sample that are to stay in the cache."""
        found = count_operations(self._network, features)
        each = OPERATIONS_IN_CACHE * found.written // max(found.operations, 1)
        return max(each, found.written // OPERATIONS_IN_MEMORY, 1)

    @torch.no_grad()
    def logits(self, views: Sequence[Tensor], x: Tensor) -> Tensor:
        """Outputs `[n, width, ...]` of the samples `[n, width, *features]`."""
        samples = channels_first(x.flatten(0, 1))
        x = samples.reshape(*x.shape[:2], *samples.shape[1:]).contiguous()
        if self._network.training:
            self._network.eval()
        stack = {e.name: view.contiguous() for e, view in zip(self._layout.tensors, views, strict=True)}
        return _call_many(LocalModel(self._network, self._layout), stack, x)


@dataclass(frozen=True)
class Operations:
    """What a forward pass consists of: how many operations, and the scalars that they write for a sample."""

    operations: int
    written: int


def count_operations(network: nn.Module, features: tuple[int, ...]) -> Operations:
    """Count the operations of a forward pass over samples of shape `features`, views aside.

    There are as many as there were until the network raised something, if it does: a trial will say so.
    """
    samples, network, counter = _made_samples(features), copy_network(network).eval(), _Counter()
    with suppress(Exception), torch.no_grad(), torch.random.fork_rng(devices=[]), without_fused_kernels(), counter:
        network(samples)
    return Operations(counter.operations, counter.written // len(samples))


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch types none
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = self.written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.operations += 1
            several = found if isinstance(found, list | tuple) else [found]
            self.written += sum(t.numel() for t in several if isinstance(t, Tensor))
        return found


def find_fixed_obstacle(network: nn.Module, layout: Layout) -> str:
    """What keeps a module from being computed for many models at once, as far as it can be seen; else empty."""
    for path, module in network.named_modules():
        kind = type(module).__name__
        match module:
            case nn.modules.dropout._DropoutNd(p=p) if p > 0:
                strange = f"drops units at a rate of {p:g}"
            case nn.LSTM():
                # PyTorch has one kernel for all steps of one model, faster than those steps of eight models.
                strange = "is an LSTM"
            case Gaussian() | nn.modules.batchnorm._BatchNorm():
                strange = f"is a {kind}"
            case _ if any(e.name.rpartition(".")[0] == path for e in layout.buffers):
                strange = f"has buffers, as a {kind}"
            case _:
                continue
        return f"{path or 'the network'} {strange}, which cannot be batched"
    return ""


def find_obstacle_by_trial(network: nn.Module, layout: Layout, features: tuple[int, ...]) -> str:
    """Compute several models at once on made samples; say in one clause what hinders it, or comes out otherwise.

    What must come out is what the network gives by itself. A sample must be no other sample's matter, because a
    short minibatch is padded.
    """
    network = copy_network(network)
    set_training(network)
    model = LocalModel(network, layout)
    buffers = {name: b.clone() for name, b in network.named_buffers()}
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    # Twice the same model, with another last sample, and another model.
    stack = {name: torch.stack([p, p, 1.1 * p + 0.01]).detach().contiguous() for name, p in parameters.items()}
    samples = _made_samples(features)
    inputs = torch.stack([samples, torch.cat([samples[:-1], 1 - samples[-1:]]), samples])

    def square(tensors: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        outputs = model.called(tensors, x)
        return outputs.square().mean(), outputs.detach()

    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), without_fused_kernels():
            warnings.filterwarnings("error", message="There is a performance drop")
            with torch.no_grad():
                expected = [network(samples)]
            _, found = vmap(grad(square, has_aux=True))(stack, inputs)
            with torch.no_grad():
                network.eval()
                _call_many(model, stack, inputs)
                for name, parameter in parameters.items():
                    parameter.copy_(stack[name][2])
                set_training(network)
                expected.append(network(samples))
    except Exception as error:  # noqa: BLE001  # whatever a module raises that is called as nobody has called it
        reason = str(error).strip().split("\n", 1)[0].split(". ", 1)[0]
        said = f"{type(error).__name__}: {reason}"
        return f"a trial on zeros and ones failed to compute many models of the network at once ({said})"
    changed = next((name for name, b in network.named_buffers() if not torch.equal(b, buffers[name])), "")
    if changed:
        return f"training changes {changed} of the network, which cannot be batched"
    if not torch.allclose(found[::2], torch.stack(expected), rtol=1e-3, atol=1e-4):
        return "torch.func computes something other than the network itself"
    if not torch.allclose(found[0, :-1], found[1, :-1], rtol=1e-3, atol=1e-4):
        return "the network's output for a sample depends on the rest of its minibatch, which cannot be batched"
    return ""


def _call_many(model: LocalModel, stack: dict[str, Tensor], inputs: Tensor) -> Tensor:
    """Outputs `[n, width, ...]` of many models `[n, *shape]` on inputs `[n, width, ...]`."""

    def call(nothing: Tensor, tensors: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        return nothing, model.called(tensors, x)

    with without_fused_kernels():
        # Below a level of differentiation, PyTorch takes apart what `vmap` knows by its parts alone, as a GRU.
        _, outputs = vmap(grad(call, has_aux=True))(torch.zeros(len(inputs), device=inputs.device), stack, inputs)
    found: Tensor = outputs
    return found


def _made_samples(features: tuple[int, ...]) -> Tensor:
    """Three samples of zeros and ones, which tokens and categories may be too, as networks take them."""
    noise = torch.Generator().manual_seed(0)
    return channels_first(torch.randint(0, 2, (3, *features), generator=noise).float()).contiguous()
