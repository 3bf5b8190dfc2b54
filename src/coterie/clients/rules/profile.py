"""Rules that tell how often each class is, and what its inputs are like, in either half of a client's data.

Where targets are numbers, the parts that they are cut into stand for classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.half_data import half_rows
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.objective import LocalModel
from coterie.clients.rules.requests import Inspect
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.models.layout import Layout
from coterie.randomness import stream

FEATURES = 64
"""Random features of an input, each a cosine."""

CUTS = (-0.6745, 0.0, 0.6745)
"""Where standardised targets are cut: the quartiles of a normal distribution."""


@rule("input-moments")
@dataclass(frozen=True)
class InputMoments(Rule):
    """Tell the mean and the deviation of each number of an input, and of targets that are numbers."""

    width: Annotated[int, Field(ge=1, description="numbers of an input")] = 1
    targets: Annotated[int, Field(ge=0, description="numbers of a target; 0 where it is of a class")] = 0
    uploads, writes = ("moments",), False

    def run(self, client: Client, order: Order) -> Work:
        """Answer with `moments` `[2, width + targets]`; 0 without samples."""

        def take(batch: Batch, _: LocalModel | None) -> Tensor:
            x = batch.inputs.flatten(1).double()
            if self.targets:
                targets = batch.labels.flatten(1).double()
                x = torch.cat([x, targets], 1)[targets.isfinite().all(1)]
            # A deviation is taken here: of far numbers, a difference of squares that crossed would be lost.
            return torch.stack([x.mean(0), x.std(0, correction=0)]).nan_to_num()

        moments = torch.zeros(self.shapes(client.layout)["moments"])
        if client.samples:
            moments = (yield Inspect(take)).float()
        return Answer({"moments": moments})

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"moments": (2, self.width + self.targets)}


@rule("half-profiles")
@dataclass(frozen=True)
class HalfProfiles(Rule):
    """Tell of each class, in either half of the data, how many samples there are and what their inputs sum to.

    Halves are those of `HalfDirections`. An input is standardised by the received `scale`, means and deviations
    `[2, width + targets]` in a row, and becomes the cosines of random projections, the same at all clients: their
    means tell any two distributions apart (Rahimi and Recht, 2007). Targets that are numbers are standardised, too,
    projected on one random direction, and cut at `CUTS` into as many classes; samples with an unknown one do not
    count.
    """

    size: Annotated[int, Field(ge=1, description="samples in a half")] = 32
    classes: Annotated[int, Field(ge=1, description="classes; 1 where samples are of none")] = 1
    targets: Annotated[int, Field(ge=0, description="numbers of a target; 0 where it is of a class")] = 0
    uploads, writes = ("profile",), False

    def run(self, client: Client, order: Order) -> Work:
        """Answer with `profile` `[2, classes, 1 + FEATURES]`: counts, and beside them sums of the features."""
        halves, profile = half_rows(client, self.size), torch.zeros(self.shapes(client.layout)["profile"])
        if not halves.size:
            return Answer({"profile": profile})
        scale = order.items["scale"].values.double().view(2, -1)
        of_inputs, of_targets = scale.tensor_split([scale.shape[1] - self.targets], 1)

        def take(batch: Batch, _: LocalModel | None) -> Tensor:
            found = profile.double()
            for half, rows in enumerate(torch.from_numpy(halves)):
                if self.targets:
                    rows = rows[batch.labels[rows].flatten(1).isfinite().all(1)]
                    labels = cut_targets(batch.labels[rows].flatten(1).double(), of_targets, client.seed)
                else:
                    labels = batch.labels[rows] if self.classes > 1 else torch.zeros(len(rows), dtype=torch.int64)
                features = random_features(batch.inputs[rows].flatten(1).double(), of_inputs, client.seed)
                ones = torch.ones(len(rows), 1, dtype=torch.float64)
                found[half].index_add_(0, labels, torch.cat([ones, features], 1))
            return found

        return Answer({"profile": (yield Inspect(take)).float()})

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"profile": (2, self.classes, 1 + FEATURES)}


def cut_targets(targets: Tensor, scale: Tensor, seed: int) -> Tensor:
    """Return the parts 0 … `len(CUTS)` `[s]` of targets `[s, outputs]` by means and deviations `[2, outputs]`."""
    way = torch.from_numpy(stream(seed, "random direction of targets").standard_normal(targets.shape[1]))
    standard = (targets - scale[0]) / torch.where(scale[1] > 0, scale[1], 1.0)
    return torch.bucketize(standard @ (way / torch.linalg.vector_norm(way)), torch.tensor(CUTS).double())


def random_features(inputs: Tensor, scale: Tensor, seed: int) -> Tensor:
    """Return the features `[s, FEATURES]` of inputs `[s, width]` by means and deviations `[2, width]`.

    Two inputs that are as far apart as standardised strangers are have a kernel of about 1/e.
    """
    rng, width = stream(seed, "random features"), inputs.shape[1]
    ways = torch.from_numpy(rng.standard_normal((width, FEATURES)) / width**0.5)
    phases = torch.from_numpy(rng.uniform(0, 2 * torch.pi, FEATURES))
    deviations = torch.where(scale[1] > 0, scale[1], 1.0)
    return torch.cos((inputs - scale[0]) / deviations @ ways + phases)
