"""How far apart clients are: distances, sketches, coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.models.layout import Part
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


def js_divergences(outputs: Tensor, others: Tensor | None = None, *, root: bool = False) -> NDArray[np.float64]:
    """Jensen-Shannon divergences `[n, n]` between softmax outputs `[n, samples, classes]`.

    The mean over samples, in nats, so between 0 and ln 2; the divergence itself, unless its `root` is asked for
    (FedTSDP, specification 1.4, A1 and A2). With `others` `[m, samples, classes]`, those between outputs and
    others `[n, m]`.
    """
    q = outputs.double()
    r = q if others is None else others.double()

    def entropy(p: Tensor) -> Tensor:
        return -torch.xlogy(p, p).sum(-1).mean(-1)

    own, their = entropy(q), entropy(r)
    found = np.zeros((len(q), len(r)))
    for i in range(len(q)):
        mixed = entropy((q[i] + r) / 2)
        found[i] = (mixed - (own[i] + their) / 2).numpy()
    if others is None:
        np.fill_diagonal(found, 0.0)
        found = (found + found.T) / 2
    found = np.maximum(found, 0.0)
    return np.sqrt(found) if root else found


def scaled(models: Tensor, common: bool = False) -> Tensor:
    """Models `[n, P]` scaled to 0 ... 1, each by its own range or all by their `common` one, in float64.

    What has no range, such as a constant model, is 0 everywhere.
    """
    rows = models.double()
    over = (0, 1) if common else (1,)
    low, high = rows.amin(over, keepdim=True), rows.amax(over, keepdim=True)
    return (rows - low) / torch.where(high > low, high - low, torch.ones_like(high))


def scaled_l1(
    models: Tensor, others: Tensor | None = None, *, parts: Sequence[Part] | None = None, common: bool = False
) -> NDArray[np.float64]:
    """Mean absolute differences `[n, n]` between models `[n, P]`, each scaled to 0 ... 1 by its own range.

    A constant model counts as 0 everywhere (DC-PFL, specification 5.3).

    Args:
        models: the rows.
        others: `[m, P]`; with them, the differences between models and others `[n, m]`.
        parts: what counts, each part scaled by its own range there; without them, everything together.
        common: scale all models by the range that they have together.
    """
    from scipy.spatial.distance import cdist

    n, everyone = len(models), models if others is None else torch.cat([models, others])
    total, size = np.zeros((n, n if others is None else len(others))), 0
    for part in parts or [Part.of([(0, models.shape[1])])]:
        rows = scaled(part.take(everyone), common).numpy()
        total += cdist(rows[:n], rows if others is None else rows[n:], "cityblock")
        size += part.size
    return np.asarray(total / size)


def layer_discrepancies(
    models: Tensor, groups: NDArray[np.int64], centres: Tensor, parts: Sequence[Part]
) -> NDArray[np.float64]:
    """How much members differ from their group's model, layer by layer: `[K, L]` (DC-PFL, Eq. 5).

    The mean over members of the mean absolute difference, each of the L `parts` scaled to 0 ... 1 by its own range.
    NaN for a group without members.

    Args:
        models: `[r, P]`, whole models.
        groups: the group of each row `[r]`.
        centres: the groups' models `[K, P]`.
        parts: the layers.
    """
    found = np.full((len(centres), len(parts)), np.nan)
    for layer, part in enumerate(parts):
        own, centre = scaled(part.take(models)), scaled(part.take(centres))
        for group in np.unique(groups):
            found[group, layer] = float((own[groups == group] - centre[group]).abs().mean())
    return found


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


def quartiles(distances: NDArray[np.float64]) -> dict[str, float]:
    """Smallest, quartiles and largest of the distances `[n, n]` of different clients; nothing for one client."""
    pairs = distances[np.triu_indices(len(distances), 1)]
    if not len(pairs):
        return {}
    names = ("min", "q1", "median", "q3", "max")
    return dict(zip(names, np.quantile(pairs, (0, 0.25, 0.5, 0.75, 1)).tolist(), strict=True))
