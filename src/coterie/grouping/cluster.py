"""Which groups there are: clusterers take points or distances and return labels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator
from torch import Tensor

from coterie.grouping.affinity import gram_coordinates, model_distances, squared_distances
from coterie.grouping.aggregate import group_means, trimmed_count, trimmed_means
from coterie.grouping.labels import relabel
from coterie.models.sketch import Sketch

Linkage = Literal["single", "complete", "average"]
Noise = Literal["singletons", "group"]

ROWS_AT_A_TIME = 4_096
"""Rows of a long matrix taken at a time."""

MODEL_ITERATIONS = 10
"""Iterations of K-means on whole models, after those on their sketches."""


def _eps(value: Any) -> float | str:
    if not (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0) and value != "inf":
        raise ValueError("it must be a number from 0 up, or inf")
    return "inf" if float(value) == np.inf else float(value)


Eps = Annotated[float | str, BeforeValidator(_eps)]
"""How near is near, as a setting."""


def kmeans(
    models: Tensor, clusters: int, restarts: int, rng: np.random.Generator, sketch_above: int | None = None
) -> NDArray[np.int64]:
    """Canonical labels `[n]` of the best of `restarts` K-means runs on models `[n, P]`.

    Lloyd's iterations to convergence, smallest within-cluster sum of squares (FeSEM, section 6.1.4). The first
    centres are drawn by K-means++ (Arthur and Vassilvitskii, 2007): of 22 models in groups of 12, 6, 3 and 1, four
    plain draws hit all groups once in 34 runs. Fewer distinct models than `clusters` give that many groups.

    Above `sketch_above` models, K-means runs on `10 clusters` principal components of their sketches
    (`reduce_dimensions`). At most `MODEL_ITERATIONS` iterations on the models themselves then start from the best
    run. Memory is linear in n. The result is a fixed point of the same iterations; K-means on all models may find
    a better one.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    many = sketch_above is not None and len(models) > sketch_above
    points = (
        reduce_dimensions(models, 10 * clusters, int(rng.integers(2**31))) if many else gram_coordinates(models)
    )
    seen = points if many else models.numpy()
    distinct = len({blake2b(np.ascontiguousarray(row).data).digest() for row in seen})
    clusters = min(clusters, distinct)
    if clusters == distinct == len(models):
        return np.arange(len(models))
    method = KMeans(clusters, init="k-means++", n_init=restarts, tol=0.0, random_state=int(rng.integers(2**31)))
    # Threads would change the last digits of the sums; the warning is about duplicate points, counted above.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = np.asarray(method.fit_predict(points), np.int64)
    return relabel(_iterated(models, labels) if many else labels)


def _iterated(models: Tensor, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Labels `[n]` after at most `MODEL_ITERATIONS` of Lloyd's iterations on models `[n, P]`."""
    centres = torch.zeros(int(labels.max()) + 1, models.shape[1])
    for _ in range(MODEL_ITERATIONS):
        centres, before = group_means(models, labels, centres), labels
        labels = np.asarray(distances_of_many(models, centres).argmin(1), np.int64)
        if np.array_equal(labels, before):
            break
    return labels


def trimmed_kmeans(
    models: Tensor, clusters: int, trim: float, restarts: int, iterations: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Canonical labels `[n]` of the best of `restarts` trimmed K-means runs on models `[n, P]`.

    Lloyd's iterations from random members in which a centre is the coordinate-wise trimmed mean of its members
    (Ghosh et al., 2019; docs/methods/robust-tkm.md). The best run has the smallest sum of squared distances to
    the nearest centre, without the `floor(2 trim n)` largest: as many as are trimmed on both sides, and the same
    number in every run. Ties in every choice go to the first.

    Args:
        models: `[n, P]`; the caller leaves out what distances must not see.
        clusters: K; fewer models than that give one group each at most.
        trim: the share left out on each side of a centre's coordinates, at least 0 and below 0.5.
        restarts: runs from other members.
        iterations: steps of a run at most; it ends where nobody moves any more.
        rng: draws the members.
    """
    counted = len(models) - int(trimmed_count(np.array([len(models)]), 2 * trim)[0])
    best, least = np.zeros(len(models), np.int64), np.inf
    for _ in range(restarts):
        first = np.sort(rng.permutation(len(models))[:clusters])
        centres = models[torch.from_numpy(first)]
        distances = squared_distances(models, centres)
        for _ in range(iterations):
            labels = distances.argmin(1)
            centres = trimmed_means(models, labels, centres, trim)
            distances = squared_distances(models, centres)
            if (distances.argmin(1) == labels).all():
                break
        objective = float(np.sort(distances.min(1))[:counted].sum())
        if objective < least:
            best, least = distances.argmin(1), objective
    return relabel(best)


def reduce_dimensions(models: Tensor, dimensions: int, seed: int) -> NDArray[np.float32]:
    """The first principal components `[n, min(dimensions, P, 512)]` of the sketches of models `[n, P]`.

    `K / e` components keep the objective of every K-means clustering to a factor of 1 + e (Cohen et al., 2015), and
    a sketch keeps a squared distance to a relative standard deviation of `sqrt(2 / 512)`, about 6 %.
    """
    sketches = Sketch(models.shape[1], seed)(models)
    sketches -= sketches.mean(0, dtype=torch.float64).float()
    covariance = torch.zeros(sketches.shape[1], sketches.shape[1], dtype=torch.float64)
    for start in range(0, len(sketches), ROWS_AT_A_TIME):
        block = sketches[start : start + ROWS_AT_A_TIME]
        covariance += (block.T @ block).double()
    _, vectors = np.linalg.eigh(covariance.numpy())
    leading = torch.from_numpy(np.ascontiguousarray(vectors[:, ::-1][:, :dimensions])).float()
    return np.asarray((sketches @ leading).numpy())


def distances_of_many(models: Tensor, centres: Tensor) -> NDArray[np.float64]:
    """`||w_i - W_k||^2` `[n, K]` of very many models `[n, P]` to centres `[K, P]`, from products in float32.

    Both less the centres' mean, so that what they have in common costs no digits: wrong by some 1e-6 of the greater
    of the two squared distances to that mean.
    """
    middle = centres.mean(0, dtype=torch.float64).float()
    towards = (centres - middle).T.contiguous()
    own, found = towards.square().sum(0, dtype=torch.float64), []
    for start in range(0, len(models), ROWS_AT_A_TIME):
        block = models[start : start + ROWS_AT_A_TIME] - middle
        squares = torch.linalg.vector_norm(block, dim=1, dtype=torch.float64).square_()
        found.append(squares[:, None] + own - 2.0 * (block @ towards))
    return np.asarray(torch.cat(found).clamp_(min=0.0).numpy())


def cluster_by_distance(
    distances: NDArray[np.float64], eps: float, noise: Noise = "singletons"
) -> NDArray[np.int64]:
    """Canonical labels `[n]` of DBSCAN with two points to a core, from distances `[n, n]`.

    With two points that is: clients no farther apart than `eps` are together, and so is whoever is together
    with one of them. Who has nobody near is alone, or with `noise="group"` together with all others who have
    nobody (docs/methods/fedtsdp.md, D3).
    """
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(np.asarray(distances <= eps, np.int8), directed=False)
    if noise == "group":
        alone = np.bincount(labels)[labels] == 1
        labels = np.where(alone, len(labels), labels)
    return relabel(np.asarray(labels, np.int64))


def bipartition(distances: NDArray[np.float64], linkage: Linkage = "complete") -> NDArray[np.int64]:
    """Canonical labels `[n]`, 0 and 1, of the two sides of the last merge (docs/methods/layercfl.md, D7 and D8)."""
    return top_merge(dendrogram(distances, linkage))


def top_merge(tree: NDArray[np.float64]) -> NDArray[np.int64]:
    """The sides `[n]` of a dendrogram's last merge, 0 that of the first leaf."""
    n = len(tree) + 1
    labels = np.zeros(n, np.int64)
    below = [int(tree[-1, 0])]
    while below:
        cluster = below.pop()
        if cluster < n:
            labels[cluster] = 1
        else:
            below += tree[cluster - n, :2].astype(int).tolist()
    return labels if labels[0] == 0 else 1 - labels


def dendrogram(distances: NDArray[np.float64], linkage: Linkage = "average") -> NDArray[np.float64]:
    """SciPy's linkage matrix `[n - 1, 4]` of distances `[n, n]`; `average` is UPGMA (docs/methods/dcpfl.md)."""
    from scipy.cluster.hierarchy import linkage as link
    from scipy.spatial.distance import squareform

    return np.asarray(link(squareform(distances, checks=False), linkage))


def cut_dendrogram(tree: NDArray[np.float64], height: float) -> NDArray[np.int64]:
    """Canonical labels `[n]` after keeping every merge of a dendrogram up to `height` (plus 1e-12)."""
    from scipy.cluster.hierarchy import fcluster

    return relabel(np.asarray(fcluster(tree, height + 1e-12, "distance"), np.int64))


def average_linkage(distances: NDArray[np.float64], clusters: int) -> NDArray[np.int64]:
    """Canonical labels `[n]` of at most `clusters` groups, merged by the mean distance of their members."""
    from scipy.cluster.hierarchy import fcluster

    if len(distances) < 2:
        return np.zeros(len(distances), np.int64)
    return relabel(np.asarray(fcluster(dendrogram(distances), clusters, "maxclust"), np.int64))


def mean_silhouette(distances: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """How well groups `[n]` are separated in distances `[n, n]`: the mean silhouette, -1 … 1 (Rousseeuw, 1987).

    A client's silhouette is (b - a) / max(a, b), with its mean distance a to its own group and b to the nearest
    other one; alone in its group it has 0. There must be two groups at least, and fewer than clients; of any other
    labelling it is -inf, so that it is never the best.
    """
    if not 2 <= len(np.unique(labels)) < len(labels):
        return -np.inf
    member = np.eye(labels.max() + 1)[labels]
    sizes, sums, rows = member.sum(0), distances @ member, np.arange(len(labels))
    own = sums[rows, labels] / np.maximum(sizes[labels] - 1, 1)
    means = np.divide(sums, sizes, out=np.full_like(sums, np.inf), where=sizes > 0)
    means[rows, labels] = np.inf
    other = means.min(1)
    further = np.maximum(own, other)
    scores = np.divide(other - own, further, out=np.zeros(len(labels)), where=(sizes[labels] > 1) & (further > 0))
    return float(scores.mean())


def better_separated(distances: NDArray[np.float64], labellings: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The one of some labellings `[n]` with the largest mean silhouette; of equals the first."""
    return max(labellings, key=lambda labels: mean_silhouette(distances, labels))


def refine_groups(
    groups: NDArray[np.int64], models: Tensor, eps: float, noise: Noise = "singletons"
) -> NDArray[np.int64]:
    """Canonical labels `[n]` after DBSCAN inside each group, on the Euclidean distances of models `[n, P]`.

    No two clients of different groups are together afterwards (FedTSDP, stage 2).
    """
    found = np.zeros(len(groups), np.int64)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        own = models if len(members) == len(models) else models[torch.from_numpy(members)]
        found[members] = found.max() + 1 + cluster_by_distance(model_distances(own), eps, noise)
    return relabel(found)


def nearest_group(distances: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The group `[n]` whose members are nearest on average, ties to the first.

    Args:
        distances: to clients whose groups are known `[n, m]`.
        groups: of those clients `[m]`, 0 ... K-1, each with a member.
    """
    members = groups == np.arange(groups.max() + 1)[:, None]
    means = distances @ members.T / members.sum(1)
    return np.asarray(means.argmin(1), np.int64)
