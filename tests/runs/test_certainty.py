"""How sure scores are by metrics that are no shares of right answers, from a run to its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from coterie.report.each_client import describe_clients
from coterie.report.run_page import build
from coterie.runs.baselines import run_baselines
from coterie.runs.folder.baselines import read_baselines
from coterie.runs.folder.reading import read_runs
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.loop import resume, run
from coterie.runs.schema.check import build_method
from coterie.runs.schema.experiment import Experiment
from coterie.runs.setup import load_federation
from tests.interrupted import Stopping
from tests.tasked import NETWORK, write

CLIENTS, EACH = 8, 40


def _experiment(folder: Path, task: dict[str, Any], **more: Any) -> Experiment:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS * EACH, 4)).astype(np.float32)
    user = np.repeat(np.arange(CLIENTS), EACH)
    y = (x * rng.normal(size=(2, 4))[user % 2]).sum(1).astype(np.float32) + user
    np.savez(folder / "own.npz", features=x, label=y if task["name"] == "regression" else y > user, client=user)
    return Experiment(
        method={"name": "fesem", "clusters": 2},
        task=task,
        data={"name": str(folder / "own.npz"), "split": "by-user"},
        run={"rounds": 2, "folder": str(folder / "runs"), "workers": 1},
        **more,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "constant"),
    [
        ({"name": "regression"}, "own training mean"),
        ({"name": "regression", "metrics": ["mae", "r2"]}, "own training mean"),
        ({"name": "classification", "metrics": ["auroc", "f1"]}, "chance (0.5)"),
        ({"name": "binary", "metrics": ["f1", "accuracy"]}, "own majority class"),
        ({"name": "regression", "metrics": ["r2", "mae"]}, "own training mean"),
        ({"name": "binary", "metrics": ["average_precision", "auroc"]}, "chance"),
    ],
)
def test_gains_have_intervals_by_every_metric(tmp_path: Path, task: dict[str, Any], constant: str) -> None:
    folder = RunFolder(run(_experiment(tmp_path, task)).folder)
    run_baselines(folder, always=True)
    ours, *others = [*read_runs([folder]), *read_baselines(folder)]
    metric = ours.metrics.deciding
    assert [other.label for other in others] == ["FedAvg", "FedAvg + FT", "local-only"]
    for one in (ours, *others):  # the intervals are those of the models that were scored
        known = one.last.join(one.intervals, on="client").drop_nulls(["low", metric.name])
        assert known.height >= CLIENTS - 2
        low, score, high = (known[column].to_numpy() for column in ("low", metric.name, "high"))
        assert np.mean((low <= score + 1e-6) & (score <= high + 1e-6)) > 0.8
    found = describe_clients(ours, others)
    assert found is not None
    assert found.table.header[1:5] == [
        f"Gain over {name}" for name in ("FedAvg", "FedAvg + FT", "local-only", constant)
    ]
    told = [row[1] for row in found.table.rows if "–" not in row[1]]
    assert told
    assert all("\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}" in text for text in told)
    assert f"Gains are by {metric.title}, the first of the run's metrics, which decides" in found.cautions[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "metrics", "constant"),
    [
        ("segmentation", ["iou", "f1"], "own majority class"),
        ("segmentation", ["accuracy"], "own majority class"),
        ("language", ["perplexity", "accuracy"], "own token counts"),
        ("multilabel", ["f1", "auroc"], "own majority class"),
        ("multilabel", ["average_precision"], "chance"),
        ("forecasting", ["r2", "mae"], "own training mean"),
    ],
)
def test_tasks_with_many_targets_a_sample_have_intervals(
    tmp_path: Path, task: str, metrics: list[str], constant: str
) -> None:
    experiment = Experiment(
        method="fedavg",
        task={"name": task, "metrics": metrics},
        data={"name": str(write(tmp_path, task)), "split": "by-user"},
        network=NETWORK.get(task, "auto"),
        run={"rounds": 1, "folder": str(tmp_path / "runs"), "workers": 1},
    )
    (one,) = read_runs([RunFolder(run(experiment).folder)])
    beside = one.last.join(one.intervals, on="client").drop_nulls(metrics[0])
    low, score, high = (beside[column].to_numpy() for column in ("low", metrics[0], "high"))
    assert len(score) >= 3
    assert ((low <= score + 1e-6) & (score <= high + 1e-6)).all()
    assert beside["constant_low"].null_count() == beside["constant"].null_count() == 0
    found = describe_clients(one)
    assert found is not None
    assert found.table.header[1] == f"Gain over {constant}"
    assert "95 % interval" in build(one.folder).read_text("utf-8")


@pytest.mark.slow
def test_the_mean_of_training_targets_is_a_line(tmp_path: Path) -> None:
    folder = RunFolder(run(_experiment(tmp_path, {"name": "regression"})).folder)
    experiment = Experiment.from_toml(folder.experiment_text() + "\n")
    federation = load_federation(experiment, build_method(experiment.method))
    intervals = folder.intervals()
    assert intervals is not None
    for client, constant in intervals.select("client", "constant").iter_rows():
        own, tested = (federation.slice(client, split)[1].double() for split in ("train", "test"))
        assert constant == pytest.approx(float((tested - own.mean()).square().mean().sqrt()), rel=1e-4)


@pytest.mark.slow
def test_an_interrupted_run_has_the_same_intervals(tmp_path: Path) -> None:
    wanted = _experiment(tmp_path, {"name": "regression"}, evaluation={"adapt": {"epochs": 1}})
    whole = run(wanted.updated({"run.name": "whole"}))
    cut = run(wanted.updated({"run.name": "cut", "run.workers": 2}), observers=[Stopping(1)])
    assert cut.status == "interrupted"
    assert RunFolder(cut.folder).intervals() is None
    resume(cut.folder)
    first, second = (pl.read_parquet(path / "intervals.parquet") for path in (whole.folder, cut.folder))
    assert first.equals(second)
    assert first["adapted_low"].null_count() == 0


@pytest.mark.slow
def test_a_run_by_accuracy_needs_none(tmp_path: Path) -> None:
    folder = RunFolder(run(_experiment(tmp_path, {"name": "classification"})).folder)
    assert folder.intervals() is None
