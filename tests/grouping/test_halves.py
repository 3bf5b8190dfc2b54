"""The test on halves: its level is exact, it sees planted groups, and nobody weighs more by sending more."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from coterie.grouping.halves import (
    common_half,
    direction_products,
    find_groups,
    find_turned_round,
    half_distances,
    loss_distances,
    membership_shares,
    pairing_test,
    resampled_counts,
)

Floats = NDArray[np.float64]


def products_of(centres: Floats, seed: int = 0, starts: int = 3, noise: float = 0.1) -> Floats:
    """Products of the halves of clients around `centres` `[n, 2, d]`, one of each half, from some starts."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(starts):
        both = torch.from_numpy(centres + noise * rng.normal(size=centres.shape))
        found.append(direction_products(both[:, 0], both[:, 1]))
    return np.array(found)


def centres_of(groups: list[int], width: int = 30, common: float = 1.0) -> Floats:
    """The centres `[n, 2, d]` of clients of some groups: what all share, and what each group has."""
    own = np.random.default_rng(9).normal(size=(max(groups) + 1, width)) / width**0.5
    away = np.zeros((len(groups), 2, width))
    away[:, :, 0] = common
    found: Floats = away + own[groups][:, None]
    return found


def own_pairs(order: tuple[int, ...], halves: Floats) -> float:
    """The mean distance of halves that are paired one after the other."""
    return float(np.mean([halves[a, b] for a, b in zip(order[::2], order[1::2], strict=True)]))


def test_the_p_value_is_that_of_all_pairings() -> None:
    points = np.random.default_rng(4).normal(size=(6, 2))
    points[1::2] = points[::2] + 0.2 * points[1::2]
    halves = np.linalg.norm(points[:, None] - points, axis=2)
    own = own_pairs(tuple(range(6)), halves)
    exact = np.mean([own_pairs(order, halves) <= own + 1e-12 for order in permutations(range(6))])
    found = pairing_test(halves, np.random.default_rng(0), 20_000)
    assert found.p == pytest.approx(exact, abs=0.01)
    assert found.own == pytest.approx(own)
    assert found.random == pytest.approx(halves.sum() / 30, abs=0.01)


def test_clients_of_one_population_are_divided_no_more_often_than_alpha() -> None:
    rng, divided = np.random.default_rng(1), 0
    for seed in range(300):
        products = products_of(np.zeros((10, 2, 8)), seed, starts=1, noise=1.0)
        divided += find_groups(products, 0.1, rng, 99).count > 1
    assert 12 <= divided <= 48  # 30, give or take 3.5 standard deviations


@pytest.mark.parametrize(
    "groups", [[0] * 12, [0, 1] * 6, [0] * 9 + [1] * 4, [0, 1, 2] * 6, [0, 1, 2, 3] * 5, [0, 1, 2, 3] * 3]
)
def test_planted_groups_are_found(groups: list[int]) -> None:
    found = find_groups(products_of(centres_of(groups)), 0.05, np.random.default_rng(0))
    assert found.labels.tolist() == groups
    assert not found.all_differ
    assert found.tests[0].clients == len(groups)
    assert [test.level for test in found.tests] == [0.05 * test.clients / len(groups) for test in found.tests]
    assert sum(test.p <= test.level for test in found.tests) == max(groups)  # each division makes one group more


def test_a_client_far_from_all_others_leaves_their_group_whole() -> None:
    groups = [0] * 10 + [1]
    found = find_groups(products_of(centres_of(groups)), 0.05, np.random.default_rng(0))
    assert found.labels.tolist() == groups


@pytest.mark.parametrize("n", [4, 5, 12])
def test_everybody_differs_where_groups_too_small_to_be_tested_differ_within(n: int) -> None:
    found = find_groups(products_of(centres_of(list(range(n)))), 0.05, np.random.default_rng(0))
    assert found.all_differ
    assert found.count == n


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_too_few_clients_are_one_group(n: int) -> None:
    found = find_groups(products_of(centres_of(list(range(4)))[:n]), 0.05, np.random.default_rng(0))
    assert found.labels.tolist() == [0] * n
    assert not found.all_differ


def test_clients_who_are_not_tested_join_the_nearest_group() -> None:
    groups, tested = [0, 1] * 6, np.arange(12) > 1
    found = find_groups(products_of(centres_of(groups)), 0.01, np.random.default_rng(0), tested=tested)
    assert found.labels.tolist() == groups


def test_lengths_and_zeros_do_not_count() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 5, 7)))
    plain = direction_products(rows[0], rows[1])
    scaled = direction_products(rows[0] * torch.tensor([[1e6], [1], [1e-6], [3], [1]]), rows[1])
    np.testing.assert_allclose(scaled, plain, atol=1e-12)
    rows[0, 2] = 0
    assert np.isfinite(half_distances(direction_products(rows[0], rows[1])[None])).all()


def test_a_client_between_two_groups_is_seen() -> None:
    groups = [0, 1] * 6
    centres = centres_of(groups)
    centres[0, 1] = centres[1, 1]  # one half of the first client is as those of the other group
    products = products_of(centres)
    shares = membership_shares(products, np.array(groups), np.random.default_rng(0))
    np.testing.assert_allclose(shares.sum(1), 1)
    assert shares[0].tolist() == [0.5, 0.5]
    assert (shares[np.arange(1, 12), groups[1:]] == 1).all()


def test_a_client_alone_is_of_its_own_group() -> None:
    groups = np.array([0, 0, 0, 0, 1])
    shares = membership_shares(products_of(centres_of(groups.tolist())), groups, np.random.default_rng(0))
    assert shares.argmax(1).tolist() == groups.tolist()
    assert shares[4].tolist() == [0.0, 1.0]


def test_clear_groups_are_as_many_in_every_resample() -> None:
    products = products_of(centres_of([0, 1, 2] * 8))
    assert resampled_counts(products, 0.05, np.random.default_rng(0)).tolist().count(3) >= 18


@pytest.mark.parametrize("groups", [[0] * 20, [0, 1, 2, 3] * 5])
def test_updates_that_are_turned_round_are_found_and_others_are_not(groups: list[int]) -> None:
    products, signs = products_of(centres_of(groups)), np.ones(40)
    assert not find_turned_round(products).any()
    signs[:8] = -1
    assert np.flatnonzero(find_turned_round(products * signs[:, None] * signs)).tolist() == [0, 1, 2, 3]


def test_more_than_a_fifth_are_a_group_of_their_own_and_not_turned_round() -> None:
    """As clients for whom the same labels mean the opposite: none of them is left out, and they are told apart."""
    products, signs = products_of(centres_of([0] * 20)), np.ones(40)
    signs[:10] = -1
    turned = products * signs[:, None] * signs
    assert not find_turned_round(turned).any()
    found = find_groups(turned, 0.05, np.random.default_rng(0))
    assert found.labels.tolist() == [0] * 5 + [1] * 15


@pytest.mark.parametrize(
    ("samples", "size"),
    [
        ([], 0),
        ([1, 1, 1], 0),
        ([60] * 20, 30),
        ([61] * 20, 30),
        ([4] * 2 + [100] * 8, 50),  # a fifth may be smaller
        ([4] * 3 + [100] * 7, 2),
        ([5000] * 5, 256),
    ],
)
def test_a_half_is_what_four_of_five_clients_can_fill(samples: list[int], size: int) -> None:
    assert common_half(np.array(samples, np.int64)) == size


def losses_of(groups: list[int], seed: int = 0, noise: float = 0.1) -> Floats:
    """What models of halves lose on each other's samples: more by 1 where their groups differ."""
    rng, of = np.random.default_rng(seed), np.repeat(groups, 2)
    hard, bad = rng.uniform(1, 2, len(of)), rng.uniform(0, 1, len(of))
    found: Floats = hard[:, None] + bad + (of[:, None] != of) + noise * rng.normal(size=(len(of), len(of)))
    return found


def test_losses_tell_groups_apart_however_hard_samples_are_and_however_bad_models() -> None:
    for groups in ([0, 1] * 6, [0] * 10 + [1, 1]):
        assert pairing_test(loss_distances(losses_of(groups)), np.random.default_rng(0)).p < 0.03


def test_losses_of_one_population_reject_no_more_often_than_they_may() -> None:
    rng = np.random.default_rng(2)
    p = [pairing_test(loss_distances(losses_of([0] * 8, seed)), rng, 99).p for seed in range(300)]
    assert 12 <= np.sum(np.array(p) <= 0.1) <= 48  # 30, give or take 3.5 standard deviations


def test_a_client_that_tells_what_no_model_loses_hides_no_groups() -> None:
    losses = losses_of([0, 1] * 6)
    losses[:2] = np.random.default_rng(0).choice([-1e30, 1e30], (2, 24))
    assert pairing_test(loss_distances(losses), np.random.default_rng(0)).p < 0.05
    assert np.isfinite(loss_distances(losses)).all()


def test_the_distance_of_two_halves_is_the_mean_loss_under_each_others_models() -> None:
    losses = losses_of([0] * 3)
    found = loss_distances(losses)
    np.testing.assert_allclose(found, found.T)
    assert found[0, 1] == pytest.approx((losses[0, 1] + losses[1, 0]) / 2)
