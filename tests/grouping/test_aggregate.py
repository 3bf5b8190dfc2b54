"""Averages against a loop in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.grouping.aggregate import group_means, mean
from coterie.grouping.exact_sums import Grid

numbers = st.floats(-1e6, 1e6, width=32)
GRAIN = 2.0**-40
"""Of the largest value among models, what may be cut off a mean."""


@pytest.mark.medium
@given(st.data())
def test_group_means(data: Any) -> None:
    n, clusters, width = (data.draw(st.integers(low, 5)) for low in (0, 1, 1))
    models = torch.from_numpy(data.draw(arrays(np.float32, (n, width), elements=numbers)))
    previous = torch.from_numpy(data.draw(arrays(np.float32, (clusters, width), elements=numbers)))
    groups = np.array(data.draw(st.lists(st.integers(-1, clusters - 1), min_size=n, max_size=n)), np.int64)
    weights = data.draw(st.none() | st.lists(st.integers(1, 1000), min_size=n, max_size=n))
    before = models.clone(), previous.clone()
    found = group_means(models, groups, previous, weights)
    assert found.dtype == torch.float32
    assert found.shape == previous.shape
    for k in range(clusters):
        members = [i for i in range(n) if groups[i] == k]
        total = sum(1.0 if weights is None else weights[i] for i in members)
        for p in range(width):
            expected = float(previous[k, p])
            if members:
                expected = sum(
                    (1.0 if weights is None else weights[i]) / total * float(models[i, p]) for i in members
                )
            largest = float(models.abs().max()) if n else 0.0
            assert float(found[k, p]) == pytest.approx(expected, rel=2.0**-24, abs=GRAIN * largest)
    assert torch.equal(models, before[0])
    assert torch.equal(previous, before[1])


@given(st.integers(1, 40), st.integers(0, 99))
def test_a_mean_lies_between_and_of_equal_models_is_that_model(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = torch.from_numpy(rng.normal(size=(1, 6)).astype(np.float32))
    weights = rng.integers(1, 100, n)
    assert torch.equal(mean(row.expand(n, -1), torch.zeros(1, 6), weights), row)
    models = torch.from_numpy(rng.normal(size=(n, 6)).astype(np.float32))
    found = mean(models, torch.zeros(1, 6), weights)[0]
    assert (found <= models.amax(0) + 1e-6).all()
    assert (found >= models.amin(0) - 1e-6).all()


def test_a_part_of_models_has_the_bits_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    models = torch.from_numpy(rng.normal(size=(60, 20_000)).astype(np.float32))
    groups, weights, grid = rng.integers(-1, 3, 60), rng.integers(1, 99, 60), Grid(6_000.0, 99.0)
    whole, previous = group_means(models, groups, torch.zeros(3, 20_000), weights, grid), torch.zeros(3, 320)
    for start in (0, 6_400, 19_680):
        columns = slice(start, start + 320)
        assert torch.equal(group_means(models[:, columns], groups, previous, weights, grid), whole[:, columns])


def test_no_models_keep_what_was() -> None:
    previous = torch.randn(1, 5)
    assert torch.equal(mean(torch.empty(0, 5), previous), previous)


def test_sums_do_not_lose_small_models_among_large_ones() -> None:
    """In float32 the ones would vanish beside 2^24."""
    models = torch.tensor([[2.0**24]] + [[1.0]] * 16)
    assert float(mean(models, torch.zeros(1, 1))) == float(np.float32((2**24 + 16) / 17))
