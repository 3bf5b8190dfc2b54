"""Nothing outside a run's folder, or a comparison's, is written or removed, whatever in it is a link."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import pytest

import coterie
from coterie.cli.app import main
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from tests.commandline import Terminal
from tests.interrupted import Stopping

pytestmark = [
    pytest.mark.medium,
    pytest.mark.skipif(os.name != "posix", reason="links need permission elsewhere"),
]

KINDS = ("file", "folder", "nothing")
"""What a link leads to."""

SMALL = ["--clients", "4", "--rounds", "2", "--set", "samples_per_client=40", "--set", "run.workers=1"]


class Made(NamedTuple):
    """Folders as Coterie left them, to be copied."""

    finished: Path
    interrupted: Path
    comparison: Path
    data: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A run with baselines and newcomers, the same run interrupted, and a comparison of one cell."""
    here, before = tmp_path_factory.mktemp("made"), Path.cwd()
    os.chdir(here)
    try:
        assert main(["run", "fedavg", "--name", "first", *SMALL, "--quiet"]) == 0
        words = ["--holdout-clients", "0.25", "--track", "csv", "--against", "first", "--baselines", "all"]
        assert main(["run", "fesem", "--name", "whole", "--set", "clusters=2", *SMALL, *words]) == 0
        whole = Path("runs/whole")
        experiment = Experiment.from_toml(whole / "experiment.toml").updated({"run.rounds": 4, "run.name": "half"})
        half = coterie.run(experiment, observers=[Stopping(3)]).folder
        for name in ("baselines", "against.json", "report.html"):  # as a stranger's folder may have them
            (shutil.copytree if (whole / name).is_dir() else shutil.copy)(whole / name, half / name)
        (half / "baselines/fedavg/status.json").unlink()  # begun, and to be begun anew
        assert main(["compare", "fedavg", "--name", "table", "--seeds", "1", *SMALL, "--quiet"]) == 0
        yield Made(here / whole, here / half, here / "comparisons/table", here)
    finally:
        os.chdir(before)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file in a folder with its bytes, and every folder."""
    found = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in found}


class Outside:
    """Somebody's files, which look like those of a run, and what has become of them."""

    def __init__(self, place: Path, made: Made) -> None:
        self.place = place
        place.mkdir()
        (place / "file").write_text("of value")
        gone = Popen(["true"])
        gone.wait()
        folder = place / "folder"
        for name in ("checkpoints", "metrics", "baselines/fedavg"):  # what would be cleared away, one level up
            if (made.interrupted / name).is_dir():
                shutil.copytree(made.interrupted / name, folder, dirs_exist_ok=True)
        for name in ("baselines", "metrics", "checkpoints"):
            if (made.interrupted / name).is_dir():
                shutil.copytree(made.interrupted / name, folder / name, dirs_exist_ok=True)
        shutil.copytree(folder / "baselines", folder, dirs_exist_ok=True)
        (folder / f".status.json.{gone.pid}.new").write_text("half written")
        (folder / "status.json").unlink(missing_ok=True)
        self.before = contents(place)

    def assert_untouched(self, case: object) -> None:
        now = contents(self.place)
        assert now.keys() == self.before.keys(), case
        assert now == self.before, case


COMMANDS = {
    "report": ("report", "copy", "--against", "first"),
    "export": ("export", "copy", "--to", "model.safetensors"),
    "predict": ("predict", "copy", "--data", "digits", "--out", "predicted.csv"),
    "show": ("show", "copy"),
    "resume": ("resume", "copy"),
    "diagnose": ("diagnose", "copy", "--write", "diagnosed.toml"),
}


@pytest.fixture
def terminal(made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    monkeypatch.chdir(made.data)
    return Terminal(capsys)


@pytest.mark.each_once
@pytest.mark.parametrize("name", ["experiment.toml", "baselines", "metrics/link"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_in_a_run(made: Made, command: str, name: str, terminal: Terminal, tmp_path: Path) -> None:
    outside, copy = Outside(tmp_path / "outside", made), made.data / "runs/copy"
    shutil.copytree(made.finished, copy)
    place = copy / name
    if place.is_dir():
        shutil.rmtree(place)
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(outside.place / ("folder" if name == "baselines" else "file"))
    before = contents(copy)
    outcome = terminal(*COMMANDS[command])
    outside.assert_untouched(outcome)
    assert (outcome.code, contents(copy)) == (2, before), outcome
    assert "link" in outcome.err
    shutil.rmtree(copy)


def test_a_link_in_a_comparison(made: Made, terminal: Terminal, tmp_path: Path) -> None:
    outside, copy = Outside(tmp_path / "outside", made), made.data / "comparisons/copy"
    shutil.copytree(made.comparison, copy)
    page = next(copy.glob("*.parquet"))
    page.unlink()
    page.symlink_to(outside.place / "file")
    outcome = terminal("compare", str(copy), "--quiet")
    outside.assert_untouched(outcome)
    assert (outcome.code, "link" in outcome.err) == (2, True), outcome
    shutil.rmtree(copy)


@pytest.mark.parametrize(("name", "kind"), [("cells", "folder"), ("dcpfl-fig5-small", "nothing")])
def test_a_reproduction_refuses_a_link(
    made: Made, name: str, kind: str, terminal: Terminal, tmp_path: Path
) -> None:
    outside, folder = Outside(tmp_path / "outside", made), tmp_path / "reproductions"
    folder.mkdir()
    (folder / name).symlink_to(outside.place / kind)
    outcome = terminal("reproduce", "dcpfl-fig5", "--folder", str(folder), "--quiet")
    assert outcome.code == 2
    assert name in outcome.err
    outside.assert_untouched(outcome)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_run_takes_no_name_that_a_link_has(made: Made, kind: str, terminal: Terminal, tmp_path: Path) -> None:
    outside, runs = Outside(tmp_path / "outside", made), tmp_path / "runs"
    runs.mkdir()
    (runs / "new").symlink_to(outside.place / kind)
    assert terminal("run", "fedavg", "--name", "new", "--folder", str(runs), *SMALL, "--quiet").code == 0
    assert (runs / "new-2/rounds.parquet").is_file()
    outside.assert_untouched(kind)


def test_a_run_may_lie_behind_a_link_and_hold_one_to_itself(made: Made, terminal: Terminal, tmp_path: Path) -> None:
    """A disk with more room; and what trackers put there."""
    big = tmp_path / "big"
    shutil.copytree(made.interrupted, big / "half")
    shutil.rmtree(big / "half/baselines")
    (tmp_path / "runs").symlink_to(big)
    (big / "half/latest").symlink_to("metrics")
    assert terminal("resume", str(tmp_path / "runs/half"), "--quiet").code == 0
    assert RunFolder(big / "half").status == "finished"


def test_observers_write_where_the_run_is_and_not_where_its_file_says(
    made: Made, terminal: Terminal, tmp_path: Path
) -> None:
    outside, run = Outside(tmp_path / "outside", made), tmp_path / "runs/half"
    shutil.copytree(made.interrupted, run)
    shutil.rmtree(run / "baselines")
    (run / "tracked.csv").unlink()
    kept = Experiment.from_toml(run / "experiment.toml")
    elsewhere = {"run.folder": str(outside.place.parent), "run.name": "outside"}
    RunFolder(run).write_experiment(kept.updated(elsewhere).to_toml())
    outcome = terminal("resume", str(run), "--quiet")
    assert outcome.code == 0, outcome
    assert (run / "tracked.csv").is_file()
    outside.assert_untouched(outcome)
