"""The samples of several clients, side by side in minibatches, and what a network must do with them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.engine.perceptron import aligned_height, round_up
from coterie.clients.engine.stacked import Stacked
from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import Samples
from coterie.clients.rules.requests import Losses, Request, Score
from coterie.models.layout import BYTES_PER_SCALAR

NARROW = 32
"""Smallest width that a minibatch is padded to, unless minibatches are smaller."""

ROUNDED = 8
"""Widths that a step narrows to are multiples of this: every new shape makes PyTorch prepare a kernel anew."""

PREPARED_BYTES = 1 << 26
"""Bytes of clients' samples up to which they are prepared at once, and beyond which minibatch by minibatch."""


class Pool:
    """The samples of some clients, one after another.

    Attributes:
        counts: samples of each client.
        labels: all of them.
        starts: where each client's first sample is; where another's is, for a client without samples.
    """

    def __init__(self, model: Stacked, held: Sequence[Samples]) -> None:
        inputs, self.labels = torch.cat([x for x, _ in held]), torch.cat([y for _, y in held])
        at_once = BYTES_PER_SCALAR * inputs.numel() <= PREPARED_BYTES
        self._prepare = None if at_once else model.prepare
        self._inputs = model.prepare(inputs) if at_once else inputs
        self.counts = [y.shape[0] for _, y in held]
        starts = np.cumsum([0, *self.counts[:-1]])
        # A client without samples takes no step, but its row may be there to make up the number.
        self.starts = np.where(self.counts, starts, starts[np.argmax(self.counts)])
        self.features = self._inputs.shape[1:].numel()
        self.device = self._inputs.device

    def take(self, picks: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Inputs `[rows, width, ...]` and targets `[rows, width, *shape]` at those places `[rows, >= width]`."""
        y = self.labels.index_select(0, picks.flatten())
        return self.inputs(picks, width), y.view(*picks.shape, *y.shape[1:])[:, :width]

    def inputs(self, picks: Tensor, width: int) -> Tensor:
        """Inputs `[rows, width, ...]` at those places `[rows, >= width]`."""
        x = self._inputs.index_select(0, picks.flatten())
        x = x if self._prepare is None else self._prepare(x)
        return x.view(*picks.shape, *x.shape[1:])[:, :width]


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
                width = min(width, round_up(int(max(sizes[s] for sizes in self._sizes[:active])), ROUNDED))
            yield s, active, max(active, self._model.fewest), width

    def picks(self, pool: Pool, orders: Sequence[NDArray[np.int64]] | None = None) -> Tensor:
        """Places in the pool `[clients, steps, >= width]`, whole lines for each client; own first sample pads.

        `orders` are each client's samples in the order wanted; without them, in that in which they lie.
        """
        clients, steps, width = self.weights.shape
        places = np.zeros((clients, steps, aligned_height(width, pool.features)), np.int64)
        places[:, :, :width] = self.places([np.arange(n) for n in pool.counts] if orders is None else orders)
        return torch.from_numpy(places + pool.starts[:, None, None]).to(self.weights.device)

    def places(self, orders: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Each client's samples in the order wanted, in minibatches `[clients, steps, width]`; its first pads."""
        clients, steps, width = self.weights.shape
        flat = np.zeros((clients, steps * width), np.int64)
        for row, order in zip(flat, orders, strict=True):
            row[: len(order)] = order
        return flat.reshape(clients, steps, width)


def count_samples(request: Request, held: Samples) -> int:
    """Count the samples of a client that a request is about."""
    count = held[1].shape[0]
    limit = request.samples if isinstance(request, Losses) else None
    return count if limit is None else min(count, limit)


def draw_samples(client: Client, request: Losses, held: Samples) -> Samples:
    """Return the samples of a request for losses: all, or as many as it names, drawn afresh."""
    x, y = held
    count = count_samples(request, held)
    if count == len(y):
        return held
    picked = torch.from_numpy(np.sort(client.stream(request.purpose).permutation(len(y))[:count])).to(y.device)
    return x.index_select(0, picked), y.index_select(0, picked)


def model_memories(requests: Sequence[Request]) -> list[Hashable]:
    """Return where the models lie that each request only reads (`memory_key`); None for one that writes to them."""
    models = [r.models if isinstance(r, Losses) else r.model if isinstance(r, Score) else None for r in requests]
    keys = {id(m): memory_key(m) for m in {id(m): m for m in models if m is not None}.values()}
    return [keys.get(id(m)) for m in models]


def memory_key(values: Tensor) -> Hashable:
    """Identify the memory that a tensor views, and how. Two live tensors with equal keys hold the same numbers."""
    return values.data_ptr(), values.shape, values.stride()


def padded_width(samples: int, limit: int) -> int:
    """Return the width that minibatches of `limit` samples are padded to: a power of two for fewer samples."""
    return min(limit, max(NARROW, 1 << max(samples - 1, 0).bit_length()))
