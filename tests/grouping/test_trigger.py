"""The Hopkins statistic and the sampling it amends: properties 1.8.4 and 1.8.7 of docs/methods/fedtsdp.md."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coterie.grouping.trigger import hopkins, reweight_batch


def means(points: list[np.ndarray]) -> float:
    return float(np.mean([hopkins(p, np.random.default_rng(s)) for s, p in enumerate(points)]))


def test_uniform_points_in_a_box() -> None:
    rng = np.random.default_rng(0)
    assert 0.47 <= means([rng.uniform(size=(20, 500)) for _ in range(300)]) <= 0.51


def test_tight_groups_are_above_and_a_box_of_any_size_is_the_same() -> None:
    rng = np.random.default_rng(1)
    centres = rng.uniform(size=(4, 500))
    tight = [centres[np.arange(20) % 4] + rng.normal(size=(20, 500)) * 0.01 for _ in range(50)]
    assert means(tight) > 0.9
    assert means([7 * p - 3 for p in tight]) == pytest.approx(means(tight), abs=1e-9)
    apart = [np.eye(20) for _ in range(50)]
    assert means(apart) < 0.65  # twenty that are all different are no groups


def test_by_hand() -> None:
    """Two points of three to compare with two drawn ones, the same draws made here."""
    points = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    rng = np.random.default_rng(8)
    picked = rng.permutation(3)[:2]
    drawn = rng.uniform([0.0, 0.0], [3.0, 4.0], (2, 2))
    own = sum(min(math.dist(points[i], p) for j, p in enumerate(points) if j != i) for i in picked)
    other = sum(min(math.dist(d, p) for p in points) for d in drawn)
    assert hopkins(points, np.random.default_rng(8), sample=0.5) == pytest.approx(other / (other + own))


@pytest.mark.parametrize("points", [np.zeros((0, 3)), np.zeros((1, 3)), np.ones((5, 3))])
def test_nothing_to_see_is_a_half(points: np.ndarray) -> None:
    assert hopkins(points, np.random.default_rng(0)) == 0.5


def test_pairs_of_equal_points_are_as_tight_as_can_be() -> None:
    points = np.repeat(np.random.default_rng(0).normal(size=(5, 3)), 2, 0)
    assert hopkins(points, np.random.default_rng(0)) == 1.0


def test_repeats_are_a_mean_over_draws() -> None:
    points = np.random.default_rng(3).normal(size=(20, 30))
    rng = np.random.default_rng(0)
    singly = [hopkins(points, rng) for _ in range(5)]
    assert len(set(singly)) == 5
    assert hopkins(points, np.random.default_rng(0), 5) == pytest.approx(np.mean(singly), abs=1e-15)
    assert hopkins(points, np.random.default_rng(0)) == singly[0]


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_points_that_are_not_finite_have_no_statistic(broken: float) -> None:
    points = np.random.default_rng(3).normal(size=(20, 30))
    points[4, 2] = broken
    assert math.isnan(hopkins(points, np.random.default_rng(0)))


@pytest.mark.parametrize("size", [3, 50])
def test_the_literal_weights_are_equations_7_and_8(size: int) -> None:
    """Add M / B to the weights of the batch, then divide by the sum (D9)."""
    weights = np.random.default_rng(0).dirichlet(np.ones(200))
    batch = np.arange(size) * 3
    added = weights.copy()
    added[batch] += 200 / size
    np.testing.assert_allclose(reweight_batch(weights, batch, "literal"), added / added.sum(), rtol=1e-12)
    scaled = 200 * weights  # of mean 1, the same increments move half of the weight
    scaled[batch] += 200 / size
    np.testing.assert_allclose(reweight_batch(weights, batch, 0.5), scaled / scaled.sum(), rtol=1e-12)


def test_weights_stay_above_0_in_the_longest_run() -> None:
    weights = np.full(1000, 1e-3)
    for _ in range(500):
        weights = reweight_batch(weights, np.arange(50), "literal")
    assert weights.min() > 0
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
