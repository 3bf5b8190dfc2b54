"""Soft sharing: mixes of models."""

from __future__ import annotations

import numpy as np
import torch

from coterie.grouping.aggregate import group_means, mean_mixes, mix_models
from coterie.grouping.relation import neighbour_weights


def test_mixes_are_group_means_where_they_are_a_partition() -> None:
    models = torch.randn(7, 33, generator=torch.Generator().manual_seed(1))
    groups, samples = np.array([0, 1, 0, 2, 1, 1, 0]), np.array([3, 10, 7, 1, 5, 90, 11])
    weights = neighbour_weights(np.arange(3)[:, None] == groups, samples)
    assert torch.equal(mean_mixes(weights, models), group_means(models, groups, torch.zeros(3, 33), samples))
    torch.testing.assert_close(mean_mixes(weights * 0.3, models), mean_mixes(weights, models))
    assert not mean_mixes(weights * 0, models).any()
    assert torch.equal(mix_models(np.eye(7), models), models)
    coefficients = np.random.default_rng(0).normal(size=(4, 7))
    expected = torch.from_numpy(coefficients) @ models.double()
    torch.testing.assert_close(mix_models(coefficients, models).double(), expected, atol=1e-6, rtol=0)
    assert mix_models(coefficients[:0], models).shape == (0, 33)


def test_equal_mixes_and_models_left_out() -> None:
    rng = np.random.default_rng(1)
    models = torch.randn(6, 20_000, generator=torch.Generator().manual_seed(2))
    rows = rng.random((3, 6))
    rows[:, 4] = 0
    spoilt = models.clone()
    spoilt[4, 9_000:9_100] = torch.nan
    found = mix_models(rows[[2, 0, 2, 1]], spoilt)
    torch.testing.assert_close(found, mix_models(rows, models)[[2, 0, 2, 1]])
    assert torch.equal(found[0], found[2])
    each = torch.cat([mix_models(row[None], models) for row in rows])  # one mix is summed row after row
    torch.testing.assert_close(mix_models(rows, models), each, rtol=1e-6, atol=1e-6)
