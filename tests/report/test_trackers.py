"""What trackers are told, on the real systems: a server of MLflow, event files, a run of W&B without a network."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import coterie
from coterie.errors import BadInput
from coterie.report.trackers.csv import Csv
from coterie.report.trackers.tracker import Tracker
from coterie.runs.folder.run_folder import RunFolder
from tests.interrupted import Stopping, assert_same_run
from tests.processes import call, run_apart

RUN = ("run", "fesem", "--clients", "4", "--rounds", "3", "--set", "samples_per_client=40", "--set", "clusters=2")


def experiment(folder: Path, name: str, *observers: str) -> coterie.Experiment:
    return coterie.Experiment(
        method={"name": "fesem", "clusters": 2},
        data={"clients": 4, "samples_per_client": 40},
        run={
            "rounds": 3,
            "workers": 1,
            "checkpoint_every": 1,
            "folder": str(folder),
            "name": name,
            **({"observers": observers} if observers else {}),
        },
    )


@pytest.mark.slow
def test_a_run_that_is_resumed_is_told_of_once_and_is_what_it_is_untold(tmp_path: Path) -> None:
    plain = coterie.run(experiment(tmp_path, "plain"))
    told = coterie.run(experiment(tmp_path, "told", "csv"))
    coterie.run(experiment(tmp_path, "cut"), observers=[Csv(), Stopping(2)])
    with (tmp_path / "cut" / "tracked.csv").open("a") as file:
        file.write("3,accuracy,0.0\n")  # as of a round that was told, and lost with a kill
    cut = coterie.resume(tmp_path / "cut", observers=[Csv()])
    tables = [pl.read_csv(result.folder / "tracked.csv") for result in (told, cut)]
    for table in tables:
        assert table.filter(name="accuracy")["value"].to_list() == plain.rounds["accuracy"].to_list()
        final = plain.clients.filter(round=3)
        for group in final["group"].unique():
            mean = final.filter(group=group)["accuracy"].mean()
            said = table.filter(round=3, name=f"group {group}/accuracy")["value"]
            assert said.to_list() == pytest.approx([mean])
        assert table.filter(round=3, name="clients/accuracy 100%")["value"][0] == final["accuracy"].max()
        assert (
            table.filter(round=3, name="up_megabytes_total")["value"][0]
            == float(plain.rounds["up_bytes"].sum()) / 1e6
        )
    assert tables[0].filter(pl.col("name") != "seconds").equals(tables[1].filter(pl.col("name") != "seconds"))
    for result in (told, cut):
        assert_same_run(RunFolder(plain.folder), RunFolder(result.folder))
        assert (result.folder / "report.html").is_file()


class Losing(Csv):
    """Loses its file after the first round."""

    def begin(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.file = folder / "tracked.csv"
        super().begin(folder, settings)

    def log(self, round: int, values: Mapping[str, float]) -> None:
        if round == 2:
            self.file.unlink()
        super().log(round, values)


@pytest.mark.medium
def test_a_tracker_that_fails_is_said_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "coterie"):
        told = coterie.run(experiment(tmp_path, "told"), observers=[Losing()])
    assert told.status == "finished"
    (said,) = (record.getMessage() for record in caplog.records if "FileNotFoundError" in record.getMessage())
    assert "csv" in said


class Absent(Csv):
    """Of a library that is not there."""

    library, extra = "no_such_library", "mlflow"


class Refused(Csv):
    """Of a server that is not there."""

    def begin(self, folder: Path, settings: Mapping[str, str]) -> None:
        raise ConnectionError("nobody listens\nand so on")


@pytest.mark.parametrize(
    ("tracker", "said"),
    [
        (Absent, r"mlflow.*no_such_library.*coterie\[mlflow\]"),
        (Refused, "csv.*ConnectionError: nobody listens.*--track"),
    ],
)
def test_what_cannot_be_tracked_is_refused_before_the_first_round(
    tracker: Callable[[], Tracker], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=said):
        coterie.run(experiment(tmp_path, "told"), observers=[tracker()])
    assert RunFolder(tmp_path / "told").rounds().is_empty()


def test_a_library_that_is_missing_is_known_before_there_is_a_folder(tmp_path: Path) -> None:
    asked = experiment(tmp_path, "told").updated({"run.observers": ["tests.report.test_trackers:Absent"]})
    with pytest.raises(BadInput, match="needs no_such_library"):
        coterie.run(asked)
    assert not (tmp_path / "told").exists()


def test_rounds_without_a_folder_cannot_be_tracked() -> None:
    untold = coterie.Experiment(method="fedavg", run={"observers": ["csv"]})
    with pytest.raises(BadInput, match=r"folder.*csv"):
        next(coterie.rounds(untold))


# ---- the systems themselves, each in a process of its own: what they import warns of much


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, for which nothing is set in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("MLFLOW", "WANDB"))]:
        monkeypatch.delenv(name)
    return tmp_path


def track(tracker: str) -> None:
    log = Path("log")
    code = run_apart(call, [*RUN, "--track", tracker, "--name", "told"], output=log, seconds=1800)
    assert code == 0, log.read_text("utf-8")


def ask(program: str, *words: str) -> Any:
    command = [sys.executable, "-W", "ignore", "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def accuracies(folder: Path) -> list[float]:
    return RunFolder(folder).rounds()["accuracy"].to_list()


@pytest.mark.slow
def test_event_files_of_tensorboard_are_read_back(place: Path) -> None:
    track("tensorboard")
    program = (
        "import json, sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator(sys.argv[1]).Reload()\n"
        "scalars = {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()['scalars']}\n"
        "print(json.dumps([scalars, events.Tags()['tensors']]))"
    )
    scalars, texts = ask(program, "runs/told/tensorboard")
    assert scalars["accuracy"] == [
        [round, pytest.approx(value)] for round, value in enumerate(accuracies(place / "runs" / "told"), 1)
    ]
    assert [step for step, _ in scalars["group 1/accuracy"]] == [1, 2, 3]
    assert "clients/accuracy 50%" in scalars
    assert {"settings/text_summary", "summary/text_summary"} <= set(texts)


@pytest.mark.slow
def test_a_store_of_mlflow_has_settings_numbers_and_files(place: Path) -> None:
    track("mlflow(uri='sqlite:///store.db', experiment=wards)")
    program = (
        "import json, sys\n"
        "from mlflow.tracking import MlflowClient\n"
        "client = MlflowClient(sys.argv[1])\n"
        "(run,) = client.search_runs([client.get_experiment_by_name('wards').experiment_id])\n"
        "history = [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, 'accuracy')]\n"
        "files = [file.path for file in client.list_artifacts(run.info.run_id)]\n"
        "facts = [run.info.run_name, run.info.status, run.data.params, list(run.data.metrics)]\n"
        "print(json.dumps([*facts, history, files]))"
    )
    name, status, settings, metrics, history, files = ask(program, "sqlite:///store.db")
    assert (name, status) == ("told", "FINISHED")
    assert (settings["method.name"], settings["data.clients"]) == ("fesem", "4")
    assert {"group 0/accuracy", "clients/accuracy 10 percent", "final/accuracy"} <= set(metrics)
    assert history == [[i, value] for i, value in enumerate(accuracies(place / "runs" / "told"), 1)]
    assert {"report.html", "experiment.toml", "rounds.parquet", "clients.parquet"} <= set(files)


@pytest.mark.slow
def test_a_run_of_wandb_is_written_without_a_network(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    track("wandb")
    (file,) = (place / "runs" / "told" / "wandb").glob("offline-run-*/*.wandb")
    program = (
        "import json, sys\n"
        "from wandb.proto import wandb_internal_pb2\n"
        "raw, found, names = open(sys.argv[1], 'rb').read(), [], []\n"
        "place, whole = 7, b''\n"  # behind the file's header, a log of LevelDB: blocks of 32 KiB
        "while place + 7 <= len(raw):\n"
        "    if 32768 - place % 32768 < 7:\n"
        "        place += 32768 - place % 32768\n"
        "        continue\n"
        "    length, kind = int.from_bytes(raw[place + 4 : place + 6], 'little'), raw[place + 6]\n"
        "    whole += raw[place + 7 : place + 7 + length]\n"
        "    place += 7 + length\n"
        "    if kind in (1, 4):\n"  # a whole record, or the end of one
        "        record = wandb_internal_pb2.Record()\n"
        "        record.ParseFromString(whole)\n"
        "        whole = b''\n"
        "        items = {item.key or '.'.join(item.nested_key): item for item in record.history.item}\n"
        "        if 'accuracy' in items:\n"
        "            found.append(json.loads(items['accuracy'].value_json))\n"
        "        if record.run.display_name:\n"
        "            names.append(record.run.display_name)\n"
        "print(json.dumps([names[0], found]))"
    )
    assert ask(program, str(file)) == ["told", accuracies(place / "runs" / "told")]
