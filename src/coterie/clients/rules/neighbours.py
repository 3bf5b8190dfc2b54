"""kNN-Per at the client: what its own samples say of one that is like them (docs/methods/knn-per.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.objective import LocalModel

SHARES = torch.linspace(0, 1, 11)
"""The shares of neighbours among which a client chooses."""

RAREST = 1e-6
"""The least probability of a class among neighbours, so that no loss is infinite."""

_AT_A_TIME = 256
"""Samples that go through the network together."""


@dataclass(frozen=True)
class Neighbours:
    """Mixes what a model predicts with the classes of a client's samples nearest by their features.

    Attributes:
        count: how many of them count (k).
        share: of what they say in the mixture; without it, the one of `SHARES` with the least loss on the client's
            samples, of each of which all others are the neighbours.
    """

    count: int
    share: float | None = None

    @torch.no_grad()
    def __call__(self, own: Batch, model: LocalModel) -> Callable[[Tensor], Tensor]:
        """Return what gives the outputs `[B, C]` of inputs, from a client's samples and the model."""
        if len(own.labels) < 2:  # neither can its share be told
            return torch.no_grad()(model.__call__)
        found = [model.with_features(some) for some in torch.split(own.inputs, _AT_A_TIME)]
        logits, stored = (torch.cat(parts).flatten(1) for parts in zip(*found, strict=True))

        def mix(outputs: Tensor, features: Tensor, share: Tensor, alone: bool = False) -> Tensor:
            near = find_neighbours(features, stored, own.labels, outputs.shape[1], self.count, alone)
            return own.task.mix(torch.stack([outputs, near.log()]), torch.stack([1 - share, share]))

        if self.share is None:
            losses = [own.loss(mix(logits, stored, share, alone=True)) for share in SHARES]
            best = SHARES[int(torch.stack(losses).argmin())]
        else:
            best = torch.tensor(self.share)

        @torch.no_grad()
        def outputs(inputs: Tensor) -> Tensor:
            given, features = model.with_features(inputs)
            return mix(given, features.flatten(1), best)

        return outputs


def find_neighbours(
    features: Tensor, stored: Tensor, labels: Tensor, classes: int, count: int, alone: bool = False
) -> Tensor:
    """Return how probable each class is by the nearest stored samples `[B, C]` (Marfoq et al., 2022).

    A neighbour at the distance a counts as exp(-a^2 / d) of d features.

    Args:
        features: `[B, d]`.
        stored: `[s, d]`.
        labels: of these `[s]`.
        classes: C.
        count: how many neighbours count.
        alone: whether the features are the stored ones, none of which is a neighbour of itself.
    """
    apart = torch.cdist(features.double(), stored.double()).square()
    if alone:
        apart.fill_diagonal_(torch.inf)
    nearest, which = apart.topk(min(count, len(stored) - alone), largest=False)
    weights = (-nearest / features.shape[1]).softmax(1).to(features.dtype)
    found = weights.new_zeros(len(features), classes).scatter_add_(1, labels[which], weights)
    return found.clamp(min=RAREST)
