"""Soft sharing: mixes of models."""

from __future__ import annotations

import numpy as np
import torch

from coterie.grouping.relation import neighbour_shares
from coterie.sharing.aggregate import group_means
from coterie.sharing.mixing import mixed


def test_mixes_are_group_means_where_they_are_a_partition() -> None:
    models = torch.randn(7, 33, generator=torch.Generator().manual_seed(1))
    groups, samples = np.array([0, 1, 0, 2, 1, 1, 0]), np.array([3, 10, 7, 1, 5, 90, 11])
    shares = neighbour_shares(np.arange(3)[:, None] == groups, samples)
    assert torch.equal(mixed(shares, models), group_means(models, groups, torch.zeros(3, 33), samples))
    assert torch.equal(mixed(np.eye(7), models), models)
    coefficients = np.random.default_rng(0).normal(size=(4, 7))
    expected = torch.from_numpy(coefficients) @ models.double()
    torch.testing.assert_close(mixed(coefficients, models).double(), expected, atol=1e-6, rtol=0)
    assert mixed(coefficients[:0], models).shape == (0, 33)
