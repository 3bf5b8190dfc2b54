"""Exact sums: no order, no division into parts changes a bit, and a mean of one model is that model."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.grouping.aggregate import group_means
from coterie.grouping.exact_sums import BOUND, ExactSums, Grid, Reduce, as_matrix

CLIENTS, COLUMNS = 23, 61
EVERYONE = np.arange(CLIENTS)
SCALES = [1e-30, 1e-9, 1e-3, 1.0, BOUND / 8]


def made(scale: float, seed: int = 0) -> tuple[Tensor, NDArray[np.int64]]:
    """Models whose values spread over six powers of ten, and their weights."""
    generator = torch.Generator().manual_seed(seed)
    spread = 10 ** (6 * torch.rand(CLIENTS, COLUMNS, generator=generator) - 6)
    models = scale * spread * torch.randn(CLIENTS, COLUMNS, generator=generator)
    return models, np.random.default_rng(seed).integers(1, 300, CLIENTS)


def add(sums: ExactSums, models: Tensor, weights: NDArray[np.int64], rows: NDArray[np.int64]) -> ExactSums:
    sums.add(0, [models[i] for i in rows.tolist()], weights[rows].tolist())
    return sums


def means(sums: ExactSums) -> Tensor:
    """The mean of each group of sums alone."""
    count = len(sums.table)
    none, previous = torch.empty(0, COLUMNS), torch.zeros(count, COLUMNS)
    return group_means(none, np.empty(0, np.int64), previous, None, sums.reduce.grid, sums)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("seed", range(5))
def test_no_order_and_no_tree_changes_a_bit(scale: float, seed: int) -> None:
    models, weights = made(scale, seed)
    reduce, rng = Reduce.mean(EVERYONE, weights), np.random.default_rng(seed)
    whole = add(ExactSums.empty(COLUMNS, reduce), models, weights, EVERYONE)
    for _ in range(5):
        edges = np.unique(rng.integers(1, CLIENTS, rng.integers(1, CLIENTS)))
        parts = [
            add(ExactSums.empty(COLUMNS, reduce), models, weights, some)
            for some in np.split(rng.permutation(CLIENTS), edges)
        ]
        while len(parts) > 1:
            i = int(rng.integers(len(parts) - 1))
            parts[i].add_sums(parts.pop(i + 1))
        assert torch.equal(parts[0].table, whole.table)
    rows = group_means(models, np.zeros(CLIENTS, np.int64), torch.zeros(1, COLUMNS), weights, reduce.grid)
    assert torch.equal(means(whole), rows)


@pytest.mark.parametrize("scale", SCALES)
def test_a_mean_is_the_nearest_float_to_the_true_one(scale: float) -> None:
    """In the run's grid but for a small share of its bound; in the finest one to the last digit."""
    models, weights = made(scale)
    groups, start, total = np.zeros(CLIENTS, np.int64), torch.zeros(1, COLUMNS), int(weights.sum())
    in_run = group_means(models, groups, start, weights, Grid.for_weights(weights))[0]
    finest = group_means(models, groups, start, weights)[0]
    for column in range(COLUMNS):
        values = zip(models[:, column].tolist(), weights.tolist(), strict=True)
        true = sum((Fraction(value) * weight for value, weight in values), Fraction(0)) / total
        nearest = float(torch.tensor(float(true), dtype=torch.float64).float())
        assert abs(in_run[column].item() - nearest) <= BOUND * 2.0**-48 + 2.0**-23 * abs(nearest)
        assert finest[column].item() == nearest


def test_a_mean_of_one_model_is_that_model() -> None:
    model = torch.tensor([1e-40, -1e-20, 3.3e-7, -0.0, 0.1, -117.3, 1e30])
    weight, start = np.array([37]), torch.zeros(1, len(model))
    assert torch.equal(group_means(model[None], np.zeros(1, np.int64), start, weight, Grid(99.0, 50.0))[0], model)
    reduce = Reduce.mean(EVERYONE, np.full(CLIENTS, 37))
    part, total = ExactSums.empty(len(model), reduce), ExactSums.empty(len(model), reduce)
    part.add(0, [model], [37])
    total.add_sums(part)
    assert torch.equal(total.model(0), model)
    none = torch.empty(0, len(model))
    assert torch.equal(group_means(none, np.empty(0, np.int64), start, None, reduce.grid, total)[0], model)


@pytest.mark.parametrize(
    "rows", [slice(None), slice(3, 9), slice(1, None, 4), slice(5, 6)], ids=["all", "some", "every fourth", "one"]
)
def test_rows_of_one_matrix_are_taken_as_they_lie(rows: slice) -> None:
    models, _ = made(1.0)
    found = as_matrix(list(models[rows]))
    assert torch.equal(found, models[rows])
    assert found.data_ptr() == models[rows].data_ptr()


def test_rows_that_do_not_lie_evenly_are_copied() -> None:
    models, _ = made(1.0)
    for order in ([0, 1, 5], [2, 1, 0], [4, 4]):
        assert torch.equal(as_matrix([models[i] for i in order]), models[torch.tensor(order)])
    assert torch.equal(as_matrix(list(models.T)), models.T)


def test_values_too_large_for_a_sum_are_in_the_mean() -> None:
    models = torch.tensor([[1.0, 2.0], [3.0, 3e20], [5.0, -4.0]])
    found = group_means(models, np.zeros(3, np.int64), torch.zeros(1, 2), np.array([1, 2, 1]), Grid(4.0, 2.0))
    assert found.tolist() == [[3.0, pytest.approx(1.5e20)]]


def test_what_did_not_cross_spoils_no_other_column() -> None:
    models, weights = made(1.0)
    groups, start, grid = np.zeros(CLIENTS, np.int64), torch.zeros(1, COLUMNS), Grid(1e6, 1e3)
    whole = group_means(models, groups, start, weights, grid)
    models[:, 7:9] = torch.nan
    models[4, 20] = torch.inf
    found = group_means(models, groups, start, weights, grid)[0]
    assert found[7:9].isnan().all()
    assert found[20].isinf()
    kept = np.setdiff1d(np.arange(COLUMNS), [7, 8, 20])
    assert torch.equal(found[kept], whole[0, kept])


def test_large_sums_never_wrap() -> None:
    models = torch.full((CLIENTS, 3), BOUND)
    weights = np.full(CLIENTS, 2**40)
    reduce = Reduce.mean(EVERYONE, weights)
    for some in ([0, 1], EVERYONE):
        sums = add(ExactSums.empty(3, reduce), models, weights, np.asarray(some))
        none, start = torch.empty(0, 3), torch.zeros(1, 3)
        found = group_means(none, np.empty(0, np.int64), start, None, reduce.grid, sums)
        assert (found == BOUND).all()


def test_groups_have_sums_of_their_own_and_one_without_models_stays() -> None:
    models, weights = made(1.0)
    groups = np.where(EVERYONE < 3, -1, EVERYONE % 2 * 2)
    previous, grid = torch.full((3, COLUMNS), 7.0), Grid.for_weights(weights)
    found = group_means(models, groups, previous, weights, grid)
    assert torch.equal(found[1], previous[1])
    for k in (0, 2):
        members = np.flatnonzero(groups == k)
        alone = add(ExactSums.empty(COLUMNS, Reduce.mean(EVERYONE, weights)), models, weights, members)
        assert torch.equal(found[k], means(alone)[0])


@pytest.mark.parametrize("groups", [EVERYONE % 3, np.minimum(EVERYONE, 2), np.zeros(CLIENTS, np.int64)])
def test_the_sums_of_all_groups_make_one(groups: NDArray[np.int64]) -> None:
    models, weights = made(1.0)
    reduce = Reduce(EVERYONE, weights, groups, 4)
    apart, whole = ExactSums.empty(COLUMNS, reduce), ExactSums.empty(COLUMNS, reduce.together())
    for k in range(4):
        members = np.flatnonzero(groups == k)
        apart.add(k, list(models[torch.from_numpy(members)]), weights[members].tolist())
    add(whole, models, weights, EVERYONE)
    assert torch.equal(apart.together().table, whole.table)


def test_rows_join_sums_of_others() -> None:
    models, weights = made(1.0)
    reduce, groups = Reduce.mean(EVERYONE, weights), np.zeros(CLIENTS, np.int64)
    whole = group_means(models, groups, torch.zeros(1, COLUMNS), weights, reduce.grid)
    for cut in (1, 2, 11, CLIENTS - 1):
        sums = add(ExactSums.empty(COLUMNS, reduce), models, weights, EVERYONE[:cut])
        start, rest = torch.zeros(1, COLUMNS), slice(cut, None)
        found = group_means(models[rest], groups[rest], start, weights[rest], reduce.grid, sums)
        assert torch.equal(found, whole)


@pytest.mark.parametrize(
    "wrong",
    [{"weights": np.ones(2, np.int64)}, {"weights": np.full(CLIENTS, 0.5)}, {"groups": np.zeros(2, np.int64)}],
)
def test_what_does_not_fit_the_clients_is_refused(wrong: dict[str, NDArray[np.int64]]) -> None:
    given = {"weights": np.ones(CLIENTS, np.int64), "groups": np.zeros(CLIENTS, np.int64)} | wrong
    with pytest.raises(ValueError, match="|".join(wrong)):
        Reduce(EVERYONE, given["weights"], given["groups"])
