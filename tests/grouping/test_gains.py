"""What clients gain: moments that are pooled as if the samples were there, and intervals that hold."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.grouping.gains import (
    Estimate,
    are_sound,
    choose_by_other_folds,
    choose_option,
    client_gain,
    mean_gain,
    pool_folds,
    take_roots,
)


def moments_of(scores: np.ndarray) -> np.ndarray:
    """The moments `[1 + M, 1 + M]` of scores `[s, M]`."""
    found = np.zeros((1 + scores.shape[1],) * 2)
    found[0, 0] = len(scores)
    found[0, 1:] = scores.mean(0)
    found[1:, 1:] = np.cov(scores.T, bias=True)
    return found


def test_pooled_folds_are_the_moments_of_all_samples() -> None:
    scores = np.random.default_rng(0).normal(size=(50, 3))
    folds = np.stack([moments_of(some)[None] for some in (scores[:10], scores[10:13], scores[13:])])
    np.testing.assert_allclose(pool_folds(folds)[0], moments_of(scores), atol=1e-12)
    empty = np.concatenate([folds, np.zeros((1, 1, 4, 4))])
    np.testing.assert_allclose(pool_folds(empty)[0], moments_of(scores), atol=1e-12)
    assert (pool_folds(np.zeros((2, 1, 4, 4))) == 0).all()


@pytest.mark.parametrize("share", [True, False])
def test_intervals_of_a_client_hold_what_it_gains(share: bool) -> None:
    rng, held = np.random.default_rng(1), 0
    for _ in range(400):
        if share:
            easy = rng.random((40, 1)) < 0.5
            scores = (easy | (rng.random((40, 2)) < [0.6, 0.4])).astype(float)
            truth = 0.5 * 0.2
        else:
            scores, truth = rng.normal(size=(40, 1)) + rng.normal([1.3, 1.0], 0.5, (40, 2)), 0.3
        found = client_gain(moments_of(scores), 0, 1, 1.0, share)
        held += found.low <= truth <= found.high
    assert 0.93 <= held / 400 <= 0.985


def test_what_is_alike_on_all_samples_is_not_taken_for_sure() -> None:
    found = client_gain(moments_of(np.ones((10, 2))), 0, 1, 1.0, True)
    assert found.value == 0
    assert found.low < -0.1
    assert found.high > 0.1
    few = client_gain(moments_of(np.ones((3, 2))), 0, 1, 1.0, True)
    assert few.value == 0
    assert np.isnan(few.low)
    assert not few.is_above
    assert not few.is_below


def test_a_fall_is_a_gain_where_less_is_better() -> None:
    squares = np.random.default_rng(0).normal([[2.0, 1.0]], 0.1, (60, 2)) ** 2
    found = client_gain(take_roots(moments_of(squares)[None])[0], 1, 0, -1.0, False)
    assert found.value == pytest.approx(np.sqrt(squares[:, 0].mean()) - np.sqrt(squares[:, 1].mean()))
    assert found.is_above
    assert found.high - found.low < 0.2


def test_the_mean_over_clients_knows_how_they_vary() -> None:
    assert mean_gain(np.array([np.nan, 2.0])).value == 2.0
    assert np.isnan(mean_gain(np.array([np.nan])).value)
    found = mean_gain(np.array([1.0, 2.0, 3.0, np.nan]))
    assert (found.value, round(found.high - found.low, 3)) == (2.0, 4.968)  # twice 4.303 / sqrt 3
    assert Estimate(1.0, 0.5, 1.5).is_above
    assert Estimate(-1.0, -1.5, -0.5).is_below


def test_the_simplest_option_that_is_as_good_is_chosen() -> None:
    wobble = np.where(np.arange(30) % 2, 0.02, -0.02)
    scores = np.stack([np.full(30, 0.5), np.full(30, 0.8), 0.801 + wobble], 1)
    assert choose_option(scores, 1.0, (0, 1, 2)) == 1
    assert choose_option(scores, 1.0, (0, 2, 1)) == 2
    assert choose_option(scores, -1.0, (0, 1, 2)) == 0
    assert choose_option(np.full((3, 3), np.nan), 1.0, (2, 1, 0)) == 2


def test_a_choice_among_equals_gains_nothing_where_it_is_scored_on_other_samples() -> None:
    """Of 20 options that are noise, the best by its own scores seems to gain; chosen on other folds it does not."""
    rng = np.random.default_rng(3)
    scores = rng.normal(0.5, 0.05, (4, 200, 20)) + rng.normal(0, 0.02, (4, 1, 20))
    counts, order = np.full((4, 200), 10.0), tuple(range(20))
    crossed = choose_by_other_folds(scores, counts, 1.0, order).mean() - scores.mean()
    best = scores.mean(0)[:, choose_option(scores.mean(0), 1.0, order)].mean() - scores.mean()
    assert best > 0.008
    assert crossed < best / 2


def test_moments_that_no_samples_have_are_not_sound() -> None:
    right = moments_of(np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    wrong = [-right, 100 * right, right + np.nan, np.where(right == 3, 2.5, right), np.where(right == 3, 7, right)]
    found = are_sound(np.stack([right, np.zeros((3, 3)), *wrong]), 6, True)
    assert found.tolist() == [True, True, *[False] * 5]
    assert are_sound(np.stack([np.where(right == 3, 3, 50 * right)]), 6, False).all()
