"""A file of metrics that was removed, cut off or exchanged is named; no command takes the run for a shorter one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.errors import BadInput
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from coterie.studies.compare.folder import ComparisonFolder
from coterie.studies.compare.spec import Comparison
from tests.commandline import Terminal
from tests.interrupted import Stopping

pytestmark = pytest.mark.medium

TABLES = ("rounds", "clients", "ledger", "failures", "log")
SMALL: dict[str, Any] = {
    "data": {"clients": 4, "samples_per_client": 40},
    "network": {"name": "mlp", "hidden": [4]},
    "run": {"rounds": 5, "workers": 1, "checkpoint_every": 1, "client_dropout": 0.3},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`finished`, `other` with another seed, `short`, with fewer rounds; after four `stopped`, `held`."""
    parent = tmp_path_factory.mktemp("runs")
    experiment = Experiment(method="fedavg", **SMALL).updated({"run.folder": str(parent)})
    coterie.run(experiment.updated({"run.name": "finished"}), observers=[Stopping(9)])
    coterie.run(experiment.updated({"run.name": "short", "run.rounds": 3}), observers=[Stopping(9)])
    stopped = coterie.run(experiment.updated({"run.name": "stopped"}), observers=[Stopping(4)])
    assert stopped.status == "interrupted"
    coterie.run(experiment.updated({"run.name": "other", "run.seed": 1}), observers=[Stopping(9)])
    coterie.run(experiment.updated({"run.name": "held", "run.seed": 1}), observers=[Stopping(4)])
    assert RunFolder(parent / "finished").failures().height > 0
    names = [path.name for path in sorted((parent / "stopped/metrics").iterdir())]
    assert names == [f"{number:06d}.zip" for number in (1, 2, 3, 4)]
    return parent


@pytest.fixture
def terminal(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    shutil.copytree(runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys)


def remove(path: Path) -> None:
    path.unlink()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def exchange(path: Path) -> None:
    """With a neighbour, or with the same file of the shorter run."""
    other = path.with_name("000002.zip") if path.suffix == ".zip" else path.parents[1] / "short" / path.name
    kept = other.read_bytes()
    other.write_bytes(path.read_bytes())
    path.write_bytes(kept)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def assert_named(terminal: Terminal, file: Path, command: str) -> None:
    """One sentence names the file and says what to do, and nothing has changed."""
    run = Path(*file.parts[:2])
    before = contents(run)
    done = terminal(command, run.name)
    assert done.code == 2
    assert done.out == ""
    (line,) = done.err.splitlines()
    assert line.startswith(f"coterie: {file} is ")
    assert "; restore it" in line
    lock = {str(run / ".lock"): b""} if command == "resume" else {}
    assert contents(run) == before | lock


@pytest.mark.parametrize(
    ("damage", "number"), [(remove, 1), (remove, 4), (cut_off, 3), (empty, 4), (exchange, 1), (exchange, 3)]
)
def test_a_file_of_rounds(terminal: Terminal, damage: Callable[[Path], None], number: int) -> None:
    file = Path(f"runs/stopped/metrics/{number:06d}.zip")
    damage(file)
    named = file if damage is not exchange else min(file, file.with_name("000002.zip"))
    for command in ("show", "report", "resume"):
        assert_named(terminal, named, command)


def copy_other(path: Path) -> None:
    """From a run that is as long, of another seed."""
    shutil.copy(path.parents[1] / "other" / path.name, path)


@pytest.mark.each_once
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("damage", [remove, cut_off, empty, exchange, copy_other])
def test_a_table(terminal: Terminal, damage: Callable[[Path], None], table: str) -> None:
    """`show` prints the rounds alone, so that it sees a missing table, and no damage to another one."""
    if (damage, table) == (exchange, "log"):
        pytest.skip("there is no log in either")
    file = Path(f"runs/finished/{table}.parquet")
    damage(file)
    if table == "rounds" or damage is remove:
        assert_named(terminal, file, "show")
    assert_named(terminal, file, "resume")


def test_all_tables_of_another_run(terminal: Terminal) -> None:
    """Not even together do they pass; the run's own pass wherever its folder goes."""
    shutil.copy(Path("runs/held/metrics/000002.zip"), Path("runs/stopped/metrics/000002.zip"))
    assert_named(terminal, Path("runs/stopped/metrics/000002.zip"), "report")
    for table in TABLES:
        copy_other(Path(f"runs/finished/{table}.parquet"))
    assert_named(terminal, Path("runs/finished/rounds.parquet"), "show")
    shutil.copytree("runs/other", "runs/moved")
    assert terminal("show", "moved").code == 0


@pytest.mark.parametrize(("damage", "table"), [(remove, "clients"), (cut_off, "rounds")])
def test_a_comparison_does_not_count_a_damaged_run_as_finished(
    terminal: Terminal, runs: Path, damage: Callable[[Path], None], table: str
) -> None:
    given = {"name": "two", "experiment": {"run": {"rounds": 5}}, "methods": ["ifca", "local-only"], "seeds": 1}
    comparison = Comparison.from_tables(given)
    Path("comparisons/two").mkdir(parents=True)
    ComparisonFolder("comparisons/two").write_comparison(comparison)
    cells = [Path("comparisons/two/cells") / cell.key for cell in comparison.cells()]
    for cell in dict.fromkeys(cells):
        shutil.copytree(runs / "finished", cell)
    words = ("compare", "ifca", "local-only", "--rounds=5", "--seeds=1", "--name=two", "--quiet")
    damage(cells[-1] / f"{table}.parquet")
    done = terminal(*words)
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith(f"coterie: {cells[-1] / table}.parquet is ")
    assert "; restore it" in line


def test_files_before_and_behind_a_table_of_an_extended_run(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "finished", tmp_path / "longer")
    folder = RunFolder(tmp_path / "longer")
    text = folder.experiment_text()
    folder.write_experiment(text.replace("rounds = 5", "rounds = 9"))
    assert coterie.resume(folder, observers=[Stopping(8)]).status == "interrupted"
    assert RunFolder(folder.path).rounds().height == 8
    for number in (6, 7, 8):
        file = folder.path / f"metrics/{number:06d}.zip"
        kept = file.read_bytes()
        file.unlink()
        with pytest.raises(BadInput, match=rf"{number:06d}\.zip .*missing \(.*round {number}\)"):
            RunFolder(folder.path).clients()
        file.write_bytes(kept)
    assert coterie.resume(folder, observers=[Stopping(99)]).status == "finished"


def test_a_checkpoint_beyond_the_tables_is_no_reason_to_go_on(runs: Path, tmp_path: Path) -> None:
    """The status may be older than the tables: a machine stopped before it was on the disk."""
    shutil.copytree(runs / "stopped", tmp_path / "stopped")
    (tmp_path / "stopped/status.json").unlink()
    (tmp_path / "stopped/metrics/000004.zip").unlink()
    assert RunFolder(tmp_path / "stopped").rounds().height == 3
    with pytest.raises(BadInput, match=r"000004\.zip .*missing"):
        coterie.resume(tmp_path / "stopped")
