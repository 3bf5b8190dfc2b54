"""What one session does around a method's round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import coterie
from coterie.methods import fedavg
from coterie.report.page import build
from coterie.sharing.aggregate import mean


def test_the_server_computes_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums and eigenvectors depend on the number of threads, so a round has one."""
    seen: list[int] = []

    def watched(*given: Any) -> Any:
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        seen.append(torch.get_num_threads())
        return mean(*given)

    monkeypatch.setattr(fedavg, "mean", watched)
    with threadpool_limits(2):
        torch.set_num_threads(2)
        try:
            list(coterie.rounds(coterie.Experiment(method="fedavg", run={"rounds": 1})))
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(1)
    assert len(seen) > 1
    assert set(seen) == {1}


def measured_on(folder: Path, split: str, **data: Any) -> coterie.RunFolder:
    experiment = coterie.Experiment(
        method="ifca",
        data={"split": "dirichlet(0.3)", "clients": 6, "min_samples": 20, **data},
        network={"name": "mlp", "hidden": [8]},
        evaluation={"on": split},
        run={"rounds": 2, "workers": 1, "folder": str(folder), "holdout_clients": 0.2},
    )
    return coterie.RunFolder(coterie.run(experiment).folder)


def test_validation_samples_count_where_that_is_said(tmp_path: Path) -> None:
    """Training is the same to the bit; what is measured is not."""
    tested, validated = (measured_on(tmp_path, split) for split in ("test", "validation"))
    trained = ["round", "train_loss", "groups", "up_bytes", "down_bytes", "participants"]
    assert tested.rounds().select(trained).equals(validated.rounds().select(trained))
    assert (tested.rounds()["accuracy"] != validated.rounds()["accuracy"]).all()
    for folder, split in ((tested, "test"), (validated, "validation")):
        last, people = folder.clients().filter(round=2), folder.people()
        assert people is not None
        assert last["test_samples"].to_list() == people[split].head(last.height).to_list()
        sizes, accuracy = last["test_samples"].to_numpy(), last["accuracy"].to_numpy()
        assert np.allclose(accuracy * sizes, np.round(accuracy * sizes))
        mean = float((accuracy * sizes).sum() / sizes.sum())
        assert folder.rounds()["accuracy"][-1] == pytest.approx(mean)


def test_who_has_no_validation_samples_has_no_accuracy(tmp_path: Path) -> None:
    folder = measured_on(tmp_path, "validation", validation=0.002)
    last = folder.clients().filter(round=2)
    nothing = last["test_samples"] == 0
    assert 0 < nothing.sum() < last.height
    assert (last["accuracy"].is_null() | last["accuracy"].is_nan()).to_list() == nothing.to_list()
    assert 0 <= folder.rounds()["macro_accuracy"][-1] <= 1


def test_newcomers_are_not_tested_where_validation_samples_count(tmp_path: Path) -> None:
    tested, validated = (measured_on(tmp_path, split) for split in ("test", "validation"))
    assert tested.newcomers() is not None
    assert validated.newcomers() is None
    pages = [build(folder).read_text("utf-8") for folder in (tested, validated)]
    assert ["Newcomers</h" in page for page in pages] == [True, False]
