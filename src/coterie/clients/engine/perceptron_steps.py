"""The layers of many perceptrons, each kind in a memory of its own, and plain steps of all of them together.

The products of many matrices are one call where their operands lie evenly; in a matrix of whole models they do
not, and PyTorch then makes a call for each. Every operand of every model begins at a line: units that do nothing
fill up a layer, and classes that nothing is taken for, their bias being minus infinity, the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import torch
from torch import Tensor

from coterie.clients.engine.perceptron import round_up
from coterie.clients.rules.minibatch import LINE
from coterie.models.layout import Entry, Layout


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of `n` models.

    Attributes:
        weight: `[n, out, in]`, the outputs filled up to whole lines, and so the inputs, but those of samples.
        bias: `[n, out]`.
        moves: whether weight and bias are trained.
    """

    weight: Tensor
    bias: Tensor
    moves: tuple[bool, bool]

    @cached_property
    def _turned(self) -> Tensor:
        return self.weight.mT

    @cached_property
    def _spread(self) -> Tensor:
        return self.bias.unsqueeze(1)

    def forward(self, x: Tensor, into: Tensor) -> Tensor:
        """What it gives `[n, width, out]` for inputs `[n, width, in]`."""
        return torch.baddbmm(self._spread, x, self._turned, out=into)

    def descend(self, delta: Tensor, x: Tensor, lr: float) -> None:
        """A step down the gradient that `delta` is in what it gives.

        The product that is the weight's gradient is added to the weight as it is computed: written down and read
        again, it would cost as much once more.
        """
        if self.moves[0]:
            self.weight.baddbmm_(delta.mT, x, alpha=-lr)
        if self.moves[1]:
            self.bias.sub_(delta.sum(1), alpha=lr)

    def shrink_to(self, anchor: Layer, kept: float) -> None:
        """Leave the share `kept` of how far it is from another one, in what moves."""
        for own, other, moves in zip(
            (self.weight, self.bias), (anchor.weight, anchor.bias), self.moves, strict=True
        ):
            if moves:
                own.mul_(kept).add_(other, alpha=1 - kept)

    def first(self, rows: int) -> Layer:
        """That of the first models."""
        return self if rows == len(self.weight) else Layer(self.weight[:rows], self.bias[:rows], self.moves)


def split_layers(layout: Layout, stack: Tensor, entries: Sequence[Entry], lowest: int = 0) -> list[Layer]:
    """Copies of the layers of a stack's models, from the layer number `lowest` on; those of `entries` move."""
    found = []
    last = len(layout.tensors) // 2 - 1
    for number in range(lowest, last + 1):
        weight, bias = layout.tensors[2 * number : 2 * number + 2]
        units, inputs = weight.shape
        made = stack.new_zeros(len(stack), round_up(units, LINE), round_up(inputs, LINE) if number else inputs)
        made[:, :units, :inputs] = weight.views(stack)
        shift = stack.new_full((len(stack), round_up(units, LINE)), 0.0 if number < last else -inf)
        shift[:, :units] = bias.views(stack)
        found.append(Layer(made, shift, (weight in entries, bias in entries)))
    return found


def join_layers(layout: Layout, layers: Sequence[Layer], stack: Tensor, lowest: int = 0) -> None:
    """Write the layers back."""
    for number, layer in enumerate(layers, lowest):
        weight, bias = layout.tensors[2 * number : 2 * number + 2]
        units, inputs = weight.shape
        weight.views(stack).copy_(layer.weight[:, :units, :inputs])
        bias.views(stack).copy_(layer.bias[:, :units])


def step_layers(
    layers: Sequence[Layer], x: Tensor, shares: Tensor, targets: Tensor, logits: Tensor, lr: float, below: bool
) -> Tensor:
    """A plain step of every model down the weighted cross-entropy.

    Args:
        layers: in place; none where the inputs are the logits.
        x: their inputs `[n, width, in]`.
        shares: the weight of each sample `[n, width, 1]`.
        targets: it again, in the column of the sample's label, `[n, width, classes]`.
        logits: overwritten with the logits, of the same shape.
        lr: the learning rate.
        below: whether the inputs come, through a ReLU, from a layer that is trained elsewhere.

    Returns:
        With `below`, the gradient in what that layer gave before its ReLU.
    """
    inputs = [x]
    for layer in layers[:-1]:
        made = x.new_empty(*x.shape[:2], layer.weight.shape[1])
        inputs.append(layer.forward(inputs[-1], made).relu_())
    if layers:
        layers[-1].forward(inputs[-1], logits)
    else:
        logits.copy_(x)
    delta = logits.softmax(2).mul_(shares).sub_(targets)
    lowest = 0 if below else next((i for i, layer in enumerate(layers) if any(layer.moves)), len(layers))
    for number in range(len(layers) - 1, lowest - 1, -1):
        layer, given = layers[number], inputs[number]
        under = torch.bmm(delta, layer.weight) if number > lowest or below else None
        layer.descend(delta, given, lr)
        if under is not None:
            delta = torch.ops.aten.threshold_backward(under, given, 0, grad_input=under)
    return delta
