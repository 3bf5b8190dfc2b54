"""FedGroup (docs/methods/fedgroup.md): groups by the directions of first updates, FedAvg in each."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics.pairwise import cosine_similarity

from coterie.grouping.affinity import decomposed_cosines
from coterie.methods import FedGroup
from tests.federated import planted, train


def test_fedgroup_7_7_cosines_are_those_with_the_leading_directions() -> None:
    """As scikit-learn's truncated decomposition has them, but for the sign of a direction."""
    updates = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 40)) + 0.5).float()
    exact = TruncatedSVD(3, algorithm="arpack").fit(updates.double().numpy())
    theirs = cosine_similarity(updates.double().numpy(), exact.components_)
    np.testing.assert_allclose(np.abs(decomposed_cosines(updates, 3)), np.abs(theirs), atol=1e-6)
    updates[4] = 0
    assert not decomposed_cosines(updates, 3)[4].any()


def test_fedgroup_7_7_models_approach_each_other() -> None:
    """In the first round, by weights of `group_lr` over the other model's length."""
    federation = planted("incongruent", 2, clients=8)
    apart, near = (train(FedGroup(clusters=2, group_lr=rate), federation, 1).state.models for rate in (0.0, 0.5))
    for own, other in ((0, 1), (1, 0)):
        weight = 0.5 / apart[other].norm()
        expected = (apart[own] + weight * apart[other]) / (1 + weight)
        torch.testing.assert_close(near[own], expected, atol=1e-6, rtol=0)
