"""Groups by a gap between profiles: planted ones are found, one population stays whole."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.second_stage import plant, shares_divided
from coterie.grouping.gaps import find_groups, in_mean_squares, without_mean_direction


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "clients"), [("halves", 12), ("thirds", 24)])
def test_planted_groups_are_found_as_they_are(kind: str, clients: int) -> None:
    """Groups 1.35 times as far apart as clients of one; 1.1 times the median distance links nearly all halves."""
    divided, right, linked = shares_divided(kind, clients, 1.35, 25)
    assert divided >= 0.95
    assert right >= 0.9
    assert linked <= 0.1


@pytest.mark.medium
@pytest.mark.parametrize("clients", [6, 12, 24, 48])
def test_one_population_stays_whole(clients: int) -> None:
    divided, _, _ = shares_divided("one", clients, 1.0, 50)
    assert divided <= 0.02


@pytest.mark.medium
def test_uneven_clouds_stay_whole() -> None:
    """A few long directions, as of labels of which clients have more or fewer, are no groups."""
    divided = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        cloud = rng.standard_normal((20, 30)) / (1 + np.arange(30))
        divided += int(find_groups(cloud @ cloud.T, rng).any())
    assert divided <= 2


def test_order_and_scale_do_not_matter() -> None:
    updates, groups = plant(24, (1, 1, 1), 1.5, np.random.default_rng(0))
    order = np.random.default_rng(1).permutation(24)
    products = without_mean_direction(updates @ updates.T)
    assert find_groups(products, np.random.default_rng(2)).tolist() == groups.tolist()
    shuffled = find_groups(1e-6 * products[np.ix_(order, order)], np.random.default_rng(2))
    same = shuffled[:, None] == shuffled
    assert np.array_equal(same, groups[order][:, None] == groups[order])


def test_steps_along_the_mean_direction_are_no_groups() -> None:
    """Half of the clients go three times as far as the others, the same way."""
    rng = np.random.default_rng(0)
    updates = rng.standard_normal((20, 300)) / 10 + np.repeat([1.0, 3.0], 10)[:, None] * rng.standard_normal(300)
    assert not find_groups(without_mean_direction(updates @ updates.T), rng).any()


def test_mean_squares_have_no_units() -> None:
    products = np.array([[1.0, 0.5], [0.5, 3.0]])
    assert np.allclose(in_mean_squares(products), in_mean_squares(1e-9 * products))
    assert in_mean_squares(products).trace() == 2
    assert not in_mean_squares(np.zeros((2, 2))).any()


ALIKE = {
    "nobody": np.zeros((0, 0)),
    "few": np.eye(5),
    "no update": np.zeros((8, 8)),
    "the same": np.ones((8, 8)),
    "not finite": np.full((8, 8), np.nan),
    "one dimension": np.outer(np.arange(8.0), np.arange(8.0)),
}


@pytest.mark.parametrize("products", ALIKE.values(), ids=ALIKE)
def test_where_nothing_can_be_told_all_are_together(products: np.ndarray) -> None:
    assert not find_groups(products, np.random.default_rng(0)).any()
