"""Real clients whose targets are one number each, or two classes of which a network gives one logit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from coterie.shipping.model.trained import MODEL, read_model
from tests.shipping.flower.rehearsal import Place

CLIENTS, EACH = 3, 30


def run(folder: Path, task: str, declared: int) -> Path:
    """A federation of clients who say that they have so many classes or outputs; its folder."""
    rng = np.random.default_rng(0)
    weights, nodes = rng.normal(size=4), []
    for number in range(CLIENTS):
        x = rng.normal(size=(EACH, 4)).astype(np.float32)
        y = x @ weights
        path = folder / f"{number}.npz"
        np.savez(path, features=x, label=y if task == "regression" else (y > 0).astype(np.int64))
        nodes.append({"client": f"clinic-{number}", "data": str(path), "state-dir": str(folder / f"{number}")})
    asked = Experiment(
        method="fedavg",
        task=task,
        data={"name": "remote", "clients": CLIENTS, "features": [4], "classes": declared},
        training={"epochs": 1, "lr": 0.1},
        run={"rounds": 1},
    )
    return Place(folder, nodes).run(asked)


@pytest.mark.medium
@pytest.mark.parametrize(("task", "declared", "metric"), [("regression", 1, "rmse"), ("binary", 2, "auroc")])
def test_real_clients_learn_a_task(task: str, declared: int, metric: str, tmp_path: Path) -> None:
    """The network has one output in either case."""
    folder = RunFolder(run(tmp_path, task, declared))
    assert np.isfinite(folder.rounds()[f"macro_{metric}"][-1])
    assert read_model(tmp_path / "0" / MODEL).about.classes == 1


@pytest.mark.slow
def test_clients_that_hold_other_outputs_are_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"1 target.* 2"):
        run(tmp_path, "regression", 2)
