"""Kill a run at any moment, resume it, and get the very bits of a run that nobody disturbed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from contextlib import closing
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.cli.app import main
from coterie.errors import BadInput
from coterie.randomness import stream
from coterie.runs.checkpoint_schedule import open_checkpoints
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from coterie.runs.session import Session
from tests.interrupted import Stopping, assert_same_run
from tests.processes import Process, Processes

pytestmark = [
    pytest.mark.medium,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
]

ROUNDS = 24
SETTINGS = (
    f"--rounds={ROUNDS} --clients=8 --participation=0.5 --workers=2 --network=mlp --set=network.hidden=8 "
    "--set=client_dropout=0.1 --set=samples_per_client=60 --set=training.momentum=0.5 --set=training.lr_decay=0.9"
).split()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Processes:
    return Processes(tmp_path_factory.mktemp("resumed"))


def words(method: str, name: str, *more: str) -> list[str]:
    return ["run", method, *SETTINGS, *more, "--quiet", f"--name={name}"]


def undisturbed(processes: Processes, method: str, *more: str) -> RunFolder:
    """The run that the others are compared with, run once for each setting."""
    name = f"whole-{method}-{blake2b(' '.join(more).encode(), digest_size=4).hexdigest()}"
    folder = RunFolder(processes.folder / "runs" / name)
    if not folder.path.exists():
        call = processes.start(*words(method, name, *more))
        assert call.wait() == 0, call.printed
    return folder


def go_on(processes: Processes, method: str, name: str, *more: str) -> Process:
    """Resume the run, or begin it where a kill came before there was anything to resume."""
    folder = processes.folder / "runs" / name
    if (folder / "experiment.toml").exists():
        return processes.start("resume", name, "--quiet")
    shutil.rmtree(folder, ignore_errors=True)
    return processes.start(*words(method, name, *more))


CASES: list[tuple[Any, ...]] = [
    ("local-only",),
    ("fedtsdp", "--set=h=0.3", "--set=psi=0.8", "--holdout-clients=0.25", "--set=checkpoint_every=4"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_killed_run_ends_with_the_same_bits(processes: Processes, case: tuple[str, ...]) -> None:
    method, *more = case
    whole = undisturbed(processes, method, *more)
    assert whole.failures().height > 0
    name = whole.name.replace("whole", "killed")
    folder = RunFolder(processes.folder / "runs" / name)
    rng = stream(3, "kills/" + " ".join(case))
    # One very early, while nothing or the first files are written; then one after each of some rounds.
    rounds = [0, *np.sort(rng.choice(np.arange(1, ROUNDS), 2, replace=False)).tolist()]
    killed = 0
    for number in rounds:
        call = go_on(processes, method, name, *more)
        if number:
            _wait_for_round(folder, number)
        time.sleep(rng.uniform(0.0, 0.04 if number else 0.3))
        call.send(signal.SIGKILL)
        code = call.wait()
        assert code in (-signal.SIGKILL, 0), call.printed
        killed += code != 0
    call = go_on(processes, method, name, *more)
    assert call.wait() == 0, call.printed
    assert killed >= 1  # a fast machine may finish under a kill's nose, but not always
    assert_same_run(whole, folder)


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on(processes: Processes) -> None:
    whole = undisturbed(processes, "local-only")
    name = "stopped"
    folder = RunFolder(processes.folder / "runs" / name)
    call = processes.start(*words("local-only", name))
    _wait_for_round(folder, 1)
    call.send(signal.SIGTERM)
    assert call.wait() == 130, call.printed
    done = folder.rounds().height
    assert 1 <= done < ROUNDS
    assert re.fullmatch(f".* {done}; .*coterie resume {name}\n", call.printed)
    assert folder.status == "interrupted"
    call = processes.start("resume", name)
    assert call.wait() == 0, call.printed
    assert_same_run(whole, folder)


def _wait_for_round(folder: RunFolder, number: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if folder.path.exists() and folder.rounds()["round"].max() in range(number, ROUNDS + 1):
            return
        time.sleep(0.01)
    pytest.fail(f"round {number} was not reached")


LOCAL = {"evaluation": {"evaluated": "local", "adapt": {"epochs": 1}}}
REMEMBERED: dict[str, tuple[Any, dict[str, Any]]] = {
    "models that clients sent": ("fesem", LOCAL),
    "models that clients keep": ("local-only", LOCAL),
    "local passes": ("fedavg", {"run.passes": 3.0, "run.rounds": 50, "evaluation.every": 4}),
    "a moment": ("fedavg", {"aggregation.optimizer": "adam"}),
    "moments of groups": ({"name": "ifca", "clusters": 2}, {"aggregation.optimizer": "yogi"}),
    "moments of groups that are split": (
        {"name": "cfl", "t_min": 1, "eps1_frac": 2.0, "ratio": 0.1},
        {"aggregation.optimizer": "sgd", "run.participation": 1.0},
    ),
    "intervals": ("fedavg", {"task.metrics": ["f1"]}),
    "unseen clients": ({"name": "fesem", "clusters": 2}, {"run.holdout_clients": 0.25}),
    "edge servers": ("fedavg", {"run.edge_servers": 3}),
    "a clipping norm and noise": (
        "fedavg",
        {"privacy": {"unit": "client", "noise_multiplier": 0.7, "clip_quantile": 0.5, "noise_seed": 1}},
    ),
    "since when training has diverged": (
        "fedavg",
        {"training.lr": 100.0, "network": "mlp", "run.participation": 1.0},
    ),
}


@pytest.mark.parametrize("what", REMEMBERED)
def test_a_run_goes_on_with_all_that_it_remembers(what: str, tmp_path: Path) -> None:
    method, changes = REMEMBERED[what]
    wanted = Experiment(
        method=method,
        data={"name": "digits", "split": "rotated(2)", "clients": 8, "samples_per_client": 40},
        network={"name": "mlp", "hidden": [8]},
        run={"rounds": 3, "workers": 1, "participation": 0.75, "folder": str(tmp_path), "name": "whole"},
    ).updated(changes)
    whole = RunFolder(coterie.run(wanted, observers=[Stopping(99)]).folder)
    cut = coterie.run(wanted.updated({"run.name": "cut"}), observers=[Stopping(2)])
    assert cut.status == "interrupted"
    resumed = RunFolder(coterie.resume(cut.folder, observers=[Stopping(99)]).folder)
    assert_same_run(whole, resumed)
    assert resumed.warnings() == whole.warnings()
    intervals = [folder.intervals() for folder in (whole, resumed)]
    assert str(intervals[0]) == str(intervals[1])
    assert (intervals[0] is not None) == (what == "intervals")
    assert any("since round 1;" in warning for warning in whole.divergences()) == ("diverged" in what)


# ---- what cannot be resumed


@cache
def _data(seed: int, changed: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(120, 6)).astype(np.float32)
    y = rng.integers(0, 3, 120)
    if changed:
        same = np.flatnonzero(y == y[0])[:2]
        x[same] = x[same[::-1]]  # two samples of one class change places: the same sums, the same labels
    return {"x": x, "y": y, "client": np.repeat(np.arange(6), 20)}


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run on data of the user's own, interrupted after two rounds."""
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "own.npz", **_data(0))
    experiment = Experiment(
        method="fedavg",
        data={"name": "own.npz", "split": "by-user"},
        run={"rounds": 4, "workers": 1, "name": "own"},
    )
    result = coterie.run(experiment, observers=[Stopping(2)])
    assert result.status == "interrupted"
    assert result.rounds.height == 2
    return RunFolder(result.folder)


def refused(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command line says against resuming a run: one sentence."""
    capsys.readouterr()
    assert main(["resume", name]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def test_changed_data_are_refused(interrupted: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("own.npz", **_data(0, changed=True))
    assert "own.npz" in refused("own", capsys)
    np.savez("own.npz", **_data(0))
    assert coterie.resume(interrupted).status == "finished"


def test_an_edited_experiment_is_refused(interrupted: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    text = interrupted.experiment_text()
    for old, new in (("momentum = 0.0", "momentum = 0.5"), ("lr = 0.05", "lr = 0.5")):
        assert old in text
        interrupted.write_experiment(text.replace(old, new))
        assert "experiment.toml" in refused("own", capsys)
    interrupted.write_experiment("# A remark changes nothing.\n" + text)
    assert coterie.resume(interrupted).status == "finished"


@pytest.mark.slow
def test_what_changes_no_bit_may_be_edited(interrupted: RunFolder) -> None:
    """A finished run may also be given more rounds; they are those it would have had at once."""
    text = interrupted.experiment_text()
    assert coterie.resume(interrupted).status == "finished"
    interrupted.write_experiment(
        text.replace("rounds = 4", "rounds = 6").replace("checkpoint_every = 1", "checkpoint_every = 2")
    )
    longer = coterie.resume(interrupted)
    assert (longer.status, longer.rounds.height) == ("finished", 6)
    whole = coterie.run(longer.experiment.updated({"run.name": "whole"}))
    assert longer.clients.equals(whole.clients)


def test_a_newer_version_with_another_setting_resumes_older_runs(interrupted: RunFolder) -> None:
    """What is not written in experiment.toml had its default then, and has it now."""
    lines = interrupted.experiment_text().splitlines()
    older = [line for line in lines if not line.startswith("weight_decay")]
    assert len(older) == len(lines) - 1
    interrupted.write_experiment("\n".join(older))
    with closing(Session(coterie.Experiment.from_toml("\n".join(older)))) as session:
        path = interrupted.path / "checkpoints"
        for old in path.glob("*"):
            old.unlink()
        open_checkpoints(interrupted).save(2, session.to_checkpoint())
    assert coterie.resume(interrupted).status == "finished"


def test_damaged_checkpoints_are_passed_over_or_refused(interrupted: RunFolder) -> None:
    newest = interrupted.path / "checkpoints/000002.safetensors"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-5])
    (interrupted.path / "checkpoints/000001.safetensors").write_bytes(b"")
    with pytest.raises(BadInput) as raised:
        coterie.resume(interrupted)
    assert len(raised.value.problems) == 3
    assert interrupted.rounds().height == 2
    newest.write_bytes(whole)
    assert coterie.resume(interrupted).status == "finished"


def test_a_run_elsewhere_is_refused(interrupted: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    interrupted.write_status("running", 2, 4)
    status = interrupted.path / "status.json"
    progress = interrupted.progress()
    assert progress is not None
    status.write_text(status.read_text("utf-8").replace(progress.host, "elsewhere"), "utf-8")
    assert "on elsewhere" in refused("own", capsys)
    status.unlink()
    assert coterie.resume(interrupted).status == "finished"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"experiment\.toml"):
        coterie.resume(tmp_path)
