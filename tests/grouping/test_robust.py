"""Robust centres: what a few hostile models cannot do to them, and what the papers say they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.grouping.aggregate import group_means, trimmed_means
from coterie.grouping.robust import Estimate, clip_updates, count_hostile, robust_centres

ESTIMATES: tuple[Estimate, ...] = (
    "median",
    "trimmed-mean",
    "krum",
    "multi-krum",
    "bulyan",
    "geometric-median",
    "centred-clipping",
)
ALL = np.zeros(11, np.int64)


def some_models(count: int = 11, width: int = 40, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(1, 0.1, (count, width)).astype(np.float32))


def centre(models: Tensor, estimate: Estimate, share: float = 0.2) -> Tensor:
    return robust_centres(models, np.zeros(len(models), np.int64), torch.ones(1, models.shape[1]), estimate, share)[
        0
    ]


@pytest.mark.parametrize("estimate", ESTIMATES)
@pytest.mark.parametrize("value", [1e3, 3e38, -3e38])
def test_two_of_eleven_move_no_centre_far(estimate: Estimate, value: float) -> None:
    models = some_models()
    honest = models[2:]
    models[:2] = value
    found = centre(models, estimate)
    apart = (honest - honest.mean(0)).norm(dim=1).max()
    assert float((found - honest.mean(0)).norm()) <= 2 * float(apart)


@pytest.mark.parametrize("estimate", ESTIMATES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_equal_models_are_their_own_centre(estimate: Estimate, count: int) -> None:
    row = some_models(1)
    torch.testing.assert_close(centre(row.repeat(count, 1), estimate), row[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_groups_are_apart_and_an_empty_one_stays(estimate: Estimate) -> None:
    models, groups = torch.cat([some_models(5), some_models(5) + 7]), np.repeat([0, 2], 5)
    groups[0] = -1
    previous = torch.full((3, 40), 4.0)
    previous[0], previous[2] = 1, 8
    found = robust_centres(models, groups, previous, estimate, 0.2)
    assert torch.equal(found[1], previous[1])
    assert torch.equal(found[0], robust_centres(models[1:5], np.zeros(4, np.int64), previous[:1], estimate, 0.2)[0])
    assert found[0].mean() < 2 < 7 < found[2].mean()


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_columns_that_did_not_cross_stay(estimate: Estimate) -> None:
    models = some_models()
    whole = centre(models[:, 10:], estimate)
    models[:, :10] = torch.nan
    found = centre(models, estimate)
    assert torch.equal(found[:10], torch.ones(10))
    assert torch.equal(found[10:], whole)


def test_how_many_are_taken_to_be_hostile() -> None:
    assert [count_hostile(r, 0.2) for r in (1, 2, 3, 4, 5, 6, 10, 11)] == [0, 0, 1, 1, 1, 2, 2, 3]
    assert [count_hostile(r, 0.49) for r in (3, 4, 5, 10)] == [1, 1, 2, 4]
    assert count_hostile(25, 0.28) == 7
    assert count_hostile(100, 0.0) == 0


def test_the_median_and_the_trimmed_mean_are_those_of_every_column() -> None:
    models = some_models()
    torch.testing.assert_close(centre(models, "median"), models.median(0).values)
    torch.testing.assert_close(centre(models[:10], "median"), torch.quantile(models[:10], 0.5, dim=0))
    known = trimmed_means(models, ALL, torch.ones(1, 40), 3 / 11)[0]
    torch.testing.assert_close(centre(models, "trimmed-mean"), known)


def krum_scores(models: Tensor, hostile: int) -> NDArray[np.float64]:
    """As in Blanchard et al., 2017: squared distances to the r - f - 2 nearest others."""
    values = models.double().numpy()
    scores = []
    for i, own in enumerate(values):
        others = sorted(float(((own - other) ** 2).sum()) for j, other in enumerate(values) if j != i)
        scores.append(sum(others[: len(values) - hostile - 2]))
    return np.array(scores)


def test_krum_takes_the_model_with_the_nearest_neighbours() -> None:
    models = some_models()
    scores = krum_scores(models, 3)
    assert torch.equal(centre(models, "krum"), models[int(scores.argmin())])
    best = np.sort(np.argsort(scores)[:8])
    torch.testing.assert_close(centre(models, "multi-krum"), models[torch.from_numpy(best)].mean(0))


def test_bulyan_averages_what_lies_nearest_to_the_median_of_whom_krum_picks() -> None:
    models = some_models(15)
    hostile, left = 3, list(range(15))
    picked: list[int] = []
    while len(picked) < 15 - 2 * hostile:
        best = left[int(krum_scores(models[torch.tensor(left)], hostile).argmin())] if len(left) > 1 else left[0]
        picked.append(best)
        left.remove(best)
    values = models[torch.tensor(sorted(picked))].double().numpy()
    nearest = np.argsort(np.abs(values - np.median(values, 0)), 0, kind="stable")[: 15 - 4 * hostile]
    expected = np.take_along_axis(values, nearest, 0).mean(0)
    np.testing.assert_allclose(centre(models, "bulyan").numpy(), expected, rtol=1e-6)


def test_no_point_has_less_distance_to_all_than_the_geometric_median() -> None:
    models = some_models(9, 5)
    found = centre(models, "geometric-median").double()

    def total(point: Tensor) -> float:
        return float((models - point).norm(dim=1).sum())

    steps = 1e-3 * torch.from_numpy(np.random.default_rng(1).normal(size=(200, 5)))
    assert all(total(found) <= total(found + step) + 1e-9 for step in steps)


def test_one_far_model_pulls_the_clipped_centre_no_more_than_a_near_one() -> None:
    models = some_models(5, 3)
    models[0] = 1e4
    far = centre(models, "centred-clipping")
    models[0] = 1e6
    torch.testing.assert_close(far, centre(models, "centred-clipping"), rtol=0, atol=1e-3)


def test_updates_are_cut_to_a_length() -> None:
    models, starts = some_models(3, 4) * torch.tensor([[1.0], [10.0], [100.0]]), torch.zeros(3, 4)
    starts[1] = models[1]
    found = clip_updates(models, starts, 2.5)
    assert torch.equal(found[:2], models[:2])
    assert float(found[2].norm()) == pytest.approx(2.5)
    torch.testing.assert_close(found[2] / found[2].norm(), models[2] / models[2].norm())
    models[2, 0] = torch.nan
    assert clip_updates(models, starts, 2.5)[2].isnan().tolist() == [True, False, False, False]


def test_with_nobody_hostile_the_trimmed_mean_is_the_mean() -> None:
    models = some_models()
    mean = group_means(models, ALL, torch.ones(1, 40))[0]
    torch.testing.assert_close(centre(models, "trimmed-mean", 0.0), mean)
    torch.testing.assert_close(centre(models, "multi-krum", 0.0), mean)
