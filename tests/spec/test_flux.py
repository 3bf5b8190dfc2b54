"""FLUX (docs/methods/flux.md): FedAvg, one clustering by moments of features, FedAvg in each cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import relu

from coterie.methods import FLUX, FedAvg
from tests.federated import TRAINING, planted, train
from tests.survival import SIZES

MOMENTUM = TRAINING.updated(momentum=0.5, lr_decay=0.9)


@pytest.mark.medium
@pytest.mark.each_once
@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("settings", [{"after": 3}, {"after": 1, "eps": 1e9}], ids=["before", "one cluster"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_flux_7_9_of_one_cluster_is_fedavg(engine: str, settings: dict[str, Any], participation: float) -> None:
    """Before it clusters, and where all clients are one cluster."""
    how: dict[str, Any] = {"training": MOMENTUM, "engine": engine, "participation": participation}
    federation = planted("feature", sizes=SIZES)
    ours, fedavg = train(FLUX(**settings), federation, 3, **how), train(FedAvg(), federation, 3, **how)
    for one, other in zip(ours.states, fedavg.states, strict=True):
        assert torch.equal(one.models, other.model)


@pytest.mark.parametrize("kind", ["feature", "label", "incongruent"])
@pytest.mark.parametrize("groups", [2, 4])
def test_flux_7_9_finds_planted_groups(kind: str, groups: int) -> None:
    assert train(FLUX(after=1), planted(kind, groups), 2, participation=0.1).ari() == 1.0


def test_flux_7_9_one_population_is_one_group() -> None:
    found = [train(FLUX(after=1), planted("iid", seed=seed), 2, seed=seed).groups().max() for seed in range(5)]
    assert found == [0] * 5


def test_flux_7_9_moments_are_those_of_the_features() -> None:
    """Along as many orthogonal directions as there are features, squares sum up as those of the features do."""
    federation = planted("label", 2, clients=6, samples=30)
    run = train(FLUX(after=1, deviations=True), federation, 2)
    tensors = {e.name: e for e in run.server.layout.tensors}
    weight, bias = (
        run.states[1].models[0, e.start : e.start + e.size].view(e.shape) for e in list(tensors.values())[:2]
    )
    inputs, labels = federation.slice(1, "train")
    features = relu(inputs.flatten(1) @ weight.T + bias).double()
    found = run.state.moments[1].double()
    for row, some in [(0, features), *((1 + k, features[labels == k]) for k in range(10))]:
        if len(some) < 2:
            assert not found[row].any()
            continue
        torch.testing.assert_close(found[row, 0].square().sum(), some.mean(0).square().sum(), rtol=1e-4, atol=1e-6)
        expected = some.var(0, correction=0).sum()
        torch.testing.assert_close(found[row, 1].square().sum(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("participation", "deviations"), [(1.0, False), (0.5, True)])
def test_flux_7_9_bytes(participation: float, deviations: bool) -> None:
    """A model each way; when clients are clustered one more down for all, and M D (C + 1) numbers up."""
    method, federation = FLUX(after=1, directions=5, deviations=deviations), planted("feature", 2, samples=40)
    run = train(method, federation, 3, participation=participation)
    one, m = run.server.layout.size * 4, round(20 * participation)
    for number in (1, 3):
        assert run.bytes("down", number) == run.bytes("up", number) == m * one
    assert run.bytes("down", 2) == (20 + m) * one
    assert run.bytes("up", 2) == m * one + 20 * (1 + deviations) * 5 * 11 * 4
    assert np.isfinite(run.accuracy()).all()
