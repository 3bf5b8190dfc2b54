"""Which groups there are: clusterers take points or distances and return labels."""

from __future__ import annotations

import warnings
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.grouping.affinity import gram_coordinates, squared_distances
from coterie.labels import canonical
from coterie.models.layout import Part

Linkage = Literal["single", "complete", "average"]


def kmeans(models: Tensor, clusters: int, restarts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Canonical labels `[n]` of the best of `restarts` K-means runs on models `[n, P]`.

    Lloyd's iterations to convergence from random members, smallest within-cluster sum of squares (FeSEM,
    section 3.2). Fewer distinct models than `clusters` give that many groups.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    points = gram_coordinates(models)
    distinct = len({blake2b(model.contiguous().numpy().data).digest() for model in models})
    clusters = min(clusters, distinct)
    if clusters == distinct == len(models):
        return np.arange(len(models))
    method = KMeans(clusters, init="random", n_init=restarts, tol=0.0, random_state=int(rng.integers(2**31)))
    # Threads would change the last digits of the sums; the warning is about duplicate points, counted above.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = method.fit_predict(points)
    return canonical(np.asarray(labels, np.int64))


def within(distances: NDArray[np.float64], eps: float) -> NDArray[np.int64]:
    """Canonical labels `[n]` of DBSCAN with two points to a core, from distances `[n, n]`.

    With two points that is: clients no farther apart than `eps` are together, and so is whoever is together
    with one of them; who has nobody near is alone (FedTSDP, specification 1.4 and A3).
    """
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(np.asarray(distances <= eps, np.int8), directed=False)
    return canonical(np.asarray(labels, np.int64))


def bipartition(distances: NDArray[np.float64], linkage: Linkage = "complete") -> NDArray[np.int64]:
    """Canonical labels `[n]`, 0 and 1, of the two sides of the last merge (LayerCFL, specification D7 and D8)."""
    left, right = _members(dendrogram(distances, linkage), len(distances))
    labels = np.zeros(len(distances), np.int64)
    labels[left if 0 in right else right] = 1
    return labels


def dendrogram(distances: NDArray[np.float64], linkage: Linkage = "average") -> NDArray[np.float64]:
    """SciPy's linkage matrix `[n - 1, 4]` of distances `[n, n]`; `average` is UPGMA (DC-PFL, section 5.3)."""
    from scipy.cluster.hierarchy import linkage as link
    from scipy.spatial.distance import squareform

    return np.asarray(link(squareform(distances, checks=False), linkage))


def cut(tree: NDArray[np.float64], height: float) -> NDArray[np.int64]:
    """Canonical labels `[n]` after keeping every merge of a dendrogram up to `height` (plus 1e-12)."""
    from scipy.cluster.hierarchy import fcluster

    return canonical(np.asarray(fcluster(tree, height + 1e-12, "distance"), np.int64))


def _members(tree: NDArray[np.float64], n: int) -> tuple[list[int], list[int]]:
    """The leaves on either side of a dendrogram's last merge."""
    leaves: list[list[int]] = [[i] for i in range(n)]
    for left, right in tree[:, :2].astype(int):
        leaves.append(leaves[left] + leaves[right])
    left, right = tree[-1, :2].astype(int)
    return leaves[left], leaves[right]


def reseeded(
    centres: Tensor, models: Tensor, empty: NDArray[np.int64], seen: Part, after: int = 5
) -> tuple[Tensor, NDArray[np.int64]]:
    """Move every centre that was empty for `after` rounds to the model farthest from its nearest centre.

    Args:
        centres: `[K, P]`.
        models: `[n, P]`.
        empty: for how many rounds each centre has had no member `[K]`.
        seen: the parameters that distances look at.

    Returns:
        The centres and the counts, new; one centre after the other, so that two never move to one model.
    """
    centres, empty = centres.clone(), empty.copy()
    for k in np.flatnonzero(empty >= after):
        centres[k] = models[int(squared_distances(seen.take(models), seen.take(centres)).min(1).argmax())]
        empty[k] = 0
    return centres, empty
