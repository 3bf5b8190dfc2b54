"""Rules that tell how much a client's update depends on which half of its data it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import Samples
from coterie.clients.rules.requests import LocalNetwork, Request
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.clients.rules.training import Training
from coterie.models.layout import Layout
from coterie.models.sketch import Sketch

LEAST_STEPS = 20
"""Steps on a half at least: after a few, an update is hardly more than the first gradient."""

LONGEST_STEP = 1.0
"""Length to which a gradient is cut, so that hardly any learning rate diverges; a direction is all that is sent."""

SKETCH_ABOVE = 1 << 18
"""Parameters of a model above which directions are sketched."""
DIRECTION_SKETCH = 1 << 13
"""Numbers in a sketch of a direction: a cosine is off by 1/90 or so, which pairs share that are compared."""


@dataclass(frozen=True, eq=False)
class TrainOnHalf(Request):
    """Plain SGD from `start` `[P]` on some of the client's samples; answered by the update of the trainable part.

    It takes as many steps for all clients, so that nothing but what the samples are tells two updates apart. The
    answer is float64 `[T]`, and 0 where no step was taken.

    Attributes:
        start: where training begins.
        rows: which samples `[h]`, of those stored.
        size: how many samples a half has in this exchange; it decides on minibatches and steps.
        passes: steps are those of so many passes over `size` samples, and at least `LEAST_STEPS`.
        purpose: names the randomness.
    """

    start: Tensor
    rows: NDArray[np.int64]
    size: int
    passes: int
    purpose: str

    def run(self, network: LocalNetwork, samples: Samples, client: Client) -> Tensor:
        """Take the steps."""
        network.load_for_training(self.start, client, self.purpose)
        trainable, training = network.layout.trainable, client.training
        picked = torch.from_numpy(self.rows).to(samples[1].device)
        half = samples[0].index_select(0, picked), samples[1].index_select(0, picked)
        rng, lr = client.stream(self.purpose), training.lr_at(client.round)
        left, found = self._steps(training), torch.zeros_like(network.vector)
        w = trainable.take(self.start).clone()
        while left:
            before = left
            for batch in network.minibatches(half, rng, min(training.batch_size, self.size)):
                if not left:
                    break
                trainable.put(network.vector, w)
                network.gradient(batch.inputs, batch.labels, into=found)
                gradient = trainable.take(found)
                length = float(gradient.norm())
                w = w.add(gradient, alpha=-lr * min(1.0, LONGEST_STEP / length) if length > 0 else 0.0)
                left -= 1
            if left == before:  # a batch norm trains on no single sample
                break
        return (w - trainable.take(self.start)).double()

    def backpropagated(self, count: int, training: Training, keep_single: bool) -> int:
        return self._steps(training) * min(training.batch_size, self.size)

    def _steps(self, training: Training) -> int:
        size = min(training.batch_size, self.size)
        return max(LEAST_STEPS, self.passes * -(-self.size // size))


@rule("half-directions")
@dataclass(frozen=True)
class HalfDirections(Rule):
    """Train from the received `model` on either half of the data, and send the two directions.

    Both halves have `size` samples, drawn without replacement; a client with fewer than two such has halves of what
    it holds, and one with a single sample sends nothing. All exchanges of a round with the same `draw` are about
    the same halves.

    Of a model of more than `SKETCH_ABOVE` parameters a direction crosses as a sketch of `DIRECTION_SKETCH` numbers,
    which keeps inner products.
    """

    size: Annotated[int, Field(ge=1, description="samples in a half")] = 32
    passes: Annotated[int, Field(ge=1, description="passes over a half")] = 5
    start: Annotated[int, Field(ge=0, description="number of the start, to name its randomness")] = 0
    draw: Annotated[int, Field(ge=0, description="number of the halves, to name their randomness")] = 0
    lengths: Annotated[bool, Field(description="whether to tell how long the updates are, too")] = False
    uploads, writes = ("first", "second"), False
    optional_uploads = ("first", "second")

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the directions `first` and `second`, of length 1 and 0 in buffers.

        A direction is 0 where no step was taken, or training diverged. With `lengths`, the number `length` is the
        mean of both.
        """
        halves = half_rows(client, self.size, self.draw)
        if not len(halves[0]):
            return Answer()
        start, uploads, lengths = order.items["model"].values, {}, []
        for name, rows in zip(self.uploads, halves, strict=True):
            purpose = f"{name} half, start {self.start}" + f", draw {self.draw}" * bool(self.draw)
            update: Tensor = yield TrainOnHalf(start, np.sort(rows), self.size, self.passes, purpose)
            length = float(update.norm())
            fine = 0 < length < float("inf")
            way = (update / length).float() if fine else torch.zeros_like(update, dtype=torch.float32)
            direction = client.layout.trainable.put(torch.zeros_like(start), way)
            uploads[name] = _sketch(direction, client.seed) if is_sketched(client.layout) else direction
            lengths.append(length if fine else 0.0)
        return Answer(uploads, {"length": sum(lengths) / 2} if self.lengths else {})

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return dict.fromkeys(self.uploads, (DIRECTION_SKETCH,)) if is_sketched(layout) else {}


def half_rows(client: Client, size: int, draw: int = 0) -> NDArray[np.int64]:
    """Return which samples the halves hold `[2, h]`, of those stored: `size` each, or as many as there are."""
    held, rng = min(size, client.samples // 2), client.stream("halves" + f" {draw}" * bool(draw))
    return rng.permutation(client.samples)[: 2 * held].reshape(2, held)


def is_sketched(layout: Layout) -> bool:
    """Whether directions of such a model are sketched."""
    return layout.size > SKETCH_ABOVE


@lru_cache(maxsize=2)
def _find_sketch(size: int, seed: int) -> Sketch:
    return Sketch(size, seed, DIRECTION_SKETCH)


def _sketch(direction: Tensor, seed: int) -> Tensor:
    """Return the sketch `[DIRECTION_SKETCH]` of a direction `[P]`, by the same map at all clients."""
    return _find_sketch(len(direction), seed)(direction.cpu()[None])[0]
