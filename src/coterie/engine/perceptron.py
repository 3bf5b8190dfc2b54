"""A stack of perceptrons, forward and backward, as batched matrix products.

The last digits of a product depend on its shape, on where its operands lie, and on whether there is one of it or
there are several. A model's results are to be the same to the bit whatever the others of its stack are, so every
operand of every model starts at a multiple of 64 bytes (`block`, `whole`), and a stack has at least `FEWEST` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import torch
from torch import Tensor, nn

LINE = 16
"""Scalars in 64 bytes: a line of cache, an AVX-512 register."""

FEWEST = 2
"""Rows below which PyTorch takes another kernel."""


@torch.no_grad()
def backward(
    views: Sequence[Tensor], x: Tensor, y: Tensor, weights: Tensor, into: Sequence[Tensor], wanted: Sequence[bool]
) -> Tensor:
    """Weighted cross-entropy `[n]`; its gradients in the wanted tensors overwrite those of `into`.

    Forward and backward are plain products written out: what autograd adds would take as long as they do.
    """
    *inputs, logits = layers(views, x)
    chosen = y.unsqueeze(2)
    log = logits.log_softmax(2)
    losses = (log.gather(2, chosen).squeeze(2) * weights).sum(1).neg_()
    delta = torch.exp(log, out=logits).scatter_add_(2, chosen, torch.tensor(-1.0).expand(chosen.shape))
    delta *= weights.unsqueeze(2)
    for number in reversed(range(len(inputs))):
        if wanted[2 * number]:
            torch.bmm(delta.mT, inputs[number], out=into[2 * number])
        if wanted[2 * number + 1]:
            torch.sum(delta, 1, out=into[2 * number + 1])
        if not any(wanted[: 2 * number]):
            break
        below = torch.bmm(delta, views[2 * number], out=block(*inputs[number].shape))
        delta = below.mul_(inputs[number] > 0)
    return losses


@torch.no_grad()
def layers(views: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """The input of every layer, and the logits, `[n, width, units]`, from a stack's weights and biases."""
    found = [x]
    for weight, bias in zip(views[::2], views[1::2], strict=True):
        if len(found) > 1:
            found[-1].relu_()
        into = block(len(x), x.shape[1], weight.shape[1])
        found.append(torch.baddbmm(bias.unsqueeze(1), found[-1], weight.mT, out=into))
    return found


def block(rows: int, width: int, units: int) -> Tensor:
    """Room for `[rows, width, units]` in which every row starts a line."""
    return torch.empty(rows, height(width, units), units)[:, :width]


def height(width: int, units: int) -> int:
    """The width, enlarged until so many samples of `units` scalars fill whole lines."""
    return whole(width, LINE // gcd(LINE, units))


def whole(count: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not below `count`."""
    return -(-count // unit) * unit


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum over each row's samples: `[n]` from `[n, width, classes]`, `[n, width]` and `[n, width]`."""
    each = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return (each.view(weights.shape) * weights).sum(1)
