"""A stack of small networks, forward and backward, as grouped convolutions and batched matrix products.

The channels of all models lie side by side, `[width, n * channels, height, width]`, and a convolution with `n`
times its groups keeps them apart. The memory is channels-last, in which pooling and convolutions of few channels
are twice as fast on a CPU. A signal is an image of height 1, for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from coterie.clients.engine.layer_gradients import is_plain
from coterie.clients.engine.perceptron import cross_entropy
from coterie.clients.engine.stacked import Stacked
from coterie.models.layout import Layout
from coterie.models.networks import channels_first, has_hooks

_IMAGES = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.ZeroPad2d)
_SIGNALS = (nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d)
_ANYWHERE = (nn.ReLU, nn.Tanh, nn.Identity, nn.Dropout, nn.GroupNorm, nn.LayerNorm)
_KNOWN = (*_IMAGES, *_SIGNALS, *_ANYWHERE, nn.Linear, nn.Flatten)


class Convolutional(Stacked):
    """A chain of plain modules, computed for many models at once; see `is_chain` for which.

    The last digits of a model's results depend on who shares its stack: a convolution's kernel is chosen, and
    adds up, by the shape of the whole.
    """

    def __init__(self, network: nn.Module, layout: Layout, to_numbers: Callable[[Tensor], Tensor]) -> None:
        super().__init__(network, layout, to_numbers)
        places = {e.name: number for number, e in enumerate(layout.tensors)}
        # By the module, not by its path: one that stands in the chain twice has one set of parameters.
        own = {m: path for path, m in network.named_modules()}
        self._chain = [
            (m, [places.get(f"{own[m]}.{name}".lstrip(".")) for name in ("weight", "bias")])
            for _, m in chain_modules(network)
        ]

    def activations(self, features: tuple[int, ...]) -> int:
        """Scalars that one sample leaves behind in a forward pass."""
        return forward_cost(self._network, features)[1]

    @torch.no_grad()
    def logits(self, views: Sequence[Tensor], x: Tensor) -> Tensor:
        """Logits `[n, width, classes]` of the samples `[n, width, *features]`."""
        return self._forward(views, x)

    def backward(
        self,
        views: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        weights: Tensor,
        into: Sequence[Tensor],
        wanted: Sequence[bool],
    ) -> Tensor:
        """Weighted cross-entropy `[n]`; its gradients in the wanted tensors overwrite those of `into`."""
        leaves = [v.detach().requires_grad_(w) for v, w in zip(views, wanted, strict=True)]
        losses = cross_entropy(self._forward(leaves, x), y, weights)
        slots = [(leaf, slot) for leaf, slot in zip(leaves, into, strict=True) if leaf.requires_grad]
        if slots:
            # The models do not meet, so the gradient of the sum holds that of each.
            found = torch.autograd.grad(losses.sum(), [leaf for leaf, _ in slots])
            for (_, slot), gradient in zip(slots, found, strict=True):
                slot.copy_(gradient)
        return losses.detach()

    def _forward(self, views: Sequence[Tensor], x: Tensor) -> Tensor:
        n, signal = len(x), x.dim() == 4
        if x.dim() > 3:
            # Without samples of several channels, flattening alone would leave the models far apart in memory.
            x = x.permute(1, *range(2, x.dim() - 1), 0, -1).flatten(-2).contiguous()
            x = (x.unsqueeze(1) if signal else x).permute(0, 3, 1, 2)
        for module, places in self._chain:
            weight, bias = (None if place is None else views[place] for place in places)
            match module:
                case nn.Conv1d() | nn.Conv2d():
                    assert weight is not None
                    x = _convolve(module, x, n, weight, bias)
                case nn.Linear():
                    assert weight is not None
                    x = _dense(x, weight, bias)
                case nn.Flatten():
                    x = x if x.dim() == 3 else torch.unflatten(x, 1, (n, -1)).transpose(0, 1).flatten(2)
                case nn.GroupNorm():
                    x = _group_norm(module, x, n, weight, bias)
                case nn.LayerNorm():
                    x = _layer_norm(module, x, n, weight, bias, signal)
                case nn.MaxPool1d() | nn.AvgPool1d():
                    x = module(x.squeeze(2)).unsqueeze(2)
                case _:
                    x = module(x)
        return x


def _convolve(module: nn.Conv1d | nn.Conv2d, x: Tensor, n: int, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`[width, n * in, ...]` to `[width, n * out, ...]`."""
    weight, bias = weight.flatten(0, 1), None if bias is None else bias.flatten()
    stride, padding, dilation = module.stride, module.padding, module.dilation
    if isinstance(module, nn.Conv1d):
        weight, stride, dilation = weight.unsqueeze(2), (1, *stride), (1, *dilation)
        padding = padding if isinstance(padding, str) else (0, *padding)
    convolve: Callable[..., Tensor] = nn.functional.conv2d
    return convolve(x, weight, bias, stride, padding, dilation, n * module.groups)


class _Product(torch.autograd.Function):
    """`x @ weight.T` of every model, with a gradient in the weight that is laid out as the weight is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        to_x, to_weight = ctx.needs_input_grad
        return torch.bmm(delta, weight) if to_x else None, torch.bmm(delta.mT, x) if to_weight else None


def _dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`[n, width, in]` to `[n, width, out]`."""
    product: Tensor = _Product.apply(x, weight)  # type: ignore[no-untyped-call]  # PyTorch types none
    return product if bias is None else product + bias.unsqueeze(1)


def _group_norm(module: nn.GroupNorm, x: Tensor, n: int, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    flat = x.dim() == 3
    x = x.transpose(0, 1).flatten(1) if flat else x
    scale, shift = (None if t is None else t.flatten() for t in (weight, bias))
    x = torch.group_norm(x, n * module.num_groups, scale, shift, module.eps)
    return torch.unflatten(x, 1, (n, -1)).transpose(0, 1) if flat else x


def _layer_norm(
    module: nn.LayerNorm, x: Tensor, n: int, weight: Tensor | None, bias: Tensor | None, signal: bool
) -> Tensor:
    shape, flat = module.normalized_shape, x.dim() == 3
    if not flat:
        x = torch.unflatten(x, 1, (n, -1))
        x = x.squeeze(3) if signal else x
    x = nn.functional.layer_norm(x, shape, eps=module.eps)
    ones = [1] * (x.dim() - (1 if flat else 2) - len(shape))
    if weight is not None:
        x = x * weight.reshape(n, *ones, *shape)
    if bias is not None:
        x = x + bias.reshape(n, *ones, *shape)
    if flat:
        return x
    return (x.unsqueeze(3) if signal else x).flatten(1, 2)


def chain_modules(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """Path and module of every member of an `nn.Sequential`, in forward order, those nested in it unpacked."""
    modules = network.named_modules(remove_duplicate=False)
    return [(path or "the network", m) for path, m in modules if type(m) is not nn.Sequential]


def is_chain(network: nn.Module, features: tuple[int, ...] = ()) -> bool:
    """Whether a network is a chain of plain modules, and so can be computed for many models at once.

    That is an `nn.Sequential` of convolutions, dense layers, pooling, padding with zeros, ReLU, Tanh, group and
    layer norm, none frozen, which takes images or signals to its `nn.Flatten`, and flat vectors from there.

    Args:
        network: any module.
        features: shape of one sample; where it is not given, the first layers tell.
    """
    if len(features) > 3:
        return False
    gets = ["", "flat vectors", "signals", "images"][len(features)]
    for _, module in chain_modules(network):
        kind = next((kind for kind in _KNOWN if is_plain(module, kind)), None)
        if kind is None or (isinstance(module, nn.Dropout) and module.p > 0):
            return False
        takes = "images" if kind in _IMAGES else "signals" if kind in _SIGNALS else ""
        takes = "flat vectors" if kind is nn.Linear else takes
        if takes and takes != (gets or takes):
            return False
        gets = "flat vectors" if kind is nn.Flatten else gets or takes
    owners = [p for m in network.modules() for p in m.parameters(recurse=False)]
    simple = len(set(owners)) == len(owners) and not any(True for _ in network.buffers())
    return gets == "flat vectors" and simple and not any(has_hooks(m) for m in network.modules())


@torch.no_grad()
def forward_cost(network: nn.Module, features: tuple[int, ...]) -> tuple[int, int]:
    """Multiply-accumulates of one sample of shape `features` in a network that `is_chain`, and scalars written."""
    x = channels_first(torch.zeros(1, *features))
    work, activations = 0, x.numel()
    for _, module in chain_modules(network):
        x = module(x)
        activations += x.numel()
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Linear):
            work += x.numel() * module.weight[0].numel()
    return work, activations
