"""Rules that tell how much a client's update depends on which half of its data it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import Samples
from coterie.clients.rules.requests import Gradients, LocalNetwork, Request, Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.clients.rules.training import Training

FARTHEST = torch.finfo(torch.float32).max
"""The spread of halves that cancel out: a number that can cross."""


def _start(client: Client, order: Order) -> Tensor:
    """Return the received model `[P]`: the item `seen`, the part that is compared, and `rest`."""
    model = order.items["rest"].onto(client.initial()) if "rest" in order.items else client.initial()
    return order.items["seen"].onto(model)


@rule("half-data-spread")
@dataclass(frozen=True)
class HalfDataSpread(Rule):
    """`1/2 ||a - b|| / ||1/2 (a + b)||` of the updates a and b from two halves of the data.

    An update is one step of gradient descent from the received model on a half, for Theorem 1 of CFL
    (docs/methods/layercfl.md, D9) is about gradients at one point; the step's length cancels out. The halves are
    every other minibatch of one pass. The model comes as the items `seen`, the part in which norms are taken, and
    `rest`.
    """

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the number `spread`; with none where the data are one minibatch."""
        seen = order.items["seen"]
        gradients = yield Gradients(_start(client, order), purpose="half-data")
        if len(gradients) < 2 or seen.part is None:
            return Answer()
        rows = seen.part.take(gradients).double()
        one, other = rows[::2].mean(0), rows[1::2].mean(0)
        away, common = float((one - other).norm()), float((one + other).norm())
        return Answer(numbers={"spread": min(away / common, FARTHEST) if common else FARTHEST})


@rule("half-data-updates")
@dataclass(frozen=True)
class HalfDataUpdates(Rule):
    """How alike a client's updates from two halves of its data are: what noise there is in an update.

    An update is a round's training from the received model in which the samples of the other half weigh nothing,
    and its own twice as much: as many steps of the same length, from independent samples. The model comes as for
    `HalfDataSpread`.
    """

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the cosine of the two, `alike`; with nothing for one sample."""
        seen = order.items["seen"]
        if client.samples < 2 or seen.part is None:
            return Answer()
        start = _start(client, order)
        first = torch.zeros(client.samples)
        picked = client.stream("half-data").permutation(client.samples)[: client.samples // 2]
        first[torch.from_numpy(picked)] = client.samples / len(picked)
        second = torch.where(first > 0, 0.0, client.samples / (client.samples - len(picked)))
        updates = []
        for weights, purpose in ((first, "first half"), (second, "second half")):
            trained: Trained = yield Train(start, weights=weights, purpose=purpose)
            updates.append(seen.part.take(trained.model - start).double())
        one, other = updates
        lengths = float(one.norm() * other.norm())
        return Answer(numbers={"alike": float(one @ other) / lengths if lengths else 0.0})


LEAST_STEPS = 20
"""Steps on a half at least: after a few, an update is hardly more than the first gradient."""

LONGEST_STEP = 1.0
"""Length to which a gradient is cut, so that hardly any learning rate diverges; a direction is all that is sent."""


@dataclass(frozen=True, eq=False)
class TrainOnHalf(Request):
    """Plain SGD from `start` `[P]` on some of the client's samples; answered by a tensor `[P]`, the way it led.

    It takes as many steps for all clients, so that nothing but what the samples are tells two updates apart. The
    answer has length 1, and 0 in buffers; all of it is 0 where no step was taken, or training diverged.

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
        update = (w - trainable.take(self.start)).double()
        length = float(update.norm())
        way = (update / length).float() if 0 < length < float("inf") else torch.zeros_like(w)
        return trainable.put(torch.zeros_like(self.start), way)

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
    it holds, and one with a single sample sends nothing. All exchanges of a round are about the same halves.
    """

    size: Annotated[int, Field(ge=1, description="samples in a half")] = 32
    passes: Annotated[int, Field(ge=1, description="passes over a half")] = 5
    start: Annotated[int, Field(ge=0, description="number of the start, to name its randomness")] = 0
    uploads, writes = ("first", "second"), False
    optional_uploads = ("first", "second")

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the directions `first` and `second` `[P]`, of length 1."""
        held = min(self.size, client.samples // 2)
        if not held:
            return Answer()
        order_of_samples = client.stream("halves").permutation(client.samples)
        start, uploads = order.items["model"].values, {}
        for name, at in (("first", 0), ("second", held)):
            rows = np.sort(order_of_samples[at : at + held])
            way: Tensor = yield TrainOnHalf(start, rows, self.size, self.passes, f"{name} half, start {self.start}")
            uploads[name] = way
        return Answer(uploads)
