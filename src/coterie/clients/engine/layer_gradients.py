"""The links of a chain: what a module does forward and backward, written out.

Autograd keeps a graph, hands layouts on as they come, and asks the general kernels. Written out, a gradient keeps
the layout of what it is the gradient of (a channels-last image whose gradient arrives channels-first costs fifty
times the time in a ReLU), a ReLU works in place, and on AMD a product is oneDNN's, which there is twice as fast as
the BLAS that PyTorch asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from coterie.models.networks import has_hooks

ONEDNN: Any = None if torch.cpu._is_amx_tile_supported() else getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's product; None on Intel's processors, where MKL is its equal and copies nothing that is transposed."""

LinkGradients = tuple[Tensor | None, list[Tensor | None]]
"""The gradient in a link's input, where it was asked for, and in each of its tensors that is wanted."""


_FEW = 16
"""Samples up to which a dense layer waits for memory: to halve its tensors takes more time than it saves."""
LARGE_PRODUCT = 1 << 20
"""Multiply-accumulates from which oneDNN's product gains: to call it takes 15 us."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, `[n, out]` from `[n, in]` and `[out, in]`."""
    if not _gains_by_onednn(x, len(weight)):
        return nn.functional.linear(x, weight, bias)
    found: Tensor = ONEDNN(x.contiguous(), weight, bias, "none", [], "")
    return found


def add_product(into: Tensor, x: Tensor, y: Tensor) -> None:
    """`into += x.T @ y`, `[m, n]` from `[k, m]` and `[k, n]`."""
    if _gains_by_onednn(x, y.shape[1]):
        into += product(x.t(), y.t())
    else:
        into.addmm_(x.t(), y)


def _gains_by_onednn(x: Tensor, columns: int) -> bool:
    """Whether oneDNN is the faster one to multiply x with so many columns."""
    general = ONEDNN is None or x.dtype == torch.bfloat16 or x.device.type != "cpu"
    return not general and x.numel() * columns >= LARGE_PRODUCT


class Use(NamedTuple):
    """How a link's forward pass is used."""

    keep_activations: bool
    """A backward pass follows."""
    needs_input_grad: bool
    """It also returns the gradient with respect to the input."""
    may_overwrite_input: bool
    """The input may be overwritten."""


class Link(ABC):
    """One module of a chain.

    Attributes:
        places: which of the layout's trainable tensors are the module's own, in the order of its parameters.
        output_is_free: whether the next link may overwrite what it returns: no other tensor shares that
            memory, and its own backward pass does not need it.
    """

    kinds: ClassVar[tuple[type[nn.Module], ...]] = ()
    output_is_free: ClassVar[bool] = False

    def __init__(self, module: Any, places: Sequence[int]) -> None:
        self.module = module
        self.places = places

    def gains_by_bf16(self, samples: int) -> bool:
        """Whether the link gains by tensors in bfloat16, in a minibatch of so many samples."""
        return True

    @abstractmethod
    def forward(self, x: Tensor, own: Sequence[Tensor], use: Use) -> tuple[Tensor, Any]:
        """The output, and what the backward pass needs, from the input and the module's tensors."""

    @abstractmethod
    def backward(self, delta: Tensor, saved: Any, wanted: Sequence[bool], needs_input_grad: bool) -> LinkGradients:
        """The gradients, from that in the output; that in the input only if `needs_input_grad`."""


class Dense(Link):
    """A dense layer, of samples with any leading dimensions."""

    kinds = (nn.Linear,)
    output_is_free = True

    def gains_by_bf16(self, samples: int) -> bool:
        return samples > _FEW

    def forward(self, x: Tensor, own: Sequence[Tensor], use: Use) -> tuple[Tensor, Any]:
        flat = x.reshape(-1, x.shape[-1]).to(own[0].dtype)
        y = product(flat, *own)
        return y.view(*x.shape[:-1], -1), (x, flat, own)

    def backward(self, delta: Tensor, saved: Any, wanted: Sequence[bool], needs_input_grad: bool) -> LinkGradients:
        x, flat, own = saved
        delta = delta.reshape(-1, delta.shape[-1])
        gradients: list[Tensor | None] = [product(delta.t(), flat.t()) if wanted[0] else None]
        if len(own) > 1:
            gradients.append(delta.sum(0) if wanted[1] else None)
        into = product(delta, own[0].t()).view(x.shape).to(x.dtype) if needs_input_grad else None
        return into, gradients


class Convolution(Link):
    """A convolution of signals or images, padded with zeros or not."""

    kinds = (nn.Conv1d, nn.Conv2d)
    output_is_free = True

    def forward(self, x: Tensor, own: Sequence[Tensor], use: Use) -> tuple[Tensor, Any]:
        m, weight, bias = self.module, own[0], own[1] if len(own) > 1 else None
        held = x.to(weight.dtype)
        convolve = torch.conv1d if isinstance(m, nn.Conv1d) else torch.conv2d
        return convolve(held, weight, bias, m.stride, m.padding, m.dilation, m.groups), (x, held, own)

    def backward(self, delta: Tensor, saved: Any, wanted: Sequence[bool], needs_input_grad: bool) -> LinkGradients:
        m, (x, held, own) = self.module, saved
        mask = [needs_input_grad, wanted[0], len(own) > 1 and wanted[1]]
        stride, padding, rest = m.stride, m.padding, [0] * len(m.stride)
        into, *gradients = torch.ops.aten.convolution_backward(
            delta, held, own[0], [len(own[0])], stride, padding, m.dilation, False, rest, m.groups, mask
        )
        return into.to(x.dtype) if needs_input_grad else None, gradients[: len(own)]


class MaxPool(Link):
    """Largest values of windows of images."""

    kinds = (nn.MaxPool2d,)
    output_is_free = True

    def forward(self, x: Tensor, own: Sequence[Tensor], use: Use) -> tuple[Tensor, Any]:
        y, places = torch.ops.aten.max_pool2d_with_indices(x, *self._settings())
        return y, (x, places)

    def backward(self, delta: Tensor, saved: Any, wanted: Sequence[bool], needs_input_grad: bool) -> LinkGradients:
        x, places = saved
        return torch.ops.aten.max_pool2d_with_indices_backward(delta, x, *self._settings(), places), []

    def _settings(self) -> list[Any]:
        m = self.module
        return [m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode]


class Relu(Link):
    """The larger of a value and 0, in place where nobody else needs the value."""

    kinds = (nn.ReLU,)

    def forward(self, x: Tensor, own: Sequence[Tensor], use: Use) -> tuple[Tensor, Any]:
        y = x.relu_() if use.may_overwrite_input else x.relu()
        return y, y

    def backward(self, delta: Tensor, saved: Any, wanted: Sequence[bool], needs_input_grad: bool) -> LinkGradients:
        return torch.ops.aten.threshold_backward(delta, saved, 0), []


class Dropout(Link):
    """Sixteen random bits decide about a unit, in the order of memory; PyTorch takes six times as long to draw."""

    kinds = (nn.Dropout,)

    def forward(self, x: Tensor, own: Sequence[Tensor], use: Use) -> tuple[Tensor, Any]:
        if not (self.module.training and self.module.p):
            return x, None
        scale = torch.empty_like(x)
        flat = scale.as_strided((scale.numel(),), (1,))
        bits = torch.empty(-(-len(flat) // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        torch.ge(bits.view(torch.int16)[: len(flat)], round(self.module.p * 2**16) - 2**15, out=flat)
        flat.mul_(1 / (1 - self.module.p))
        return x * scale, scale

    def backward(self, delta: Tensor, saved: Any, wanted: Sequence[bool], needs_input_grad: bool) -> LinkGradients:
        return delta if saved is None else delta * saved, []


class Flatten(Link):
    """All dimensions but the first in one."""

    kinds = (nn.Flatten,)

    def forward(self, x: Tensor, own: Sequence[Tensor], use: Use) -> tuple[Tensor, Any]:
        return x.flatten(1), x

    def backward(self, delta: Tensor, saved: Any, wanted: Sequence[bool], needs_input_grad: bool) -> LinkGradients:
        delta = delta.view(saved.shape)
        return delta if saved.is_contiguous() else torch.empty_like(saved).copy_(delta), []


class Opaque(Link):
    """Any other module: autograd's business."""

    def forward(self, x: Tensor, own: Sequence[Tensor], use: Use) -> tuple[Tensor, Any]:
        half = any(t.dtype == torch.bfloat16 for t in own) or x.dtype == torch.bfloat16
        with torch.autocast(x.device.type, torch.bfloat16) if half else nullcontext():
            if not use.keep_activations:
                return self.module(x), None
            with torch.enable_grad():
                x = x.detach().requires_grad_(use.needs_input_grad)
                y = self.module(x)
        return y.detach(), (x, y)

    def backward(self, delta: Tensor, saved: Any, wanted: Sequence[bool], needs_input_grad: bool) -> LinkGradients:
        x, y = saved
        trained = [p for p in self.module.parameters() if p.requires_grad]
        parameters = [p for p, w in zip(trained, wanted, strict=True) if w]
        asked, delta = [x, *parameters] if needs_input_grad else parameters, delta.to(y.dtype)
        # A parameter that this batch did not meet, as of an expert that was not chosen, has the gradient 0.
        found = iter(torch.autograd.grad(y, asked, delta, allow_unused=True, materialize_grads=True))
        into = next(found) if needs_input_grad else None
        return into, [next(found) if w else None for w in wanted]


_WRITTEN = (Dense, Convolution, MaxPool, Relu, Dropout, Flatten)


def link(module: nn.Module, places: Sequence[int]) -> Link:
    """The link of a module whose tensors stand at `places` among the layout's."""
    for kind in _WRITTEN:
        for known in kind.kinds:
            if is_plain(module, known) and not isinstance(getattr(module, "padding", 0), str):
                return kind(module, places)
    return Opaque(module, places)


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module is of a kind of PyTorch's as it is: nothing in it is frozen, hooked, or set unusually."""
    if not isinstance(module, kind) or type(module).forward is not kind.forward or has_hooks(module):
        return False
    if any(name not in ("weight", "bias") or not p.requires_grad for name, p in module.named_parameters()):
        return False
    match module:
        case nn.Conv1d() | nn.Conv2d():
            return module.padding_mode == "zeros"
        case nn.MaxPool1d() | nn.MaxPool2d():
            return not module.return_indices
        case nn.Flatten():
            return (module.start_dim, module.end_dim) == (1, -1)
    return True
