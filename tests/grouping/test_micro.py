"""Groups of many clients by way of sketches and micro-clusters, against the exact answers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from coterie.grouping import micro
from coterie.grouping.affinity import cosines, squared_distances
from coterie.grouping.cluster import Linkage, bipartition, cut_dendrogram, dendrogram, distances_of_many, kmeans
from coterie.grouping.layers import Measure, compare_signals, distances

LINKAGES: tuple[Linkage, ...] = ("average", "complete", "single")
MEASURES: tuple[Measure, ...] = ("cosine", "l2")


def planted(clients: int, size: int, groups: int, noise: float, seed: int = 0) -> tuple[Tensor, NDArray[np.int64]]:
    """Updates of clients in groups, client i in group i mod groups, with noise on every number."""
    rng = np.random.default_rng(seed)
    of = np.arange(clients) % groups
    rows = rng.normal(size=(groups, size))[of] + noise * rng.normal(size=(clients, size))
    return torch.from_numpy(rows.astype(np.float32)), of


@pytest.mark.parametrize("measure", MEASURES)
def test_micro_clusters_are_as_far_apart_as_their_members_on_average(measure: Measure) -> None:
    rows, _ = planted(300, 40, 3, 0.5)
    rows[5] = 0.0
    found = micro.micro_clusters(rows, measure, 3)
    assert found.sizes.sum() == 300
    assert len(found.sizes) == 300 // micro.MEMBERS
    pairs = distances(compare_signals(rows, measure), measure)
    for one in range(len(found.sizes)):
        for other in range(one):
            between = pairs[np.ix_(found.labels == one, found.labels == other)]
            mean = between.mean() if measure == "cosine" else np.sqrt((between**2).mean())
            assert found.distances[one, other] == pytest.approx(mean, abs=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("linkage", ["average", "complete"])
@pytest.mark.parametrize("measure", MEASURES)
def test_two_thousand_clients_are_halved_as_by_all_pairs(measure: Measure, linkage: Linkage) -> None:
    rows, of = planted(2_000, 700, 2, 2.0)
    pairs = compare_signals(rows, measure)
    exact = bipartition(distances(pairs, measure), linkage)
    assert exact.tolist() == of.tolist()
    sides, alike = micro.bipartition_of_many(rows, measure, linkage, 1)
    assert sides.tolist() == exact.tolist()
    if measure == "l2":
        assert np.isnan(alike)
    else:
        true = pairs[np.ix_(exact == 0, exact == 1)].max()
        assert true - 0.05 < alike <= true + 1e-6


@pytest.mark.medium
def test_noise_in_which_single_pairs_drown() -> None:
    """Micro-clusters average it away, and what they mix up is mended by the sides' means."""
    rows, of = planted(2_000, 2_000, 2, 6.0)
    exact = bipartition(1.0 - cosines(rows), "complete")
    sides, _ = micro.bipartition_of_many(rows, "cosine", "complete", 1)
    found = adjusted_rand_score(of, sides)
    assert found > 0.99
    assert found >= adjusted_rand_score(of, exact)


@pytest.mark.medium
@pytest.mark.parametrize("linkage", ["average", "complete"])
def test_a_tree_of_micro_clusters_keeps_planted_groups(linkage: Linkage) -> None:
    rows, of = planted(2_000, 600, 8, 2.0)
    found = micro.micro_clusters(rows, "cosine", 5)
    tree = dendrogram(found.distances, linkage)
    labels = cut_dendrogram(tree, (tree[-8, 2] + tree[-7, 2]) / 2)[found.labels]
    exact = dendrogram(1.0 - cosines(rows), linkage)
    whole = cut_dendrogram(exact, (exact[-8, 2] + exact[-7, 2]) / 2)
    assert adjusted_rand_score(whole, labels) > 0.99
    assert adjusted_rand_score(of, labels) > 0.99


def test_equal_clients_have_no_sides() -> None:
    sides, alike = micro.bipartition_of_many(torch.ones(100, 600), "cosine", "complete", 1)
    assert not sides.any()
    assert np.isnan(alike)


def test_the_same_sides_from_the_same_seed() -> None:
    rows, _ = planted(400, 600, 3, 2.0)
    found = [micro.bipartition_of_many(rows.clone(), "cosine", "complete", 7) for _ in range(2)]
    assert found[0][0].tolist() == found[1][0].tolist()
    assert found[0][1] == found[1][1]


@pytest.mark.slow
def test_no_matrix_of_all_pairs_is_made() -> None:
    """12,000 clients: a matrix of all pairs would take 1.2 GB."""
    program = """
import resource, sys, torch
from coterie.grouping.micro import bipartition_of_many
rows = torch.randn(12_000, 24, generator=torch.Generator().manual_seed(0))
rows[::2] += 3.0
rows[1::2] -= 3.0
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sides, _ = bipartition_of_many(rows, "cosine", "complete", 1)
assert sides.sum() == 6_000 and sides[::2].max() == 0
unit = 1 if sys.platform == "darwin" else 1024
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 0.4e9


@pytest.mark.medium
@pytest.mark.parametrize("noise", [3.0])
def test_kmeans_on_sketches_finds_what_kmeans_on_models_does(noise: float) -> None:
    rows, of = planted(1_000, 2_000, 4, noise)
    exact = kmeans(rows, 4, 20, np.random.default_rng(1))
    found = kmeans(rows, 4, 20, np.random.default_rng(1), sketch_above=100)
    assert adjusted_rand_score(exact, found) > 0.98
    assert adjusted_rand_score(of, found) > 0.98


def test_kmeans_of_few_is_the_same_to_the_bit() -> None:
    rows, _ = planted(60, 30, 3, 4.0)
    found = [kmeans(rows, 3, 5, np.random.default_rng(2), above) for above in (None, 60)]
    assert found[0].tolist() == found[1].tolist()


def test_kmeans_on_sketches_of_fewer_distinct_models_than_clusters() -> None:
    rows = torch.eye(2, 700).repeat_interleave(50, 0)
    assert kmeans(rows, 5, 3, np.random.default_rng(0), 10).tolist() == [0] * 50 + [1] * 50


@given(st.integers(0, 1_000), st.floats(0.01, 100))
def test_distances_of_many_are_those_of_each(seed: int, far: float) -> None:
    rows, _ = planted(30, 50, 3, 0.1, seed)
    rows += far
    centres = rows[:3] + 0.5
    exact = squared_distances(rows, centres)
    np.testing.assert_allclose(distances_of_many(rows, centres), exact, rtol=1e-4, atol=1e-4 + 1e-5 * far)
