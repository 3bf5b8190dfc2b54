"""A minibatch, and which samples the minibatches of an epoch hold."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.clients.tasks import CLASSIFICATION, Task

Samples = tuple[Tensor, Tensor]
"""A client's inputs `[s, *features]` as they are stored, and targets `[s, *shape]`."""

LINE = 16
"""Scalars in 64 bytes: a line of cache, an AVX-512 register."""


def to_numbers(stored: Tensor, standard: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return stored samples as numbers: bytes scaled, and all others as they are, in the same memory.

    Bytes are scaled to 0 … 1, or multiplied by the first and lessened by the second of `standard` `[*features]`.

    What is made of bytes begins as far into a line of cache as floats stored in their place would: the last digits
    of a product may depend on it, and are so the same however samples are stored.
    """
    if stored.dtype != torch.uint8:
        return stored
    begin, count = stored.storage_offset() % LINE, stored.numel()
    made = torch.empty(LINE + count)[begin : begin + count].view(stored.shape).copy_(stored)
    return made.div_(255) if standard is None else made.mul_(standard[0]).sub_(standard[1])


class Batch(NamedTuple):
    """Some samples, and what each counts in a mean over them."""

    inputs: Tensor
    """`[B, *features]`, as the network takes them: images with the channels first."""
    labels: Tensor
    """The targets, `[B, *shape]`."""
    shares: Tensor | None = None
    """`[B]`, by which a mean multiplies; 1/B each where there are none. A share of 0 may be that of padding."""
    task: Task = CLASSIFICATION
    """What is learnt."""

    def mean(self, values: Tensor) -> Tensor:
        """The mean of `values` `[B]` over the samples, by their shares."""
        return values.mean() if self.shares is None else (values * self.shares).sum()

    def loss(self, outputs: Tensor) -> Tensor:
        """The task's mean loss, of outputs `[B, …]`."""
        if self.shares is None:
            return self.task.mean_loss(outputs, self.labels)
        return self.mean(self.task.losses(outputs, self.labels))

    def loss_of_draws(self, outputs: Tensor) -> Tensor:
        """The task's mean loss over M draws, of outputs `[M, B, …]`."""
        count = len(outputs)
        labels = self.labels.repeat(count, *[1] * (self.labels.dim() - 1))
        if self.shares is None:
            return self.task.mean_loss(outputs.flatten(0, 1), labels)
        return self.mean(self.task.losses(outputs.flatten(0, 1), labels).view(count, -1).mean(0))


def minibatch_ranges(count: int, size: int, keep_single: bool) -> list[tuple[int, int]]:
    """Ranges of minibatches over `count` samples. A last batch of one sample is dropped unless `keep_single`.

    A batch-norm network cannot train on one sample (docs/methods/conventions.md, convention 2); a client that has
    just one sample in all trains on nothing there.
    """
    ranges = [(a, min(a + size, count)) for a in range(0, count, size)]
    if ranges and not keep_single and ranges[-1][1] - ranges[-1][0] == 1:
        ranges.pop()
    return ranges
