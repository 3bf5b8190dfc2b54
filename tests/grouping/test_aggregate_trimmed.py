"""Trimmed means against SciPy's, and what a few wild models can do to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean

from coterie.grouping import aggregate
from coterie.grouping.aggregate import group_means, trimmed_count, trimmed_means

numbers = st.floats(-1e6, 1e6, width=32)


@pytest.mark.medium
@given(st.data())
def test_trimmed_means(data: Any) -> None:
    n, clusters, width = (data.draw(st.integers(low, high)) for low, high in ((0, 12), (0, 3), (1, 4)))
    trim = data.draw(st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.3, 0.49]))
    models = torch.from_numpy(data.draw(arrays(np.float32, (n, width), elements=numbers)))
    previous = torch.from_numpy(data.draw(arrays(np.float32, (clusters, width), elements=numbers)))
    groups = np.array(data.draw(st.lists(st.integers(-1, clusters - 1), min_size=n, max_size=n)), np.int64)
    before = models.clone(), previous.clone()
    found = trimmed_means(models, groups, previous, trim)
    assert found.dtype == torch.float32
    assert found.shape == previous.shape
    for k in range(clusters):
        members = models[torch.from_numpy(groups == k)].double().numpy()
        expected = trim_mean(members, trim + 1e-9, axis=0) if len(members) else previous[k].numpy()
        np.testing.assert_allclose(found[k].double().numpy(), expected, rtol=1e-6, atol=1e-6 * 1e3)
    assert torch.equal(models, before[0])
    assert torch.equal(previous, before[1])


@pytest.mark.medium
@given(st.integers(1, 30), st.integers(0, 99))
def test_without_trimming_it_is_the_mean_and_order_does_not_matter_with_it(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    models = torch.from_numpy(rng.normal(size=(n, 7)).astype(np.float32))
    groups, previous = rng.integers(0, 2, n), torch.ones(2, 7)
    assert torch.equal(trimmed_means(models, groups, previous, 0.0), group_means(models, groups, previous))
    order = rng.permutation(n)
    if (np.bincount(groups, minlength=2) >= 3).all():  # smaller groups are not sorted
        shuffled = trimmed_means(models[torch.from_numpy(order)], groups[order], previous, 0.4)
        assert torch.equal(shuffled, trimmed_means(models, groups, previous, 0.4))


def test_wild_models_do_not_move_it() -> None:
    rng = np.random.default_rng(0)
    models = torch.from_numpy(rng.normal(size=(20, 50)).astype(np.float32))
    wild = models.clone()
    wild[[3, 8, 11, 17]] = torch.tensor([1e30, -1e30, 1e30, 3e38])[:, None]
    found = trimmed_means(wild, np.zeros(20, np.int64), torch.zeros(1, 50), 0.2)
    assert (found.abs() <= 1.0).all()


def test_columns_are_sorted_a_tile_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    models = torch.randn(9, 103, generator=torch.Generator().manual_seed(0))
    groups, previous = np.arange(9) % 2, torch.zeros(2, 103)
    whole = trimmed_means(models, groups, previous, 0.25)
    monkeypatch.setattr(aggregate, "SORTED_COLUMNS", 10)
    assert torch.equal(trimmed_means(models, groups, previous, 0.25), whole)


def test_shares_that_binary_numbers_miss_by_a_little() -> None:
    assert trimmed_count(np.array([100, 10, 4, 5]), 0.29).tolist() == [29, 2, 1, 1]
    assert trimmed_count(np.array([20, 19, 0]), 0.05).tolist() == [1, 0, 0]
