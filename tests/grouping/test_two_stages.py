"""What FedTSDP's clustering is made of: thresholds, noise, refinement, divergences to others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from scipy.spatial.distance import jensenshannon
from sklearn.cluster import DBSCAN

from coterie.grouping.affinity import pairwise_distances, quartiles
from coterie.grouping.cluster import Eps, cluster_by_distance, nearest_group, refine_groups
from coterie.grouping.divergence import js_divergences
from coterie.grouping.labels import relabel

points = arrays(np.float64, st.tuples(st.integers(1, 9), st.just(2)), elements=st.integers(-6, 6).map(float))
eps = st.sampled_from([0.0, 1.0, 1.5, 3.0])


def outputs(clients: int, samples: int, seed: int) -> torch.Tensor:
    logits = torch.randn(clients, samples, 4, generator=torch.Generator().manual_seed(seed))
    return (3 * logits).softmax(-1)


def test_js_1_8_3() -> None:
    """Symmetric, 0 only between equal outputs, at most ln 2, blind to the batch's order and to repeated samples."""
    q = torch.cat([outputs(6, 20, 0), outputs(6, 20, 0)[:1]])
    js = js_divergences(q)
    assert np.array_equal(js, js.T)
    assert (js <= np.log(2) + 1e-12).all()
    equal = js < 1e-12
    assert np.argwhere(np.triu(equal, 1)).tolist() == [[0, 6]]
    np.testing.assert_allclose(js_divergences(q[:, torch.randperm(20)]), js, atol=1e-12)
    np.testing.assert_allclose(js_divergences(q.repeat(1, 3, 1)), js, atol=1e-12)
    ends = torch.eye(2)[:, None]  # one is sure of the one class, one of the other
    assert js_divergences(ends)[0, 1] == pytest.approx(np.log(2), abs=1e-15)


def test_js_to_others() -> None:
    q, r = outputs(3, 10, 1), outputs(4, 10, 2)
    whole = js_divergences(torch.cat([q, r]))
    np.testing.assert_allclose(js_divergences(q, r), whole[:3, 3:], atol=1e-15)
    a, b = q.double().numpy(), r.double().numpy()
    by_scipy = [[np.mean(jensenshannon(x, y, axis=1) ** 2) for y in b] for x in a]
    np.testing.assert_allclose(js_divergences(q, r), by_scipy, atol=1e-12)


@pytest.mark.medium
@given(points, eps)
def test_noise_as_dbscan_labels_it(points: NDArray[np.float64], eps: float) -> None:
    """With `group`, scikit-learn's -1 is a label like any other; by default each such client is alone."""
    distances = pairwise_distances(points)
    labels = DBSCAN(eps=eps or 1e-12, min_samples=2, metric="precomputed").fit_predict(distances)
    assert cluster_by_distance(distances, eps, "group").tolist() == relabel(labels + 1).tolist()
    labels[labels == -1] = labels.max() + 1 + np.arange((labels == -1).sum())
    assert cluster_by_distance(distances, eps).tolist() == relabel(labels).tolist()


@pytest.mark.parametrize("value", [0, 0.15, "inf", np.inf])
def test_eps_takes(value: float | str) -> None:
    assert TypeAdapter(Eps).validate_python(value) == ("inf" if value == np.inf else value)


@pytest.mark.parametrize("value", [-1, np.nan, True, None, "0.15", "relative:0.5", "auto", [1.0]])
def test_eps_refuses(value: object) -> None:
    with pytest.raises(ValidationError, match=r" 0 .*inf"):
        TypeAdapter(Eps).validate_python(value)


@pytest.mark.medium
@given(points, eps, st.integers(1, 3))
def test_refined_1_8_5(points: NDArray[np.float64], eps: float, groups: int) -> None:
    """A partition finer than the first, and the very one of DBSCAN inside each group; the order does not matter."""
    first = np.arange(len(points)) % groups
    models = torch.from_numpy(points).float()
    found = refine_groups(first, models, eps + 0.01)
    assert found.tolist() == relabel(found).tolist()
    for group in range(min(groups, len(points))):
        mine = np.flatnonzero(first == group)
        inside = cluster_by_distance(pairwise_distances(points[mine]), eps + 0.01)
        assert relabel(found[mine]).tolist() == inside.tolist()
        assert not np.isin(found[first != group], found[mine]).any()
    order = np.random.default_rng(len(points)).permutation(len(points))
    assert (
        relabel(refine_groups(first[order], models[order], eps + 0.01)).tolist() == relabel(found[order]).tolist()
    )


def test_refined_without_columns_keeps_groups() -> None:
    first = np.array([0, 1, 0, 1])
    assert refine_groups(first, torch.zeros(4, 0), 0.0).tolist() == [0, 1, 0, 1]


def test_nearest_group() -> None:
    """By the mean over members, not by the nearest member; ties go to the first."""
    distances = np.array([[0.0, 9.0, 4.0], [1.0, 3.0, 2.0], [5.0, 5.0, 1.0]])
    assert nearest_group(distances, np.array([0, 0, 1])).tolist() == [1, 0, 1]


def test_quartiles() -> None:
    distances = pairwise_distances(np.array([[0.0], [1.0], [3.0], [10.0]]))
    assert quartiles(distances) == {"min": 1.0, "q1": 2.25, "median": 5.0, "q3": 8.5, "max": 10.0}
    assert quartiles(np.zeros((1, 1))) == {}
