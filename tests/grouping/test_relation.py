"""Relations that need not be partitions: agreement of predictions, neighbourhoods, ClusterFL's matrix."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import one_hot

from coterie.grouping.relation import agreement, neighbour_weights, relation, same_neighbours


def test_flis_6_13_agreement_is_the_similarity_of_one_hot_predictions() -> None:
    rng = np.random.default_rng(0)
    found, other = rng.integers(0, 5, (6, 40)), rng.integers(0, 5, (3, 40))
    hot, hot_other = (one_hot(torch.from_numpy(p), 5).double().numpy() for p in (found, other))
    for i, a in enumerate(hot):
        for j, b in enumerate(hot_other):
            cosine = (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)
            np.testing.assert_allclose(agreement(found, other)[i, j], cosine, rtol=1e-12)
    assert agreement(found[:0], other).shape == (0, 3)


def test_flis_6_13_neighbourhoods_may_overlap() -> None:
    """In a chain of three, those at the ends do not know each other: three neighbourhoods, of which two overlap."""
    chain = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]], np.bool_)
    assert same_neighbours(chain).tolist() == [0, 1, 2, 3]
    assert same_neighbours(chain[[0, 1, 0, 3, 3]]).tolist() == [0, 1, 0, 2, 2]
    weights = neighbour_weights(chain, np.array([1, 2, 3, 4]))
    assert weights[:2].tolist() == [[1, 2, 0, 0], [1, 2, 3, 0]]


def test_clusterfl_6_14_relation_of_clients_who_are_alike() -> None:
    outputs = torch.rand(1, 30, 4, generator=torch.Generator().manual_seed(0)).softmax(2)
    assert relation(outputs).tolist() == [[1.0]]
    assert relation(outputs.repeat(5, 1, 1)).tolist() == [[0.2] * 5] * 5
    noisy = outputs.repeat(5, 1, 1) * (1 + 1e-7 * torch.arange(5)[:, None, None])
    assert relation(noisy).tolist() == [[0.2] * 5] * 5
    extreme = torch.eye(4).repeat(3, 1, 1)[:, torch.tensor([0, 1, 2, 3])]
    extreme[0] = extreme[0].flip(0)
    assert np.isfinite(relation(extreme)).all()
    np.testing.assert_allclose(relation(extreme).sum(0), 1)
