"""Federated L-BFGS (6.18 of docs/methods/lbfgs.md): the optimum of pooled samples, by sums of gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from coterie.clients.data.federation import Federation
from coterie.methods.lbfgs import LBFGS
from tests.federated import Trained, planted, train


def pooled(federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    """All training samples, flat."""
    parts = [federation.slice(client, "train") for client in range(len(federation.bounds))]
    inputs = torch.cat([federation.to_numbers(inputs) for inputs, _ in parts]).flatten(1)
    return inputs.numpy(), torch.cat([labels for _, labels in parts]).numpy()


def weights(run: Trained, classes: int) -> np.ndarray:
    """The weights of each class `[C, d]`, less their mean: what softmax sees."""
    entry = run.server.layout.entries[0]
    found = entry.view(run.state.model[0]).double().numpy()
    assert len(found) == classes
    return np.asarray(found - found.mean(0))


def optimum(federation: Federation, l2: float) -> np.ndarray:
    inputs, labels = pooled(federation)
    found = LogisticRegression(C=1 / l2, tol=1e-10, max_iter=10_000).fit(inputs.astype(np.float64), labels).coef_
    return np.asarray(found - found.mean(0))


@pytest.mark.parametrize("l2", [1.0, 10.0])
def test_lbfgs_6_18_is_the_pooled_optimum(l2: float) -> None:
    federation = planted("feature", clients=8)
    classes = federation.classes
    assert classes > 2
    run = train(LBFGS(l2=l2), federation, 60, network="linear")
    np.testing.assert_allclose(weights(run, classes), optimum(federation, l2), atol=5e-3)


def test_lbfgs_6_18_descends() -> None:
    run = train(LBFGS(), planted("feature", clients=8), 40, network="linear")
    lengths = [float(state.gradient.norm()) for state in run.states[1:]]
    assert lengths[-1] < 3e-3 * lengths[0]
    for before, after in zip(run.states[1:], run.states[2:], strict=False):
        step = (after.model - before.model)[0].double()
        if float(before.gradient.norm()) > 1e-4:  # above what float32 leaves of a gradient
            assert abs(float(after.gradient @ step)) <= 0.5 * abs(float(before.gradient @ step)) + 1e-9


def test_lbfgs_6_18_whoever_holds_them() -> None:
    federation = planted("feature", clients=8)
    inputs, labels = pooled(federation)
    ends = np.array([0, 5, 40, len(labels)])
    bounds = np.stack([ends[:-1], ends[1:], ends[1:], ends[1:]], 1)
    dealt = replace(
        federation,
        inputs=torch.from_numpy(inputs).view(-1, *federation.features),
        labels=torch.from_numpy(labels),
        bounds=bounds,
        names=("a", "b", "c"),
        true_groups=None,
    )
    one, other = (train(LBFGS(), some, 40, network="linear") for some in (federation, dealt))
    np.testing.assert_allclose(weights(one, federation.classes), weights(other, federation.classes), atol=5e-3)


def test_lbfgs_6_18_costs() -> None:
    run = train(LBFGS(), planted("feature", clients=8), 6, network="linear")
    model = 8 * run.server.layout.size * 4
    for number in range(1, 7):
        asked = len(run.asked[number - 1])
        assert run.bytes("up", number) == run.bytes("down", number) == asked * model
        assert asked <= 11
    assert sum(len(asked) for asked in run.asked) < 6 * 3
