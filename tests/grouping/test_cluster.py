"""Clusterers against brute force, scikit-learn, and what each of them promises."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN
from sklearn.metrics import adjusted_rand_score

from coterie.grouping.affinity import pairwise_distances
from coterie.grouping.cluster import bipartition, cluster_by_distance, cut_dendrogram, dendrogram, kmeans
from coterie.grouping.labels import relabel

Labels = NDArray[np.int64]
labels = st.lists(st.integers(-3, 5), min_size=1, max_size=9).map(lambda n: np.array(n, np.int64))


@st.composite
def distances(draw: Any, fewest: int = 2) -> NDArray[np.float64]:
    """Symmetric, 0 on the diagonal, with many ties."""
    n = draw(st.integers(fewest, 8))
    half = draw(arrays(np.float64, (n, n), elements=st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 7.0])))
    upper = np.triu(half, 1)
    return np.asarray(upper + upper.T)


@given(labels)
def test_canonical(given_labels: Labels) -> None:
    found = relabel(given_labels)
    assert np.array_equal(found < 0, given_labels < 0)
    given_labels, found = given_labels[given_labels >= 0], found[found >= 0]
    same, also = (x[:, None] == x for x in (given_labels, found))
    assert np.array_equal(same, also)
    firsts = [found.tolist().index(g) for g in range(max(found, default=-1) + 1)]
    assert firsts == sorted(firsts)
    assert relabel(found).tolist() == found.tolist()


def cost(points: NDArray[np.float64], groups: Labels) -> float:
    """Within-cluster sum of squares."""
    return float(sum(((m := points[groups == g]) - m.mean(0)).__pow__(2).sum() for g in np.unique(groups)))


@pytest.mark.medium
@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_kmeans_is_as_good_as_brute_force(clusters: int) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        some = torch.from_numpy(rng.normal(size=(6, 4)).astype(np.float32))
        points = some.double().numpy()
        found = kmeans(some, clusters, 20, np.random.default_rng(seed))
        best = min(cost(points, np.array(p)) for p in product(range(clusters), repeat=6))
        assert cost(points, found) == pytest.approx(best, rel=1e-9)
        assert found.tolist() == relabel(found).tolist()


def test_kmeans_of_far_groups_and_of_duplicates() -> None:
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.arange(30) % 5)
    some = torch.from_numpy((rng.normal(size=(5, 50))[truth] * 9 + rng.normal(size=(30, 50))).astype(np.float32))
    assert adjusted_rand_score(truth, kmeans(some, 5, 20, np.random.default_rng(1))) == 1.0
    twice = some[:3].repeat(4, 1)
    assert kmeans(twice, 5, 20, np.random.default_rng(1)).tolist() == [0, 1, 2] * 4
    assert kmeans(some[:4], 4, 1, np.random.default_rng(1)).tolist() == [0, 1, 2, 3]
    assert kmeans(some[:1], 3, 1, np.random.default_rng(1)).tolist() == [0]
    again = [kmeans(some, 7, 3, np.random.default_rng(s)).tolist() for s in (4, 4)]
    assert again[0] == again[1]


@pytest.mark.medium
@given(distances(1), st.sampled_from([0.0, 0.5, 1.0, 1.2, 3.0]))
def test_within_is_dbscan_with_noise_alone(matrix: NDArray[np.float64], eps: float) -> None:
    theirs = DBSCAN(max(eps, 1e-12), min_samples=2, metric="precomputed").fit_predict(matrix)
    noise = theirs == -1
    theirs[noise] = theirs.max(initial=0) + 1 + np.arange(noise.sum())
    assert cluster_by_distance(matrix, eps).tolist() == relabel(theirs).tolist()


@given(distances(1), st.permutations(range(8)))
def test_within_does_not_depend_on_the_order_of_clients(matrix: NDArray[np.float64], order: Any) -> None:
    picked = np.array([i for i in order if i < len(matrix)])
    again = cluster_by_distance(matrix[np.ix_(picked, picked)], 1.0)
    assert relabel(cluster_by_distance(matrix, 1.0)[picked]).tolist() == again.tolist()


def test_within_never_joins_who_is_infinitely_far() -> None:
    matrix = np.full((3, 3), np.inf)
    np.fill_diagonal(matrix, 0.0)
    assert cluster_by_distance(matrix, 1e300).tolist() == [0, 1, 2]


@given(distances(2))
def test_bipartition_by_single_linkage_keeps_the_sides_as_far_apart_as_can_be(matrix: NDArray[np.float64]) -> None:
    n = len(matrix)

    def gap(side: Labels) -> float:
        return float(matrix[np.ix_(side == 0, side == 1)].min())

    sides = [np.array([0, *rest]) for rest in product((0, 1), repeat=n - 1) if any(rest)]
    found = bipartition(matrix, "single")
    assert found[0] == 0
    assert set(found.tolist()) == {0, 1}
    assert gap(found) == max(gap(side) for side in sides)


@given(distances(2), st.sampled_from(["single", "complete", "average"]))
def test_bipartition_is_the_last_merge(matrix: NDArray[np.float64], linkage: Any) -> None:
    """The two sides are what is left when the last merge alone is undone."""
    found = bipartition(matrix, linkage)
    tree = dendrogram(matrix, linkage)
    if len(tree) < 2 or tree[-1, 2] > tree[-2, 2] + 1e-9:
        assert found.tolist() == cut_dendrogram(tree, tree[-2, 2] if len(tree) > 1 else -1.0).tolist()
    assert found.tolist() == relabel(found).tolist()


def test_bipartition_finds_two_far_groups() -> None:
    rng = np.random.default_rng(3)
    truth = np.array([0, 1, 1, 0, 1, 0, 0, 1])
    points = truth[:, None] * 10 + rng.normal(size=(8, 3))
    for linkage in ("single", "complete", "average"):
        assert bipartition(pairwise_distances(points), linkage).tolist() == truth.tolist()


@pytest.mark.medium
@given(distances(2), st.lists(st.floats(0, 8), min_size=2, max_size=5))
def test_cuts_are_nested(matrix: NDArray[np.float64], heights: list[float]) -> None:
    """A higher cut joins groups and never parts one; every merge up to the height is kept, none above it."""
    tree = dendrogram(matrix)
    before = None
    for height in sorted(heights):
        found = cut_dendrogram(tree, height)
        assert found.max() + 1 == len(matrix) - (tree[:, 2] <= height + 1e-12).sum()
        if before is not None:
            assert all(len(set(found[before == g])) == 1 for g in range(before.max() + 1))
        before = found
    assert cut_dendrogram(tree, tree[-1, 2]).tolist() == [0] * len(matrix)


def test_the_average_linkage_is_upgma() -> None:
    matrix = np.array([[0, 2, 6, 10], [2, 0, 4, 8], [6, 4, 0, 9], [10, 8, 9, 0]], float)
    tree = dendrogram(matrix)
    np.testing.assert_allclose(tree[:, 2], [2.0, 5.0, 9.0])  # (6 + 4) / 2, then (10 + 8 + 9) / 3
    assert cut_dendrogram(tree, 5.0).tolist() == [0, 0, 0, 1]
    assert cut_dendrogram(tree, 4.9).tolist() == [0, 0, 1, 2]
