"""A stack of perceptrons, forward and backward, as batched matrix products.

The last digits of a product depend on its shape, on where its operands lie, and on whether there is one of it or
there are several. A model's results are to be the same to the bit whatever the others of its stack are, so every
operand of every model starts at a multiple of 64 bytes (`allocate_rows`, `round_up`), and a stack has at least
`fewest` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import torch
from torch import Tensor, nn

from coterie.clients.engine.stacked import Stacked
from coterie.clients.rules.minibatch import LINE
from coterie.models.layout import Layout
from coterie.models.networks import channels_first


class Perceptron(Stacked):
    """Dense layers with one ReLU between each two, computed for many models at once."""

    fewest = 2
    """Rows below which PyTorch takes another kernel."""

    fixed_width = True
    """A minibatch is as wide as its client's own samples make it, whoever else is there."""

    def activations(self, features: tuple[int, ...]) -> int:
        """Scalars that one sample leaves behind in a forward pass, by way of an upper bound."""
        return count_units(self._layout)

    def prepare(self, inputs: Tensor) -> Tensor:
        """Stored samples `[s, *features]`, flattened with the channels first."""
        return channels_first(self._to_numbers(inputs)).flatten(1)

    def logits(self, views: Sequence[Tensor], x: Tensor) -> Tensor:
        """Logits `[n, width, classes]` of the samples `[n, width, features]`."""
        return forward_layers(views, x)[-1]

    @torch.no_grad()
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
        *inputs, logits = forward_layers(views, x)
        chosen = y.unsqueeze(2)
        log = logits.log_softmax(2)
        losses = (log.gather(2, chosen).squeeze(2) * weights).sum(1).neg_()
        delta = torch.exp(log, out=logits).scatter_add_(2, chosen, log.new_full((), -1.0).expand(chosen.shape))
        delta = delta.mul_(weights.unsqueeze(2))
        # Plain products written out: what autograd adds would take as long as they do.
        for number in reversed(range(len(inputs))):
            if wanted[2 * number]:
                torch.bmm(delta.mT, inputs[number], out=into[2 * number])
            if wanted[2 * number + 1]:
                torch.sum(delta, 1, out=into[2 * number + 1])
            if not any(wanted[: 2 * number]):
                break
            below = allocate_rows(*inputs[number].shape, device=delta.device)
            torch.bmm(delta, views[2 * number], out=below)
            delta = torch.ops.aten.threshold_backward(below, inputs[number], 0, grad_input=below)
        return losses


def count_units(layout: Layout) -> int:
    """Inputs and outputs of all layers of a perceptron."""
    return sum(sum(e.shape) for e in layout.tensors if e.role == "weight")


@torch.no_grad()
def forward_layers(views: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """The input of every layer, and the logits, `[n, width, units]`, from a stack's weights and biases."""
    found = [x]
    for weight, bias in zip(views[::2], views[1::2], strict=True):
        if len(found) > 1:
            found[-1].relu_()
        into = allocate_rows(len(x), x.shape[1], weight.shape[1], device=x.device)
        found.append(torch.baddbmm(bias.unsqueeze(1), found[-1], weight.mT, out=into))
    return found


def align(x: Tensor) -> Tensor:
    """The samples, beginning at a line: a product's last digits may depend on where its operands lie."""
    return x if x.data_ptr() % (4 * LINE) == 0 else allocate_rows(1, *x.shape, device=x.device)[0].copy_(x)


def allocate_rows(rows: int, width: int, *shape: int, device: torch.device) -> Tensor:
    """Room for `[rows, width, *shape]` in which every row starts a line."""
    return torch.empty(rows, aligned_height(width, prod(shape)), *shape, device=device)[:, :width]


def aligned_height(width: int, units: int) -> int:
    """The width, enlarged until so many samples of `count_units` scalars fill whole lines."""
    return round_up(width, LINE // gcd(LINE, units))


def round_up(count: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not below `count`."""
    return -(-count // unit) * unit


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum over each row's samples: `[n]` from `[n, width, classes]`, `[n, width]` and `[n, width]`."""
    each = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return (each.view(weights.shape) * weights).sum(1)
