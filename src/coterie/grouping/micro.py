"""Groups of very many clients: micro-clusters first, then a hierarchy over these.

No matrix between all clients is made. Memory grows with the number of clients, not with its square.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.grouping.affinity import cosines
from coterie.grouping.cluster import ROWS_AT_A_TIME, Linkage, bipartition, reduce_dimensions
from coterie.grouping.labels import relabel
from coterie.grouping.layers import Measure

MICRO = 1_000
MEMBERS = 20
"""Micro-clusters at most, and the members that they have on average at least."""

COMPONENTS = 32
"""Principal components of the sketches in which micro-clusters are looked for."""

CLOSEST = 64
"""Pairs of micro-clusters in which the most alike pair of clients is looked for."""

STEPS = 10
"""Lloyd's iterations: micro-clusters need to be small and pure, not optimal."""

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Micro:
    """Micro-clusters of rows `[n, size]`, of which the comparison is `cosine` or `l2`."""

    labels: Labels  # [n], the micro-cluster of each row
    sizes: Labels  # [m]
    means: Tensor  # [m, size], of its rows; scaled to the length 1 where cosines are compared
    distances: Floats  # [m, m], the mean over pairs of members, 0 on the diagonal


def micro_clusters(rows: Tensor, measure: Measure, seed: int) -> Micro:
    """Micro-clusters of rows `[n, size]`, and how far apart they are.

    K-means on the principal components of sketches; rows are scaled to the length 1 first where cosines are
    compared. The distance of two micro-clusters is a mean over pairs of their members, on the rows themselves: of
    1 - cosine, or the root of the mean squared distance.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    units = _units(rows) if measure == "cosine" else rows
    count = max(2, min(MICRO, len(rows) // MEMBERS))
    method = KMeans(count, init="random", n_init=1, max_iter=STEPS, random_state=seed % 2**31)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = relabel(method.fit_predict(reduce_dimensions(units, COMPONENTS, seed)))
    sizes = np.bincount(labels)
    means = torch.zeros(len(sizes), rows.shape[1], dtype=torch.float64)
    squares = np.zeros(len(sizes))
    for start in range(0, len(rows), ROWS_AT_A_TIME):
        block, at = units[start : start + ROWS_AT_A_TIME].double(), labels[start : start + ROWS_AT_A_TIME]
        means.index_add_(0, torch.from_numpy(at), block)
        squares += np.bincount(at, block.square().sum(1).numpy(), minlength=len(sizes))
    means /= torch.from_numpy(sizes)[:, None]
    gram = (means @ means.T).numpy()
    if measure == "cosine":
        apart = 1.0 - gram
    else:
        own = squares / sizes
        apart = np.sqrt(np.maximum(own[:, None] + own - 2 * gram, 0.0))
    np.fill_diagonal(apart, 0.0)
    return Micro(labels, sizes, means, np.asarray(apart))


def bipartition_of_many(rows: Tensor, measure: Measure, linkage: Linkage, seed: int) -> tuple[Labels, float]:
    """The sides of rows `[n, size]`, 0 and 1 by smallest member `[n]`, by way of micro-clusters.

    The last merge of their tree, in which each counts as one, gives two sides; then every row goes to the side
    whose mean is nearer, which mends micro-clusters that lie in both.

    Returns:
        The sides, and the greatest cosine across them as far as known: among the members of the `CLOSEST` pairs of
        micro-clusters, so at most the true one. NaN for `l2`, and where the rows are equal and have no sides.
    """
    micro = micro_clusters(rows, measure, seed)
    if not micro.distances.any():
        return np.zeros(len(rows), np.int64), float("nan")
    halves = bipartition(micro.distances, linkage)
    of_sides = np.stack([np.where(halves == side, micro.sizes, 0) for side in (0, 1)]).astype(np.float64)
    means = torch.from_numpy(of_sides / of_sides.sum(1, keepdims=True)) @ micro.means
    towards = (means[1] - means[0]).float()
    scores = rows @ towards
    if measure == "cosine":
        norms = torch.linalg.vector_norm(rows, dim=1)
        scores /= torch.where(norms > 0, norms, torch.ones_like(norms))
    second = scores.numpy() > float(means[1].square().sum() - means[0].square().sum()) / 2
    labels = second.astype(np.int64) if second.any() and not second.all() else halves[micro.labels]
    return relabel(labels), float("nan") if measure == "l2" else _most_alike(rows, micro, halves, labels)


def _most_alike(rows: Tensor, micro: Micro, halves: Labels, labels: Labels) -> float:
    """The greatest cosine between rows of two sides, as far as looked for."""
    across = np.argwhere((halves[:, None] == 0) & (halves == 1))
    nearest = across[np.argsort(micro.distances[across[:, 0], across[:, 1]], kind="stable")[:CLOSEST]]
    greatest = -1.0
    for pair in nearest:
        members = [np.flatnonzero((micro.labels == k) & (labels == side)) for side, k in enumerate(pair)]
        if all(map(len, members)):
            found = cosines(rows[torch.from_numpy(np.concatenate(members))])
            greatest = max(greatest, float(found[: len(members[0]), len(members[0]) :].max()))
    return greatest


def _units(rows: Tensor) -> Tensor:
    """Rows `[n, size]` of the length 1; what is 0 stays 0."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(norms > 0, norms, torch.ones_like(norms))
