"""A run ends when its validation loss no longer falls, and is then the best of its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

import coterie
from coterie.errors import BadInput
from coterie.runs.checkpoint_schedule import open_checkpoints
from coterie.runs.hooks.early_stopping import PATIENCE
from tests.interrupted import Stopping, assert_same_run

FAST = {"lr": 0.5, "epochs": 3, "batch_size": 5}
"""So fast that models soon know their few samples by heart."""


def experiment(
    folder: Path, method: str = "fedavg", changes: Mapping[str, Any] = MappingProxyType({})
) -> coterie.Experiment:
    made = coterie.Experiment(
        data={"name": "digits", "split": "iid", "clients": 4, "samples_per_client": 30, "validation": 0.3},
        network={"name": "mlp", "hidden": [16]},
        method=method,
        training={**FAST, "stop": "validation"},
        run={"rounds": 50, "workers": 1, "folder": str(folder), "name": "a"},
    )
    return made.updated(changes)


def losses_of(result: coterie.Result) -> list[float]:
    log = coterie.RunFolder(result.folder).log().filter(name="validation_loss").sort("round")
    return list(log["value"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto"])
def test_it_ends_with_the_best_round(tmp_path: Path, method: str) -> None:
    stopped = coterie.run(experiment(tmp_path, method))
    losses = losses_of(stopped)
    best = losses.index(min(losses)) + 1
    assert stopped.rounds.height == len(losses) == best + PATIENCE < 50
    whole = coterie.run(experiment(tmp_path, method, {"training.stop": None, "run.rounds": best, "run.name": "b"}))
    of_last = ["accuracy", "loss", "groups"]
    assert stopped.rounds.select(of_last).tail(1).equals(whole.rounds.select(of_last).tail(1))
    ends = [open_checkpoints(coterie.RunFolder(r.folder)).latest() for r in (stopped, whole)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert repr(ends[0][1]["state"]) == repr(ends[1][1]["state"])
    for name, kept in ends[1][1]["kept"].items():
        assert torch.equal(torch.as_tensor(ends[0][1]["kept"][name]), torch.as_tensor(kept))


def test_the_last_round_that_is_allowed_returns_to_the_best(tmp_path: Path) -> None:
    losses = losses_of(coterie.run(experiment(tmp_path)))
    best = losses.index(min(losses)) + 1
    limited = coterie.run(experiment(tmp_path, changes={"run.rounds": best + 2, "run.name": "b"}))
    whole = coterie.run(experiment(tmp_path, changes={"training.stop": None, "run.rounds": best, "run.name": "c"}))
    assert limited.rounds.height == best + 2
    assert limited.rounds["accuracy"].to_list()[-1] == whole.rounds["accuracy"].to_list()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_run_that_is_interrupted_goes_on_to_the_same_end(tmp_path: Path, method: str) -> None:
    expected = coterie.run(experiment(tmp_path / "whole", method))
    last = expected.rounds.height
    for at in (last - 2, last - PATIENCE, last):
        folder = tmp_path / f"until {at}"
        part = coterie.run(experiment(folder, method), observers=[Stopping(at)])
        found = coterie.resume(part.folder)
        assert_same_run(coterie.RunFolder(expected.folder), coterie.RunFolder(found.folder))
        assert coterie.resume(part.folder).rounds.height == last


@pytest.mark.parametrize(
    "changes",
    [
        {"data.validation": 0.0},
        {"evaluation.evaluated": "local"},
        {"privacy.unit": "client", "privacy.noise_multiplier": 1.0},
        {"data.validation": 0.001},
    ],
)
def test_it_is_refused_where_it_cannot_work(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as told:
        coterie.run(experiment(tmp_path, changes=changes))
    assert len(told.value.problems) == 1
    assert not (tmp_path / "a").exists()
