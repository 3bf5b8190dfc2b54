"""The samples of several clients, side by side in minibatches, and what a network must do with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rule import Client
from coterie.clients.work import Split
from coterie.engine.engine import Data
from coterie.engine.perceptron import height, whole

NARROW = 32
"""Smallest width that a minibatch is padded to, unless minibatches are smaller."""

ROUNDED = 8
"""Widths that a step narrows to are multiples of this: every new shape makes PyTorch prepare a kernel anew."""


class Stacked(Protocol):
    """How one network is computed for many models at once; `views` are its tensors, `[n, *shape]` each."""

    @property
    def fewest(self) -> int:
        """Rows that a stack must have."""

    @property
    def fixed_width(self) -> bool:
        """Whether results would depend on the width that minibatches are padded to, and must not."""

    def activations(self, features: tuple[int, ...]) -> int:
        """Scalars that one sample leaves behind in a forward pass."""

    def prepare(self, inputs: Tensor) -> Tensor:
        """Stored samples `[s, *features]` as `x` holds them."""

    def logits(self, views: Sequence[Tensor], x: Tensor) -> Tensor:
        """Logits `[n, width, classes]` of the samples `[n, width, ...]`."""

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


class Pool:
    """The samples of some clients, one after another."""

    def __init__(self, model: Stacked, data: Data, clients: Sequence[Client], split: Split) -> None:
        slices = [data.slice(c.id, split) for c in clients]
        self._inputs = model.prepare(torch.cat([x for x, _ in slices]))
        self._labels = torch.cat([y for _, y in slices])
        self.counts = [len(y) for _, y in slices]
        self.starts = np.cumsum([0, *self.counts[:-1]])
        self.features = self._inputs.shape[1:].numel()
        self.device = self._inputs.device

    def take(self, picks: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Inputs `[rows, width, ...]` and labels `[rows, width]` at those places `[rows, >= width]`."""
        x, y = (t.index_select(0, picks.flatten()) for t in (self._inputs, self._labels))
        return x.view(*picks.shape, *x.shape[1:])[:, :width], y.view(picks.shape)[:, :width]


class Blocks:
    """Minibatches of several clients side by side, `[clients, steps, width]`; most samples first.

    Attributes:
        weights: 1 for a sample, 0 for what pads a short minibatch.
        sizes: samples in each minibatch, `[clients, steps]`.
        steps: minibatches of each client.
    """

    def __init__(self, model: Stacked, counts: Sequence[int], width: int, device: torch.device) -> None:
        self._model = model
        self._width = width
        self.steps = [-(-n // width) for n in counts]
        places = torch.arange(max(self.steps) * width).view(-1, width)
        weights = (places < torch.tensor(counts)[:, None, None]).float()
        self._sizes = weights.sum(2).tolist()
        self.weights = weights.to(device)
        self.sizes = self.weights.sum(2)

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """Step, how many clients take it, how many rows the kernel must have for that, and how wide it is."""
        for s in range(self.weights.shape[1]):
            active = sum(steps > s for steps in self.steps)
            width = self._width
            if not self._model.fixed_width:
                width = min(width, whole(int(max(sizes[s] for sizes in self._sizes[:active])), ROUNDED))
            yield s, active, max(active, self._model.fewest), width

    def picks(self, pool: Pool, orders: Sequence[NDArray[np.int64]]) -> Tensor:
        """Places in the pool `[clients, steps, >= width]`, whole lines for each client; own first sample pads."""
        clients, steps, width = self.weights.shape
        places = np.zeros((clients, steps, height(width, pool.features)), np.int64)
        flat = np.zeros((clients, steps * width), np.int64)
        for row, order in zip(flat, orders, strict=True):
            row[: len(order)] = order
        places[:, :, :width] = flat.reshape(clients, steps, width)
        # A client without samples takes no step, but its row may be there to make up the number.
        starts = np.minimum(pool.starts, max(sum(pool.counts) - 1, 0))
        return torch.from_numpy(places + starts[:, None, None]).to(self.weights.device)


def width_of(samples: int, limit: int) -> int:
    """What a client's minibatches of `limit` samples are padded to: a power of two for those who have fewer."""
    return min(limit, max(NARROW, 1 << max(samples - 1, 0).bit_length()))
