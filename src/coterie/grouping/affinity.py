"""How far apart clients are: distances, sketches, coordinates."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.streams import stream

_TILE = 1 << 14
"""Columns taken to float64 at a time."""

SKETCH = 512
"""Numbers in a sketch of a model."""


def squared_distances(models: Tensor, centres: Tensor) -> NDArray[np.float64]:
    """`||w_i - W_k||^2` for models `[n, P]` and centres `[K, P]`, as `[n, K]`.

    Differences are taken in float64, client by client, so that one client's distances do not depend on who
    else is in the matrix.
    """
    wide = centres.double()
    found = np.empty((len(models), len(centres)))
    for i, model in enumerate(models):
        found[i] = (wide - model.double()).square_().sum(1).numpy()
    return found


def gram_coordinates(models: Tensor) -> NDArray[np.float64]:
    """Coordinates `[n, min(n, P)]` with the same pairwise distances as the models `[n, P]`.

    From the eigenvectors of the centred Gram matrix; K-means on them takes the same steps as on the models, at
    a cost that no longer depends on P.
    """
    gram = torch.zeros(len(models), len(models), dtype=torch.float64)
    for start in range(0, models.shape[1], _TILE):
        tile = models[:, start : start + _TILE].double()
        tile -= tile.mean(0)
        gram += tile @ tile.T
    values, vectors = np.linalg.eigh(gram.numpy())
    rank = min(models.shape)
    order = np.argsort(-values)[:rank]
    coordinates = vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))
    # An eigenvector's sign is arbitrary; fixed, so that every machine draws the same picture.
    signs = np.sign(coordinates[np.abs(coordinates).argmax(0), np.arange(rank)])
    return np.asarray(coordinates * np.where(signs == 0, 1.0, signs))


def pairwise_distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Euclidean distances `[n, n]` between points `[n, d]`."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(points, points))


def cosines(updates: Tensor) -> NDArray[np.float64]:
    """Cosine similarities `[n, n]` of updates `[n, P]`; 0 where an update is 0 (specification 4.3)."""
    rows = updates.double()
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    units = torch.where(norms > 0, rows / norms, torch.zeros_like(rows))
    return np.asarray((units @ units.T).clamp_(-1.0, 1.0).numpy())


def js_divergences(outputs: Tensor) -> NDArray[np.float64]:
    """Jensen-Shannon divergences `[n, n]` between softmax outputs `[n, samples, classes]`.

    The mean over samples, in nats, so between 0 and ln 2; the divergence itself, not its root
    (FedTSDP, specification 1.4, A1 and A2).
    """
    q = outputs.double()

    def entropy(p: Tensor) -> Tensor:
        return -torch.xlogy(p, p).sum(-1).mean(-1)

    own = entropy(q)
    found = np.zeros((len(q), len(q)))
    for i in range(len(q)):
        mixed = entropy((q[i] + q) / 2)
        found[i] = (mixed - (own[i] + own) / 2).numpy()
    np.fill_diagonal(found, 0.0)
    return np.maximum((found + found.T) / 2, 0.0)


def scaled_l1(models: Tensor) -> NDArray[np.float64]:
    """Mean absolute differences `[n, n]` between models `[n, P]`, each scaled to 0 ... 1 by its own range.

    A constant model counts as 0 everywhere (DC-PFL, specification 5.3).
    """
    from scipy.spatial.distance import cdist

    rows = models.double()
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    span = torch.where(high > low, high - low, torch.ones_like(high))
    scaled = ((rows - low) / span).numpy()
    return np.asarray(cdist(scaled, scaled, "cityblock") / models.shape[1])


def gap(similarities: NDArray[np.float64], groups: NDArray[np.int64]) -> float:
    """The least similarity `[n, n]` inside groups `[n]` minus the greatest between them (LayerCFL, Gap1).

    Above 0 exactly if every pair of one group is more alike than every pair of two. Of negated distances it is
    Gap2. NaN where no two clients share a group, or all share one.
    """
    alike = groups[:, None] == groups
    same = alike & ~np.eye(len(groups), dtype=bool)
    if not same.any() or alike.all():
        return float("nan")
    return float(similarities[same].min() - similarities[~alike].max())


class Sketch:
    """Count sketch: a random linear map from P to `SKETCH` numbers that keeps distances, in expectation.

    Every coordinate is added, with a random sign, to one random bucket (Charikar, Chen and Farach-Colton, 2002).
    Models of at most `SKETCH` parameters are kept as they are.
    """

    def __init__(self, size: int, seed: int) -> None:
        rng = stream(seed, "sketch")
        self.width = min(size, SKETCH)
        self._exact = size <= SKETCH
        self._buckets = torch.from_numpy(rng.integers(0, SKETCH, size))
        self._signs = torch.from_numpy(rng.integers(0, 2, size).astype(np.float32) * 2 - 1)

    def __call__(self, models: Tensor) -> Tensor:
        """Sketches `[n, width]` of models `[n, P]`."""
        if self._exact:
            return models.clone()
        found = torch.zeros(len(models), self.width)
        for row, model in zip(found, models, strict=True):
            row.index_add_(0, self._buckets, model * self._signs)
        return found
