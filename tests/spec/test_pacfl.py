"""PACFL (docs/methods/pacfl.md): groups by angles between the clients' data, found before anything is trained."""

from __future__ import annotations

import numpy as np
import torch

from coterie.grouping.subspaces import paired_angles, smallest_angles
from coterie.methods import PACFL
from tests.federated import planted, train


def test_pacfl_7_1_vectors_are_singular_vectors_of_each_class() -> None:
    federation = planted("label", 2, clients=2)
    run = train(PACFL(vectors=2), federation, 1)
    inputs, labels = federation.slice(1, "train")
    for k in range(10):
        of_class = inputs[labels == k].flatten(1).double().numpy()
        found = run.state.bases[1, k].double().numpy()
        if not len(of_class):
            assert not found.any()
            continue
        left = np.linalg.svd(of_class.T, full_matrices=False)[0][:, :2]
        np.testing.assert_allclose(np.abs(found @ left), np.eye(2), atol=1e-5)


def test_pacfl_7_1_angles() -> None:
    """Between vectors of one class and place, or any two; opposite vectors are one direction, and 0 is none."""
    at = torch.deg2rad(torch.tensor([0.0, 60.0, 200.0]))
    first = torch.stack([at.cos(), at.sin()], 1)
    bases = torch.zeros(3, 2, 1, 2)
    bases[:, 0, 0] = first
    bases[0, 1, 0] = torch.tensor([0.0, 1.0])
    expected = [[0, 60, 20], [60, 0, 40], [20, 40, 0]]
    np.testing.assert_allclose(paired_angles(bases), expected, atol=1e-4)
    np.testing.assert_allclose(smallest_angles(bases), [[0, 30, 20], [30, 0, 40], [20, 40, 0]], atol=1e-4)
    bases[1] = 0
    assert paired_angles(bases)[1].tolist() == [90, 0, 90]
