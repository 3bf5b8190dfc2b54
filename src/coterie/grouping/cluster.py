"""Which groups there are: clusterers take points or distances and return labels."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.grouping.affinity import gram_coordinates, squared_distances


def canonical(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same partition with groups numbered by their smallest member (specification 0.2, convention 6)."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse], np.int64)


def kmeans(models: Tensor, clusters: int, restarts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Canonical labels `[n]` of the best of `restarts` K-means runs on models `[n, P]`.

    Lloyd's iterations to convergence from random members, smallest within-cluster sum of squares (FeSEM,
    section 3.2). Fewer distinct models than `clusters` give that many groups.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    points = gram_coordinates(models)
    distinct = len({model.numpy().tobytes() for model in models})
    clusters = min(clusters, distinct)
    if clusters == distinct == len(models):
        return np.arange(len(models))
    method = KMeans(clusters, init="random", n_init=restarts, tol=0.0, random_state=int(rng.integers(2**31)))
    # Threads would change the last digits of the sums; the warning is about duplicate points, counted above.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = method.fit_predict(points)
    return canonical(np.asarray(labels, np.int64))


def reseeded(
    centres: Tensor, models: Tensor, empty: NDArray[np.int64], after: int = 5
) -> tuple[Tensor, NDArray[np.int64]]:
    """Move every centre that was empty for `after` rounds to the model farthest from its own centre.

    Args:
        centres: `[K, P]`.
        models: `[n, P]`.
        empty: for how many rounds each centre has had no member `[K]`.

    Returns:
        The centres and the counts, new; one centre after the other, so that two never move to one model.
    """
    centres, empty = centres.clone(), empty.copy()
    for k in np.flatnonzero(empty >= after):
        centres[k] = models[int(squared_distances(models, centres).min(1).argmax())]
        empty[k] = 0
    return centres, empty
