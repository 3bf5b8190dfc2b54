"""How sure scores are by metrics that are no shares of right answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.report.each_client import describe_clients
from coterie.runs.folder.reading import read_runs
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.loop import run
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.setup import load_federation
from tests.tasked import NETWORK, write

pytestmark = pytest.mark.medium


def experiment(folder: Path, task: str, metrics: list[str], **more: Any) -> Experiment:
    return Experiment(
        method="fedavg",
        task={"name": task, "metrics": metrics},
        data={"name": str(write(folder, task)), "split": "by-user"},
        network=NETWORK.get(task, "auto"),
        run={"rounds": 1, "folder": str(folder / "runs"), "workers": 1},
        **more,
    )


@pytest.mark.parametrize(
    ("task", "metrics", "constant"),
    [
        ("binary", ["f1", "accuracy"], "majority class"),
        ("segmentation", ["iou", "f1"], "majority class"),
        ("language", ["perplexity", "accuracy"], "token counts"),
        ("multilabel", ["average_precision"], "chance"),
        ("forecasting", ["r2", "mae"], "training mean"),
    ],
)
def test_scores_have_intervals_by_every_metric(
    tmp_path: Path, task: str, metrics: list[str], constant: str
) -> None:
    """Around the score of the model that was scored; and so has what an answer without a model scores."""
    (one,) = read_runs([RunFolder(run(experiment(tmp_path, task, metrics)).folder)])
    beside = one.last.join(one.intervals, on="client").drop_nulls(metrics[0])
    low, score, high = (beside[column].to_numpy() for column in ("low", metrics[0], "high"))
    assert len(score) >= 3
    assert ((low <= score + 1e-6) & (score <= high + 1e-6)).all()
    assert beside["constant_low"].null_count() == beside["constant"].null_count() == 0
    found = describe_clients(one)
    assert found is not None
    assert found.table.header[1].endswith(constant)


def test_a_constant_answer_is_the_mean_of_the_training_targets(tmp_path: Path) -> None:
    wanted = experiment(tmp_path, "regression", ["rmse"], evaluation={"adapt": {"epochs": 1}})
    found = RunFolder(run(wanted).folder).intervals()
    assert found is not None
    assert found["adapted_low"].null_count() == 0
    federation = load_federation(prepare(wanted))
    for client, constant in found.select("client", "constant").iter_rows():
        own, tested = (federation.slice(client, split)[1].double() for split in ("train", "test"))
        assert constant == pytest.approx(float((tested - own.mean(0)).square().mean().sqrt()), rel=1e-4)
