"""Which groups there are: clusterers take points or distances and return labels."""

from __future__ import annotations

import re
import warnings
from hashlib import blake2b
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator
from torch import Tensor

from coterie.grouping.affinity import gram_coordinates, pairwise_distances
from coterie.labels import canonical

Linkage = Literal["single", "complete", "average"]
Noise = Literal["singletons", "group"]


def _eps(value: Any) -> float | str:
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return "inf" if value == np.inf else float(value)
    if not (isinstance(value, str) and re.fullmatch(r"inf|auto|relative:\d+(\.\d+)?", value)):
        raise ValueError("it must be a number from 0 up, auto, inf, or relative:r as in relative:0.5")
    return value


Eps = Annotated[float | str, BeforeValidator(_eps)]
"""How near is near, as a setting: see `threshold`."""


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


def within(distances: NDArray[np.float64], eps: float, noise: Noise = "singletons") -> NDArray[np.int64]:
    """Canonical labels `[n]` of DBSCAN with two points to a core, from distances `[n, n]`.

    With two points that is: clients no farther apart than `eps` are together, and so is whoever is together
    with one of them. Who has nobody near is alone, or with `noise="group"` together with all others who have
    nobody (FedTSDP, specification 1.4 and A3).
    """
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(np.asarray(distances <= eps, np.int8), directed=False)
    if noise == "group":
        alone = np.bincount(labels)[labels] == 1
        labels = np.where(alone, len(labels), labels)
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


def widest_gap(distances: NDArray[np.float64]) -> float:
    """The middle of the largest gap between merge heights of single linkage, from distances `[n, n]`.

    A threshold for `within` that needs no scale (FedTSDP, specification A2); of equal gaps the lowest counts. NaN
    where there are fewer than two merges, or a distance is not finite.
    """
    if len(distances) < 3 or not np.isfinite(distances).all():
        return float("nan")
    heights = dendrogram(distances, "single")[:, 2]
    at = int(np.diff(heights).argmax())
    return float((heights[at] + heights[at + 1]) / 2)


def threshold(eps: float | str, distances: NDArray[np.float64]) -> float:
    """The number that `eps` means for distances `[n, n]` (FedTSDP, specification A2 and A4).

    A number and `inf` mean themselves, `auto` the middle of the widest gap (`widest_gap`), and `relative:r` means r
    times the median over pairs of clients.
    """
    if eps == "auto":
        return widest_gap(distances)
    if isinstance(eps, str) and eps.startswith("relative:"):
        pairs = distances[np.triu_indices(len(distances), 1)]
        return float(eps.removeprefix("relative:")) * float(np.median(pairs)) if len(pairs) else 0.0
    return float(eps)


def refined(
    groups: NDArray[np.int64], models: Tensor, eps: float | str, noise: Noise = "singletons"
) -> NDArray[np.int64]:
    """Canonical labels `[n]` after DBSCAN inside each group, on the Euclidean distances of models `[n, P]`.

    No two clients of different groups are together afterwards. `eps` is read group by group (FedTSDP, stage 2).
    """
    found = np.zeros(len(groups), np.int64)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        distances = pairwise_distances(gram_coordinates(models[torch.from_numpy(members)]))
        found[members] = found.max() + 1 + within(distances, threshold(eps, distances), noise)
    return canonical(found)


def nearest_group(distances: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The group `[n]` whose members are nearest on average, ties to the first.

    Args:
        distances: to clients whose groups are known `[n, m]`.
        groups: of those clients `[m]`, 0 ... K-1, each with a member.
    """
    members = groups == np.arange(groups.max() + 1)[:, None]
    means = distances @ members.T / members.sum(1)
    return np.asarray(means.argmin(1), np.int64)
