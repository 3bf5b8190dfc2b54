"""Exact sums: no order, no division into parts changes a bit, and a mean of one model is that model."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.grouping.aggregate import group_means
from coterie.grouping.exact_sums import BOUND, ExactSums, Reduce, as_matrix, exact_means

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
        assert torch.equal(parts[0].mean(0), whole.mean(0))


@pytest.mark.parametrize("scale", SCALES)
def test_a_mean_is_the_nearest_float_to_the_true_one(scale: float) -> None:
    models, weights = made(scale)
    found = add(ExactSums.empty(COLUMNS, Reduce.mean(EVERYONE, weights)), models, weights, EVERYONE).mean(0)
    for column in range(COLUMNS):
        values = [
            Fraction(value) * int(weight) for value, weight in zip(models[:, column].tolist(), weights, strict=True)
        ]
        true = sum(values, Fraction(0)) / int(weights.sum())
        nearest = float(torch.tensor(float(true), dtype=torch.float64).float())
        assert abs(found[column].item() - nearest) <= 2.0**-60
        assert scale < 1e-4 or found[column].item() == nearest


def test_a_mean_is_as_near_to_the_true_one_as_that_in_float64() -> None:
    models, weights = made(1.0)
    groups, start = np.zeros(CLIENTS, np.int64), torch.zeros(1, COLUMNS)
    plain = group_means(models, groups, start, weights)
    exact = exact_means(models, groups, weights, start, ExactSums.empty(COLUMNS, Reduce.mean(EVERYONE, weights)))
    assert ((exact - plain).abs() <= 2.0**-23 * plain.abs()).all()


def test_a_mean_of_one_model_is_that_model() -> None:
    model = torch.tensor([1e-40, -1e-20, 3.3e-7, -0.0, 0.1, -517.3, 1e30])
    reduce = Reduce.mean(EVERYONE, np.full(CLIENTS, 37))
    for one in (model, model.clamp(max=BOUND)):
        empty = ExactSums.empty(len(model), reduce)
        found = exact_means(one[None], np.zeros(1, np.int64), np.array([37]), torch.zeros(1, len(model)), empty)
        assert torch.equal(found[0], one)
    part, total = ExactSums.empty(len(model), reduce), ExactSums.empty(len(model), reduce)
    part.add(0, [model], [37])
    total.add_sums(part)
    assert torch.equal(total.mean(0), model)


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
    weights = np.array([1, 2, 1])
    reduce = Reduce.mean(np.arange(3), weights)
    found = exact_means(models, np.zeros(3, np.int64), weights, torch.zeros(1, 2), ExactSums.empty(2, reduce))
    assert found.tolist() == [[3.0, pytest.approx(1.5e20)]]


def test_groups_have_sums_of_their_own_and_one_without_models_stays() -> None:
    models, weights = made(1.0)
    groups = np.where(EVERYONE < 3, -1, EVERYONE % 2 * 2)
    previous = torch.full((3, COLUMNS), 7.0)
    found = exact_means(
        models, groups, weights, previous, ExactSums.empty(COLUMNS, Reduce(EVERYONE, weights, groups, 3))
    )
    assert torch.equal(found[1], previous[1])
    for k in (0, 2):
        members = np.flatnonzero(groups == k)
        alone = add(ExactSums.empty(COLUMNS, Reduce.mean(EVERYONE, weights)), models, weights, members)
        assert torch.equal(found[k], alone.mean(0))


@pytest.mark.parametrize(
    "wrong",
    [{"weights": np.ones(2, np.int64)}, {"weights": np.full(CLIENTS, 0.5)}, {"groups": np.zeros(2, np.int64)}],
)
def test_what_does_not_fit_the_clients_is_refused(wrong: dict[str, NDArray[np.int64]]) -> None:
    given = {"weights": np.ones(CLIENTS, np.int64), "groups": np.zeros(CLIENTS, np.int64)} | wrong
    with pytest.raises(ValueError, match="|".join(wrong)):
        Reduce(EVERYONE, given["weights"], given["groups"])
