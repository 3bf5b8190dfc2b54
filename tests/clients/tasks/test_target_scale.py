"""Targets in thousands: what the network learns is standardised, and all that is said stays in their own units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.clients.tasks import Forecasting, Regression
from coterie.errors import BadInput
from coterie.runs.schema.experiment import prepare
from coterie.runs.setup import load_federation

TARGETS = np.random.default_rng(0).normal([2e5, 1.0], [5e4, 1e-3], (200, 2)).astype(np.float32)


@pytest.mark.parametrize("kind", [Regression, Forecasting])
@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
def test_losses_are_of_standardised_targets_and_predictions_in_own_units(kind: type[Regression], loss: str) -> None:
    plain = kind(loss=loss)  # type: ignore[arg-type]
    fitted = kind(loss=loss, target_scale="global").fit(TARGETS, 2)  # type: ignore[arg-type]
    assert isinstance(fitted, kind)
    outputs, targets = torch.randn(200, 2), torch.from_numpy(TARGETS)
    standard = (targets - targets.mean(0)) / targets.std(0, correction=0)
    torch.testing.assert_close(
        fitted.losses(outputs, targets), plain.losses(outputs, standard), atol=1e-3, rtol=1e-3
    )
    torch.testing.assert_close(fitted.predict(standard), targets, atol=0.1, rtol=1e-4)
    assert torch.equal(plain.predict(outputs), outputs)
    assert fitted.metrics == kind.metrics
    steps = outputs.view(200, 1, 2)
    assert fitted.in_own_units(steps).shape == steps.shape


def test_a_target_that_is_the_same_for_all_is_left_as_large() -> None:
    fitted = Regression(target_scale="global").fit(np.full((5, 1), 7.0, np.float32), 1)
    assert fitted == Regression(target_scale=((7.0,), (1.0,)))


def test_advice_is_for_targets_far_from_1() -> None:
    assert Regression().advise(TARGETS[:, 1:]) == []
    (note,) = Regression().advise(TARGETS)
    assert "--set task.name=regression --set task.target_scale=global" in note
    assert Regression().advise(TARGETS[:, 1:] / 1e3)
    assert Regression(target_scale="global").advise(TARGETS) == []


class OwnLoss(Regression):
    """A regression with a loss of its own, which knows of no scale."""

    name = "own-loss"

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).abs().sum(1)


def test_wrong_scales_are_refused() -> None:
    with pytest.raises(BadInput, match="own-loss"):
        OwnLoss(target_scale="global").fit(TARGETS, 2)
    with pytest.raises(BadInput, match="own-loss"):
        OwnLoss(target_scale=((1.0, 2.0), (1.0, 2.0))).read_targets(TARGETS, "a.npz", [])
    nan, inf = float("nan"), float("inf")
    for wrong in (
        ((1.0,), (1.0,)),
        ((1.0, 2.0), (1.0, 0.0)),
        ((1.0, 2.0), (1.0, inf)),
        ((1.0, nan), (1.0, 1.0)),
        ((1.0, 2.0), (1.0, 1e-60)),  # nothing, as a 32-bit number
        ((1e60, 2.0), (1.0, 1.0)),
    ):
        with pytest.raises(BadInput, match=r" 2 .* 0"):
            Regression(target_scale=wrong).read_targets(TARGETS, "a.npz", [])


@pytest.mark.medium
@pytest.mark.parametrize(
    ("task", "privacy", "is_scaled"),
    [
        ({}, {}, True),
        ({"target_scale": "global"}, {}, True),
        ({"target_scale": "none"}, {}, False),
        ({}, {"unit": "client", "epsilon": 1}, False),
    ],
    ids=["by default", "global", "none", "with privacy"],
)
def test_targets_are_standardised_unless_somebody_says_otherwise_or_privacy_forbids_it(
    task: dict[str, Any], privacy: dict[str, Any], is_scaled: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4))
    prices = 200_000 + 50_000 * x[:, 0] + rng.normal(0, 5_000, 240)
    np.savez(tmp_path / "prices.npz", x=x, y=prices, client=np.arange(240) % 4)
    asked = coterie.Experiment(
        method="fedavg",
        data=str(tmp_path / "prices.npz"),
        task={"name": "regression", **task},
        privacy=privacy,
        run={"rounds": 15, "workers": 1, "folder": str(tmp_path)},
    )
    federation = load_federation(prepare(asked))
    assert isinstance(federation.task, Regression)
    if not is_scaled:
        assert federation.task.target_scale == "none"
        return
    scale = federation.task.target_scale
    assert isinstance(scale, tuple)
    (mean,), (deviation,) = scale
    assert mean == pytest.approx(200_000, rel=0.1)
    assert deviation == pytest.approx(50_000, rel=0.2)
    error = coterie.run(asked).rounds["rmse"][-1]
    assert 4_000 < error < 30_000, "in the units of the targets; the noise alone is 5,000"
