"""Are there groups among clients, and which? A gap in how alike clients are, held against clouds without gaps.

What sets two clients of one group apart is noise, each client's own, and in many dimensions: no distance parts them
from others where some clients are noisier than the gap is wide. So two clients are compared by their profiles, the
cosines of each with all others (structural equivalence: Burt, Social Forces 55, 1976). In a profile of n clients
noise averages out. Groups are cut where merge heights of single linkage on profiles have a wide gap. They count if
their mean silhouette (Rousseeuw, 1987) is substantial, and above that of every one of `CLOUDS` Gaussian clouds with
the same spectrum, cut in the same way: a test for more than one cloud, as SigClust is (Liu, Hayes, Nobel and
Marron, JASA 103, 2008). Nothing here has a scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coterie.grouping.cluster import dendrogram, mean_silhouette, nearest_group
from coterie.grouping.labels import relabel

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

CLOUDS = 99
"""Clouds that groups must beat: one population is cut in one look of a hundred at most."""

LEAST = 6
"""Clients among whom groups are looked for: clouds of fewer look as grouped as groups do."""

SUBSTANTIAL = 0.25
"""A mean silhouette up to which there is no substantial structure (Kaufman and Rousseeuw, 1990)."""

_GAPS = 5
"""The widest gaps of which each is tried."""


def without_mean_direction(products: Floats) -> Floats:
    """Return the inner products `[n, n]` of vectors less their parts along the direction of their mean.

    How far a client went where all go is a matter of its steps, and no group.
    """
    along = products.sum(1)
    total = along.sum()
    return products - np.outer(along, along) / total if total > 0 else products


def in_mean_squares(products: Floats) -> Floats:
    """Return inner products `[n, n]` of vectors in units of their mean square; if all are 0 they stay 0."""
    mean = products.diagonal().mean()
    return products / mean if mean > 0 else products


def is_look(round: int) -> bool:
    """Whether groups are looked for in a round: in 1, 2, 4, 8, ... for one population is cut once in many looks."""
    return round & (round - 1) == 0


def find_groups(products: Floats, rng: np.random.Generator) -> Labels:
    """Return canonical labels `[n]` of the groups of the clearest gap, all 0 if some cloud has one as clear.

    Args:
        products: inner products of vectors `[n, n]`; of squared Euclidean distances D, `-D / 2` will do.
        rng: draws the clouds.
    """
    one = np.zeros(len(products), np.int64)
    if len(products) < LEAST or not np.isfinite(products).all():
        return one
    products = products - products.mean(0) - products.mean(1)[:, None] + products.mean()
    spectrum, axes = np.linalg.eigh(products)
    # Others are rounding, or come of means over different rounds, which need not be products of any vectors.
    kept = spectrum > 1e-9 * spectrum[-1]
    if spectrum[-1] <= 0 or kept.sum() < 2:
        return one
    deviations = np.sqrt(spectrum[kept])
    products = (axes[:, kept] * spectrum[kept]) @ axes[:, kept].T
    cosines = _cosines(products)
    clear, labels = _clearest_cut(cosines)
    if clear <= SUBSTANTIAL:
        return one
    for _ in range(CLOUDS):
        cloud = rng.standard_normal((len(products), len(deviations))) * deviations
        cloud -= cloud.mean(0)
        if _clearest_cut(_cosines(cloud @ cloud.T))[0] >= clear:
            return one
    return _move_to_nearest_mean(cosines, labels)


def _cosines(products: Floats) -> Floats:
    lengths = np.sqrt(np.maximum(products.diagonal(), 1e-12 * products.diagonal().max()))
    return np.asarray(products / lengths[:, None] / lengths)


def _profile_distances(cosines: Floats) -> Floats:
    """Return how far apart the cosines `[n, n]` of two clients with all others are: the root mean square."""
    others = cosines - np.diag(cosines.diagonal())
    squares = np.square(others).sum(1)
    apart = squares[:, None] + squares - 2 * others @ others.T - 2 * np.square(others)
    np.fill_diagonal(apart, 0.0)
    return np.asarray(np.sqrt(np.maximum((apart + apart.T) / 2, 0.0) / (len(cosines) - 2)))


def _clearest_cut(cosines: Floats) -> tuple[float, Labels]:
    """Return the largest mean silhouette of cuts at wide gaps, 0 at least, and its labels `[n]`."""
    distances, n = _profile_distances(cosines), len(cosines)
    tree = dendrogram(distances, "single")
    gaps = set(np.argsort(-np.diff(tree[:, 2]), kind="stable")[:_GAPS].tolist())
    best, found, clusters = 0.0, np.zeros(n, np.int64), np.arange(n)
    for merge, (left, right) in enumerate(tree[:, :2].astype(np.int64)):
        clusters[(clusters == left) | (clusters == right)] = n + merge
        if merge not in gaps:
            continue
        # Whoever is linked to nobody yet joins the cluster that is nearest on average.
        linked = clusters >= n
        _, together = np.unique(clusters[linked], return_inverse=True)
        labels = np.zeros(n, np.int64)
        labels[linked] = together
        if not linked.all():
            labels[~linked] = nearest_group(distances[np.ix_(~linked, linked)], together)
        silhouette = mean_silhouette(distances, labels)
        if silhouette > best:
            best, found = silhouette, relabel(labels)
    return best, found


def _move_to_nearest_mean(cosines: Floats, labels: Labels) -> Labels:
    """Return the labels `[n]` once every client is nearest to the mean of its group without itself."""
    rows, own = np.arange(len(labels)), cosines.diagonal()
    for _ in range(len(labels)):
        member = np.eye(labels.max() + 1)[labels]
        sizes = np.repeat(member.sum(0)[None], len(labels), 0)
        towards, squares = cosines @ member, np.repeat(((cosines @ member) * member).sum(0)[None], len(labels), 0)
        squares[rows, labels] += own - 2 * towards[rows, labels]
        towards[rows, labels] -= own
        sizes[rows, labels] -= 1
        np.maximum(sizes, 1, out=sizes)
        moved = relabel((squares / sizes**2 - 2 * towards / sizes).argmin(1))
        if np.array_equal(moved, labels):
            break
        labels = moved
    return labels
