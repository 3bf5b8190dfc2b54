"""The Hopkins statistic: what specification 1.8, item 4, measured."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coterie.grouping.trigger import hopkins


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
    """Two points to compare with two drawn ones, the same draws made here."""
    points = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    rng = np.random.default_rng(8)
    picked = rng.permutation(3)[:2]
    drawn = rng.uniform([0.0, 0.0], [3.0, 4.0], (2, 2))
    own = sum(min(math.dist(points[i], p) for j, p in enumerate(points) if j != i) for i in picked)
    other = sum(min(math.dist(d, p) for p in points) for d in drawn)
    assert hopkins(points, np.random.default_rng(8)) == pytest.approx(other / (other + own))


@pytest.mark.parametrize("points", [np.zeros((0, 3)), np.zeros((1, 3)), np.ones((5, 3))])
def test_nothing_to_see_is_a_half(points: np.ndarray) -> None:
    assert hopkins(points, np.random.default_rng(0)) == 0.5


def test_pairs_of_equal_points_are_as_tight_as_can_be() -> None:
    points = np.repeat(np.random.default_rng(0).normal(size=(5, 3)), 2, 0)
    assert hopkins(points, np.random.default_rng(0)) == 1.0
