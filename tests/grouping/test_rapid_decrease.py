"""The end of the rapid decrease, and the next cut (docs/methods/dcpfl.md, D3 to D7 and D9)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie.grouping.cluster import dendrogram
from coterie.grouping.rapid_decrease import count_terms, cut_at, has_decrease_ended, next_cut, radii


def detected(losses: NDArray[np.float64], terms: int = 6, observed: int = 3) -> int | None:
    """The round in which a server that sees one loss after the other finds that the decrease has ended."""
    for t in range(1, len(losses) + 1):
        if has_decrease_ended(losses[:t].tolist(), terms, observed):
            return t
    return None


def exponential(period: float, rounds: int = 80) -> NDArray[np.float64]:
    return 2 * np.exp(-np.arange(rounds) / period) + 0.3


@pytest.mark.parametrize("period", range(5, 41))
def test_dcpfl_5_9_4_exponential(period: int) -> None:
    """D6: the smallest radius is at round 8, and is seen to be at round 11, whatever the time constant."""
    assert detected(exponential(period)) == 11
    assert radii(exponential(period).tolist(), 6)[:12].argmin() == 7


@pytest.mark.parametrize("period", [5, 10, 15, 20])
def test_dcpfl_5_9_4_exponential_with_noise(period: int) -> None:
    rng = np.random.default_rng(0)
    found = {detected(exponential(period) + rng.normal(0, 0.01, 80)) for _ in range(50)}
    assert found <= set(range(11, 21))
    assert len(found) > 1


def test_dcpfl_5_9_4_sigmoid() -> None:
    """D6: a drop centred at round 25 ends at 41; with noise the literal rule fires too early."""
    losses = 2 / (1 + np.exp((np.arange(1, 81) - 25) / 7)) + 0.3
    assert detected(losses) == 41
    rng = np.random.default_rng(0)
    noisy = [losses + rng.normal(0, 0.01, 80) for _ in range(50)]
    assert {detected(one) for one in noisy} <= set(range(11, 39))


PERIODS = pytest.mark.parametrize(("period", "terms"), [(1, 6), (2, 6), (3, 6), (4, 8)])
"""With s = 5: s + 1 losses, or the next multiple of the period."""


@PERIODS
@given(
    st.lists(st.floats(0, 5), min_size=12, max_size=40),
    st.lists(st.floats(0, 5), min_size=4, max_size=4),
    st.data(),
)
def test_a_saw_tooth_of_the_period_moves_no_radius(
    period: int, terms: int, losses: list[float], teeth: list[float], data: st.DataObject
) -> None:
    """D5: layers averaged every alpha rounds make the loss a saw-tooth, whatever it is on top of."""
    assert count_terms(5, period) == terms
    first = data.draw(st.integers(0, period - 1))
    sawed = np.array(losses) + np.resize(np.roll(teeth[:period], first), len(losses))
    np.testing.assert_allclose(1 / radii(sawed.tolist(), terms), 1 / radii(losses, terms), rtol=1e-6, atol=2e-8)


@PERIODS
@pytest.mark.parametrize("time", [5, 10, 20, 40])
@pytest.mark.parametrize("height", [0.1, 1.0, 5.0])
def test_a_decrease_ends_in_the_same_round_under_a_saw_tooth(
    period: int, terms: int, time: float, height: float
) -> None:
    """D5 and D6: three whole sums, and three larger radii. A sum over another number of losses sees the teeth."""
    calm = exponential(time)
    for seed in range(10):
        teeth = np.resize(np.random.default_rng(seed).random(period) * height, len(calm))
        assert detected(calm + teeth, terms) == detected(calm, terms) == terms + 5
        if period > 1:
            assert not np.allclose(
                1 / radii((calm + teeth).tolist(), terms - 1), 1 / radii(calm.tolist(), terms - 1)
            )


@pytest.mark.parametrize(
    ("window", "period", "terms"), [(5, 3, 6), (5, 1, 6), (5, 7, 7), (1, 1, 2), (1, 3, 3), (6, 3, 9)]
)
def test_sums_are_over_whole_periods(window: int, period: int, terms: int) -> None:
    assert count_terms(window, period) == terms


def test_radii_follow_the_formula() -> None:
    """By the letter: s + 1 terms over s, once there are as many in all three sums."""
    losses = [3.0, 2.0, 1.5, 1.4, 1.3, 1.0, 0.9, 0.85]
    window = 2
    smooth = [sum(losses[t - 1 - window : t]) / window for t in range(window + 1, 9)]
    found = radii(losses, window + 1)
    assert np.isinf(found[: window + 2]).all()
    for t in range(2, len(smooth)):
        slope = smooth[t] - smooth[t - 1]
        bend = slope - (smooth[t - 1] - smooth[t - 2])
        expected = (1 + slope**2) ** 1.5 / bend if bend > 1e-8 else np.inf
        assert found[window + t] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("losses", [[], [1.0], [2.0, 1.0], [1.0] * 30, list(range(30, 0, -1))])
def test_a_loss_that_does_not_bend_never_ends(losses: list[float]) -> None:
    """D4: no second derivative, no finite radius."""
    assert np.isinf(radii(losses, 6)).all()
    assert not has_decrease_ended(losses, 6, 3)


@given(st.lists(st.floats(0.01, 5), max_size=40), st.integers(2, 7), st.integers(1, 4))
def test_what_has_ended_stays_ended(losses: list[float], terms: int, observed: int) -> None:
    ended = [has_decrease_ended(losses[:t], terms, observed) for t in range(len(losses) + 1)]
    assert ended == sorted(ended)
    if True in ended:
        assert ended.index(True) >= terms + 2 + observed


def _tree(n: int, seed: int) -> NDArray[np.float64]:
    points = np.random.default_rng(seed).normal(size=(n, 3))
    return dendrogram(np.linalg.norm(points[:, None] - points, axis=2))


@pytest.mark.medium
@given(st.integers(2, 15), st.integers(0, 50))
def test_dcpfl_5_9_3(n: int, seed: int) -> None:
    """Cuts are nested; at 1 there is one group, at 0 there are as many as distinct models."""
    tree = _tree(n, seed)
    cuts = [cut_at(tree, share) for share in np.linspace(0, 1, 21)]
    assert cuts[-1].tolist() == [0] * n
    assert cuts[0].tolist() == list(range(n))
    for finer, coarser in pairwise(cuts):
        assert all(len(set(coarser[finer == group])) == 1 for group in np.unique(finer))


def test_equal_models_are_one_group_at_every_cut() -> None:
    assert cut_at(dendrogram(np.zeros((4, 4))), 0.0).tolist() == [0] * 4
    assert cut_at(np.empty((0, 4)), 0.0).tolist() == [0]
    assert next_cut(dendrogram(np.full((4, 4), 1e-13)), 1.0, 0.2) is None
    assert next_cut(np.empty((0, 4)), 1.0, 0.2) is None


def test_two_equal_models_stay_together_at_cut_0() -> None:
    points = np.array([0.0, 0.0, 1.0, 3.0])
    assert cut_at(dendrogram(np.abs(points[:, None] - points)), 0.0).tolist() == [0, 0, 1, 2]


@pytest.mark.medium
@given(st.integers(2, 15), st.integers(0, 50), st.sampled_from([0.1, 0.2, 0.3, 1.0]))
def test_dcpfl_e9_candidates_skip_cuts_that_change_nothing(n: int, seed: int, step: float) -> None:
    """D3 and D9: down in steps to 0, each candidate another partition, the last one singletons."""
    tree, share, steps = _tree(n, seed), 1.0, 0
    while (found := next_cut(tree, share, step)) is not None:
        lower, groups = found
        assert lower < share
        assert lower == 0 or round((1 - lower) / step, 6) == round((1 - lower) / step)
        assert groups.max() > cut_at(tree, share).max()
        between = np.arange(share - step, lower + 1e-9, -step)
        assert all(np.array_equal(cut_at(tree, b), cut_at(tree, share)) for b in between)
        share, steps = lower, steps + 1
    assert steps >= 1
    assert len(np.unique(cut_at(tree, share))) == n


def test_five_steps_of_a_fifth_lead_to_0() -> None:
    tree = dendrogram(np.abs(np.array([0, 1, 3, 6, 10, 15.0])[:, None] - np.array([0, 1, 3, 6, 10, 15.0])))
    share, seen = 1.0, []
    while (found := next_cut(tree, share, 0.2)) is not None:
        share = found[0]
        seen.append(share)
    assert seen[-1] == 0.0
    assert set(seen) <= {0.8, 0.6, 0.4, 0.2, 0.0}
