"""Centres under noise hide whether any one client took part."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch

from coterie.grouping.noise import Noise, follow_quantile, hide_update, noisy_centres

NEXT_TO_NO_NOISE = 1e-12


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_without_noise_centres_move_by_clipped_means() -> None:
    previous = torch.tensor([[0.0, 0.0], [10.0, 10.0]])
    models = torch.tensor([[3.0, 4.0], [0.0, 0.5], [10.0, 8.0], [10.0, 10.0]])
    noise = Noise(NEXT_TO_NO_NOISE, 1.0)
    found = noisy_centres(models, np.array([0, 0, 1, 1]), previous, noise, 4, rng())
    assert torch.allclose(found.centres, torch.tensor([[0.3, 0.65], [10.0, 9.5]]))
    assert np.isnan(found.short)


def test_one_group_is_divided_by_who_is_expected() -> None:
    """So that the number of those who came tells nothing."""
    models, noise = torch.tensor([[0.5], [0.5]]), Noise(NEXT_TO_NO_NOISE, 1.0)
    found = noisy_centres(models, np.zeros(2, np.int64), torch.zeros(1, 1), noise, 4, rng())
    assert found.centres.item() == pytest.approx(0.25)


def test_a_small_group_counts_as_half_of_an_equal_share() -> None:
    models, noise = torch.tensor([[1.0]]), Noise(NEXT_TO_NO_NOISE, 1.0)
    found = noisy_centres(models, np.array([1]), torch.zeros(2, 1), noise, 12, rng())
    assert found.centres.ravel().tolist() == pytest.approx([0, 1 / 3])


@pytest.mark.parametrize(("groups", "watched"), [(1, False), (3, False), (1, True), (3, True)])
def test_the_budget_is_spent_whole_and_no_further(groups: int, watched: bool) -> None:
    """Gaussian mechanisms together are one, whose precision is the sum of theirs."""
    noise = Noise(2.0, 0.5, watched)
    spent = (noise.clip_norm / noise.deviation(groups)) ** 2
    spent += noise.count_deviation**-2 if groups > 1 else 0.0
    spent += (0.5 / noise.short_deviation) ** 2 if watched else 0.0
    assert spent == pytest.approx(2.0**-2)


@pytest.mark.parametrize("groups", [1, 3])
def test_noise_has_the_deviation_that_was_promised(groups: int) -> None:
    noise, size, expected = Noise(2.0, 0.5), 20_000, 1
    found = noisy_centres(
        torch.zeros(0, size), np.zeros(0, np.int64), torch.zeros(groups, size), noise, expected, rng()
    )
    counts = rng()
    for _ in range(groups):
        counts.normal(size=size)
    shares = np.ones(groups)
    if groups > 1:
        shares = np.maximum(counts.normal(0, noise.count_deviation, groups), expected / (2 * groups))
    seen = found.centres.std(1).numpy() * shares
    assert seen == pytest.approx(np.full(groups, noise.deviation(groups)), rel=0.03)


@pytest.mark.parametrize("length", [0.0, 1e-3, 1.0, 1e6])
def test_no_client_moves_a_sum_by_more_than_the_clipping_norm(length: float) -> None:
    models = torch.cat([torch.from_numpy(rng().normal(size=(4, 5))), torch.full((1, 5), length)]).float()
    groups, previous, noise = np.array([0, 1, 0, 1, 1]), torch.ones(2, 5), Noise(1e-9, 0.7)
    with_it = noisy_centres(models, groups, previous, noise, 40, rng()).centres
    without = noisy_centres(models[:4], groups[:4], previous, noise, 40, rng()).centres
    moved = (with_it - without).double() * 10  # a count is at least half of an equal share
    assert float(moved[0].norm()) == 0
    assert 0 < float(moved[1].norm()) <= 0.7 * 1.0001 or length == 1.0  # which is where it started


def test_the_clipping_norm_goes_where_the_quantile_is() -> None:
    lengths, norm = np.linspace(0.1, 10, 100), 0.1
    models = torch.from_numpy(lengths)[:, None].float()
    for number in range(200):
        noise = Noise(0.5, norm, watched=True)
        found = noisy_centres(models, np.zeros(100, np.int64), torch.zeros(1, 1), noise, 100, rng(number))
        norm = follow_quantile(norm, found.short, 0.3)
    assert norm == pytest.approx(3.0, rel=0.15)
    assert follow_quantile(1.0, inf, 0.5) == follow_quantile(1.0, 1.0, 0.5)  # noise cannot throw it far


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_that_training_failed_does_not_show(odd: float) -> None:
    start = torch.ones(5)
    model = torch.tensor([1.0, odd, 2.0, 3.0, 4.0])
    hidden = hide_update(model, start, 0.5, 0.1, np.random.default_rng(0))
    assert torch.equal(hidden, hide_update(start, start, 0.5, 0.1, np.random.default_rng(0)))


def test_an_update_is_cut_and_hidden() -> None:
    start, model = torch.ones(2), torch.tensor([4.0, 5.0])
    assert torch.allclose(hide_update(model, start, 1.0, 0.0, rng()), torch.tensor([1.6, 1.8]))
    assert torch.allclose(hide_update(model, start, 9.0, 0.0, rng()), model)
    hidden = hide_update(torch.zeros(20_000), torch.zeros(20_000), 1.0, 3.0, rng())
    assert float(hidden.std()) == pytest.approx(3.0, rel=0.03)
