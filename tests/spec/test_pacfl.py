"""PACFL (docs/methods/pacfl.md): groups by angles between the clients' data, found before anything is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.grouping.subspaces import paired_angles, smallest_angles
from coterie.methods import PACFL, FedAvg
from tests.federated import TRAINING, planted, train
from tests.survival import SIZES

MOMENTUM = TRAINING.updated(momentum=0.5, lr_decay=0.9)


@pytest.mark.medium
@pytest.mark.each_once
@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_pacfl_7_1_of_one_cluster_is_fedavg(engine: str, participation: float) -> None:
    settings: dict[str, Any] = {"training": MOMENTUM, "engine": engine, "participation": participation}
    federation = planted("feature", sizes=SIZES)
    ours = train(PACFL(threshold=90.0), federation, 3, **settings)
    fedavg = train(FedAvg(), federation, 3, **settings)
    for one, other in zip(ours.states, fedavg.states, strict=True):
        assert torch.equal(one.models, other.model)
    (warning,) = ours.method.final_warnings(ours.state, ours.server, 3)
    assert "degrees apart" in warning


@pytest.mark.parametrize("kind", ["feature", "label", "incongruent"])
@pytest.mark.parametrize("groups", [2, 4])
def test_pacfl_7_1_finds_planted_groups_before_training(kind: str, groups: int) -> None:
    run = train(PACFL(), planted(kind, groups), 1, participation=0.1)
    assert run.ari() == 1.0
    assert run.method.final_warnings(run.state, run.server, 1) == []


def test_pacfl_7_1_one_population_is_one_group() -> None:
    found = [train(PACFL(), planted("iid", seed=seed), 1, seed=seed).groups().max() for seed in range(5)]
    assert found == [0] * 5


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


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_pacfl_7_1_bytes(participation: float) -> None:
    """A model each way; in the first round C p d numbers more up from everybody."""
    run = train(PACFL(vectors=2), planted("feature", 2, samples=40), 2, participation=participation)
    one, m = run.server.layout.size * 4, round(20 * participation)
    assert run.bytes("down", 1) == run.bytes("down", 2) == run.bytes("up", 2) == m * one
    assert run.bytes("up", 1) == m * one + 20 * 10 * 2 * 64 * 4
