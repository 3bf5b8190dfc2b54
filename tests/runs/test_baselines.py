from pathlib import Path

import numpy as np
import pytest

from coterie.plugins import fresh_consent
from coterie.report import run_page
from coterie.report.each_client import score_constant
from coterie.runs import baselines, loop
from coterie.runs.folder.baselines import read_baselines, read_refusals
from coterie.runs.folder.reading import RunResults
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment

pytestmark = pytest.mark.medium


def run_small(folder: Path, **method: object) -> RunFolder:
    experiment = Experiment(
        data={"name": "digits", "split": "rotated(2)", "clients": 4, "samples_per_client": 40},
        network={"name": "mlp", "hidden": [8]},
        method=method,
        run={"rounds": 1, "folder": str(folder), "name": "small", "workers": 1},
    )
    return RunFolder(loop.run(experiment).folder)


def tables(folder: RunFolder) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.path.glob("*")) if path.is_file()]


@pytest.mark.slow
def test_baselines_are_the_same_runs_again_and_alter_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_small(tmp_path, name="ifca", clusters=2)
    before = tables(folder)
    monkeypatch.setattr(baselines, "CHEAP_SECONDS", 0.0)
    dear = baselines.plan_baselines(folder)
    assert not dear.experiments
    assert all(dear.refused.values())
    (folder.path / "baselines" / "fedavg").mkdir(parents=True)  # killed before it began
    monkeypatch.setattr("coterie.runs.events.PROGRESS_SECONDS", 0.0)
    heard: list[str] = []
    plan = baselines.run_baselines(folder, always=True, progress=heard.append)
    assert any("FedAvg" in text for text in heard)
    assert any("local-only" in text for text in heard)
    assert [*plan.experiments] == ["fedavg", "local-only"]
    assert not read_refusals(folder)
    assert tables(folder) == before
    fedavg, tuned, alone = read_baselines(folder)
    assert [run.label for run in (fedavg, tuned, alone)] == ["FedAvg", "FedAvg + FT", "local-only"]
    assert not fedavg.last["loss"].equals(tuned.last["loss"])
    other = plan.experiments["fedavg"].updated({"run.folder": str(tmp_path), "run.name": "by-hand"})
    assert RunFolder(loop.run(other).folder).clients().equals(fedavg.folder.clients())
    changed = fedavg.folder.path.stat().st_mtime_ns
    baselines.run_baselines(folder, always=True)
    assert fedavg.folder.path.stat().st_mtime_ns == changed
    page = run_page.build(folder).read_text("utf-8")
    for title in ("FedAvg", "FedAvg + FT", "local-only", "majority class"):
        assert f" {title}<" in page
    name, score = score_constant(RunResults(folder, "run")) or ("", 0.0)
    federation = folder.federation()
    assert federation is not None
    shares = [max(labels) / sum(labels) for labels in federation["labels"]]
    assert name.endswith("majority class")
    assert score == pytest.approx(np.mean(shares))


def test_what_is_no_baseline(tmp_path: Path) -> None:
    """FedAvg of itself, and anything beside a promise of privacy."""
    folder = run_small(tmp_path, name="fedavg")
    baselines.run_baselines(folder)
    assert [run.label for run in read_baselines(folder)] == ["FedAvg + FT", "local-only"]
    folder.write_experiment(folder.experiment_text() + '\n[privacy]\nunit = "client"\nepsilon = 8.0\n')
    plan = baselines.run_baselines(folder, always=True)
    assert not plan.experiments
    assert all("privacy" in reason for reason in plan.refused.values())
    assert set(plan.refused) == {"fedavg", "local-only"}


def test_what_was_trained_stays_where_a_name_is_not_allowed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets_beside.py").write_text(
        "from torch import nn\n\n\n"
        "def make(inputs=64):\n    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 10))\n"
    )
    monkeypatch.chdir(tmp_path)
    experiment = Experiment(
        data={"name": "digits", "clients": 4, "samples_per_client": 40},
        network="nets_beside:make",
        run={"rounds": 1, "folder": str(tmp_path), "name": "small", "workers": 1},
    )
    folder = RunFolder(loop.run(experiment).folder)
    baselines.run_baselines(folder)
    trained = [run.label for run in read_baselines(folder)]
    with fresh_consent(["resume", str(folder.path)]):
        assert not baselines.plan_baselines(folder).refused
    assert [run.label for run in read_baselines(folder)] == trained != []
