"""A perceptron's first layer in terms of samples, where that takes less than in terms of its weights.

Whatever plain gradient steps add to the first layer's weights is a combination `D.T X` of the client's own samples
`X` `[n, d]`. So the steps are taken in the coefficients `D` `[n, h]`, the layer's dual form (Aizerman, Braverman
and Rozonoer, 1964): with the inner products `K = X X.T + 1`, in which the 1 is the bias, the layer gives
`X W.T + b + K D`. The width `d` of a sample, hundreds of pixels, is met twice in a whole training and not twice a
step. Nothing is approximated; only the order of additions is another.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cache
from math import inf

import numpy as np
import torch
from torch import Tensor

from coterie.clients.engine.batched_steps import Descent, Steps
from coterie.clients.engine.choice import CHUNK_SCALARS, LARGEST_CHUNK
from coterie.clients.engine.layer_gradients import add_product, product
from coterie.clients.engine.minibatches import memory_key
from coterie.clients.engine.perceptron import Perceptron, align, round_up
from coterie.clients.engine.perceptron_steps import join_layers, split_layers
from coterie.clients.rules.minibatch import LINE, Samples
from coterie.models.layout import Layout

KEPT = 1 << 24
"""Inner products that are kept from one training to the next: 64 MiB."""


class Dual:
    """Plain descent of many perceptrons with the first layer in its dual form.

    As with `Perceptron`, no client's bits depend on who is computed with it.
    """

    def __init__(self, model: Perceptron, layout: Layout) -> None:
        self._model = model
        self._layout = layout
        self._units, self._features = layout.tensors[0].shape
        self._kept: OrderedDict[int, tuple[Tensor, Tensor]] = OrderedDict()
        self._size = 0

    def room(self, samples: int, epochs: int, moves: bool) -> int | None:
        """The samples for which a client gets room, a power of two; None where the weights are cheaper.

        In terms of samples, a layer that does not move takes `n d h` multiplications in all, and not in every
        epoch. Of one that moves, a client's inner products take `n² d`, unless they were kept, and each epoch in
        the weights `2 n d h`. It goes by the client's own numbers alone: whoever trains it, and whatever was kept,
        chooses the same.
        """
        room = max(32, 1 << max(samples - 1, 0).bit_length())
        pays = samples <= 2 * epochs * self._units and room <= self._features if moves else epochs > 1
        return room if pays and samples > 0 else None

    def chunk(self, room: int) -> int:
        """How many clients one kernel takes, so that what it touches in a step stays in the cache."""
        return max(2, min(LARGEST_CHUNK, 2 * CHUNK_SCALARS // (room * (room + 2 * self._units))))

    @torch.no_grad()
    def descend(self, task: Descent, room: int, classes: int) -> Tensor:
        """Train, in place; the means `[n]` of the last epoch's losses.

        Args:
            task: plain steps, at least one epoch of them, in which the whole first layer moves, or nothing of it.
            room: the samples for which each client gets room.
            classes: how many there are.
        """
        held, stack, layout = task.held, task.stack, self._layout
        weight, bias, *_ = (e.views(stack) for e in layout.tensors)
        moves = layout.tensors[0] in task.entries
        layers = split_layers(layout, stack, task.entries, lowest=1)
        pulled = task.kept != 1
        anchors = split_layers(layout, stack, task.entries, lowest=1) if pulled else []
        first = cache(lambda rows: [layer.first(rows) for layer in layers])
        inputs = [align(self._model.prepare(x)) for x, _ in held]
        units = round_up(self._units, LINE)
        given = torch.full((len(held), room, units), 0.0 if layers else -inf)
        labels = torch.zeros(len(held), room, dtype=torch.int64)
        for row, (x, (_, y)) in enumerate(zip(inputs, held, strict=True)):
            given[row, : len(x), : self._units] = product(x, weight[row], bias[row])
            labels[row, : len(x)] = y
        people = zip(task.clients, held, inputs, strict=True)
        grams = torch.stack([self._gram(*each, room) for each in people]) if moves else None
        found = torch.zeros(len(held), room, units)
        begins = np.arange(len(held))[:, None, None] * room
        for order in task.orders:
            places = torch.from_numpy(task.blocks.places(order) + begins)
            steps = Steps(task, places, labels.flatten(), classes, task.shares_of(order))
            everything = steps.picks.flatten()

            def pick(table: Tensor, of: Tensor = steps.picks, places: Tensor = everything) -> Tensor:
                return table.flatten(0, 1).index_select(0, places).view(*of.shape, -1)

            z, k = pick(given), None if grams is None else pick(grams)
            for s, active, rows, _ in task.blocks:
                x = z[s, :rows] if k is None else z[s, :rows].baddbmm_(k[s, :rows], found[:rows])
                delta = steps.take(first(rows), x.relu_() if layers else x, s, below=moves)
                if pulled:
                    found[:active] *= task.kept
                    for layer, anchor in zip(layers, anchors, strict=True):
                        layer.first(active).shrink_to(anchor.first(active), task.kept)
                if moves:
                    picks = steps.picks[s, :rows].flatten()
                    step = -task.lr * task.kept
                    found.view(-1, units).index_add_(0, picks, delta.view(-1, units), alpha=step)
        join_layers(layout, layers, stack, lowest=1)
        for row, x in enumerate(inputs if moves else ()):
            moved = found[row, : len(x), : self._units]
            add_product(weight[row], moved, x)
            bias[row] += moved.sum(0)
        return steps.losses()

    def _gram(self, client: int, held: Samples, x: Tensor, room: int) -> Tensor:
        """A client's inner products and 1, `[room, room]`; kept as long as it has the same memory of samples.

        Samples are never written once they are there.
        """
        before = self._kept.pop(client, None)
        if before is None or memory_key(before[0]) != memory_key(held[0]):
            if before is not None:
                self._size -= before[1].numel()
            gram = x.new_zeros(room, room)
            gram[: len(x), : len(x)] = product(x, x).add_(1)
            before = (held[0], gram)
            self._size += gram.numel()
        self._kept[client] = before
        while self._size > KEPT and len(self._kept) > 1:
            _, (_, oldest) = self._kept.popitem(last=False)
            self._size -= oldest.numel()
        return before[1]
