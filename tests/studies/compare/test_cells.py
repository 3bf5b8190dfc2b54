"""Cells in processes of their own: alike but for the method, resumable, and none disturbs another."""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from coterie.cli.live_cells import watch_cells
from coterie.errors import BadInput
from coterie.runs.folder.metrics import ACCURACY, RunMetric
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.session import Session
from coterie.studies.compare import measures
from coterie.studies.compare.cells import CellOutcome, Watcher, keep_processes, run_cells
from coterie.studies.compare.folder import ComparisonFolder, find_finished
from coterie.studies.compare.spec import Cell, Comparison

SMALL = {
    "data": {"clients": 4, "samples_per_client": 40},
    "network": {"name": "mlp", "hidden": [8]},
    "run": {"rounds": 3, "participation": 0.5},
}
COMPARISON = Comparison.from_tables(
    {"methods": ["fedavg", "ifca(clusters=2)"], "seeds": 2, "experiment": SMALL, "adapted": {}}
)
DONE = CellOutcome("finished")


class Seen(Watcher):
    """Keeps what it is told, and does something at the end of each round."""

    def __init__(self, at_round: Callable[[Cell, int], None] = lambda cell, number: None) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._at_round = at_round

    def started(self, todo: Sequence[Cell], done: int) -> None:
        self.told.append(("started", len(todo), done))

    def begun(self, cell: Cell) -> None:
        self.told.append(("begun", cell.label))

    def round(self, cell: Cell, number: int, value: float | None, metric: RunMetric) -> None:
        self.told.append(("round", cell.label, number))
        self._at_round(cell, number)

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        self.told.append(("ended", cell.label, outcome))

    def of(self, kind: str) -> list[Any]:
        return [told[1] if len(told) == 2 else told[1:] for told in self.told if told[0] == kind]


def frames(comparison: Comparison, pool: Path) -> list[pl.DataFrame]:
    """What the finished cells measured; seconds of the wall are nobody's to repeat."""
    found = measures.measure_cells(comparison, find_finished(comparison.cells(), pool))
    return [found.cells.drop("seconds"), found.curves, found.clients]


def equal(ours: list[pl.DataFrame], theirs: list[pl.DataFrame]) -> bool:
    return all(our.equals(their) for our, their in zip(ours, theirs, strict=True))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[pl.DataFrame]:
    """What the comparison measures where nothing comes between."""
    pool = tmp_path_factory.mktemp("whole") / "cells"
    seen = Seen()
    outcomes = run_cells(COMPARISON.cells(), pool, 2, seen)
    assert outcomes == {cell.key: DONE for cell in COMPARISON.cells()}
    labels = [cell.label for cell in COMPARISON.cells()]
    assert seen.told[0] == ("started", 4, 0)
    assert seen.of("begun") == labels
    assert sorted(seen.of("ended")) == sorted((label, DONE) for label in labels)
    assert sorted(seen.of("round")) == sorted((label, n) for label in labels for n in (1, 2, 3))
    assert sorted(path.name for path in pool.iterdir() if path.is_dir()) == sorted(outcomes)
    assert all(RunFolder(pool / key).status == "finished" for key in outcomes)
    assert multiprocessing.active_children() == []

    again = Seen()
    assert run_cells(COMPARISON.cells(), pool, 2, again) == outcomes
    assert again.told == [("started", 0, 4)]
    found = frames(COMPARISON, pool)
    assert found[0]["seed"].to_list() == [0, 1, 0, 1]
    return found


@pytest.mark.medium
def test_methods_begin_alike() -> None:
    tables = {**SMALL, "data": {"clients": 4, "split": "dirichlet(0.5)"}}
    methods = ["fedavg", "ifca(clusters=2)", "clusterfl", "fedtsdp"]
    comparison = Comparison.from_tables({"methods": methods, "seeds": [0, 5], "experiment": tables, "adapted": {}})
    seen: dict[int, list[list[Any]]] = {}
    for cell in comparison.cells():
        with closing(Session(cell.experiment.updated({"run.workers": 1}))) as session:
            cohorts = [session.draw_cohort(number).tolist() for number in (1, 2, 3)]
            bounds, public = session.federation.bounds.tolist(), session.server.public
            begins = [session.population.fingerprint, bounds, cohorts, session.server.initial(0).tolist()]
            seen.setdefault(cell.seed, []).append([*begins, public is None or len(public)])
    for alike in seen.values():
        assert len(alike) == len(methods)
        assert all(other == alike[0] for other in alike)
    assert seen[0][0][:4] != seen[5][0][:4]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_cells")
def test_a_process_that_dies_is_replaced_and_its_cell_resumed_once(
    tmp_path: Path, whole: list[pl.DataFrame]
) -> None:
    once, always = COMPARISON.cells()[:2]
    killed: list[str] = []

    def kill(cell: Cell, number: int) -> None:
        if cell == always or cell.key not in killed:
            killed.append(cell.key)
            for process in multiprocessing.active_children():
                process.kill()

    seen = Seen(kill)
    outcomes = run_cells(COMPARISON.cells()[:3], tmp_path, 1, seen)
    assert [outcome.status for outcome in outcomes.values()] == ["finished", "failed", "finished"]
    assert "signal 9" in outcomes[always.key].sentence
    assert seen.of("begun").count(once.label) == seen.of("begun").count(always.label) == 2
    ours = frames(COMPARISON, tmp_path)
    assert equal(ours, [frame.filter(seed=0) for frame in whole])
    # Asked again, it goes on with what is left.
    assert run_cells(COMPARISON.cells()[:2], tmp_path, 1) == {once.key: DONE, always.key: DONE}
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == sorted(outcomes)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_cells")
def test_interrupted_cells_are_gone_on_with(tmp_path: Path, whole: list[pl.DataFrame]) -> None:
    cells = COMPARISON.cells()
    (tmp_path / cells[0].key).mkdir()  # killed before anything was written

    def interrupt(cell: Cell, number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    outcomes = run_cells(cells, tmp_path, 2, Seen(interrupt))
    assert [o.status for o in outcomes.values()] == ["interrupted"] * 4
    assert multiprocessing.active_children() == []
    assert all(RunFolder(tmp_path / cell.key).status == "interrupted" for cell in cells[:1])
    assert set(run_cells(cells, tmp_path, 1).values()) == {DONE}
    assert equal(frames(COMPARISON, tmp_path), whole)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_cells")
def test_a_cell_that_fails_keeps_none_from_running(tmp_path: Path) -> None:
    comparison = Comparison.from_tables(
        {
            "methods": {
                "good": "fedavg",
                "broken": {"method.name": "fedavg", "training.lr": 1e30, "run.rounds": 5},
                "other folder": "fedprox",
                "same": {"method": "fedavg"},
                "crowded": "fedavg(weights=uniform)",
            },
            "adapted": {},
            "seeds": 1,
            "experiment": SMALL,
        }
    )
    comparison.check(tmp_path)
    good, broken, other, same, crowded = comparison.cells()
    folder = RunFolder.create(tmp_path, other.key)
    folder.write_experiment(crowded.experiment.resolved().to_toml())
    seen = Seen()
    outcomes = run_cells(comparison.cells(), tmp_path, 1, seen)
    assert good.key == same.key
    assert seen.told[0] == ("started", 4, 0)
    assert [key for key, outcome in outcomes.items() if outcome == DONE] == [good.key, crowded.key]
    assert outcomes[broken.key].status == outcomes[other.key].status == "failed"
    assert "rounds 1 to 3" in outcomes[broken.key].sentence
    assert f"'{tmp_path / other.key}'" in outcomes[other.key].sentence
    found = measures.measure_cells(comparison, find_finished(comparison.cells(), tmp_path))
    assert found.cells["method"].to_list() == ["good", "same", "crowded"]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_cells")
def test_few_cells_get_the_workers_that_are_left(tmp_path: Path, whole: list[pl.DataFrame]) -> None:
    (cell,) = COMPARISON.cells()[:1]
    assert run_cells([cell], tmp_path, 3) == {cell.key: DONE}
    assert RunFolder(tmp_path / cell.key).experiment()["run"]["workers"] == 3
    assert equal(frames(COMPARISON, tmp_path), [w.filter(method="fedavg", seed=0) for w in whole])


@pytest.mark.slow
def test_kept_processes_run_the_cells_of_later_calls(tmp_path: Path) -> None:
    with keep_processes() as kept:
        for cell in COMPARISON.cells()[:2]:
            assert run_cells([cell], tmp_path, 1, kept=kept) == {cell.key: DONE}
        (process,) = [one.process for one in kept]  # the second call would have started another
        assert process.is_alive()
    assert not process.is_alive()


@pytest.mark.medium
def test_one_process_alone_writes_into_a_pool(tmp_path: Path) -> None:
    holds = (
        "import sys; from pathlib import Path; from coterie.runs.folder.lock import lock_folder\n"
        "with lock_folder(Path(sys.argv[1]), ''): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holds, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BadInput, match=r"another process.*'.*'.*wait"):
            run_cells(COMPARISON.cells(), tmp_path)
        with (
            pytest.raises(BadInput, match=r"'.*' .*running.*wait"),
            ComparisonFolder.hold(tmp_path.parent, tmp_path.name, COMPARISON),
        ):
            pass
        other.communicate()
    assert not tmp_path.exists()  # nothing was written into it


def test_a_folder_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("", "utf-8")
    (tmp_path / "file").write_text("", "utf-8")
    for name in ("full", "file"):
        with pytest.raises(BadInput, match=name), ComparisonFolder.hold(tmp_path, name, COMPARISON):
            pass
    with pytest.raises(BadInput, match=r"comparison\.toml"):
        ComparisonFolder(tmp_path / "full").comparison()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


def shown(terminal: bool, quiet: bool = False) -> str:
    """What is shown of two cells that finish, one that fails, and one that was finished before."""
    first, second, third, _ = COMPARISON.cells()
    file = StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, highlight=False)
    with watch_cells(quiet, console) as watcher:
        watcher.started([first, second, third], 1)
        for cell in (first, second, third):
            watcher.begun(cell)
        for number, cell in enumerate((first, second, third)):
            watcher.note(cell, "labels were numbered in sorted order: good is 0, scrap is 1")
            if cell is not third:
                watcher.note(cell, f"none of {number + 2} E-steps (of {cell.label}) moved a [client]")
        watcher.note(third, "a [remark]")
        watcher.round(first, 2, 0.25, ACCURACY)
        watcher.round(first, 3, 0.875, ACCURACY)
        watcher.ended(first, DONE)
        watcher.ended(second, CellOutcome("failed", "ValueError: [no]"))
        watcher.ended(third, DONE)
        watcher.started([], 4)
        watcher.started([second], 3)
        watcher.ended(second, DONE)
    return file.getvalue()


def test_a_line_a_cell_without_a_terminal() -> None:
    for line, said in zip(
        shown(terminal=False).splitlines(),
        (
            *("4 runs.* 1 .*3 rounds", r"run 2/4  fedavg, seed 0  accuracy 87\.5%"),
            *(r"run 3/4  fedavg, seed 1: failed: ValueError: \[no\]", r"run 4/4  ifca\(clusters=2\), seed 0 "),
            *("4 runs.* 3 .*3 rounds", "run 4/4  fedavg, seed 1 ", r"note: .*\(all 3 runs\)"),
            *(r"note: fedavg: .*\[client\] \(seed 0; 1 ", r"note: ifca\(clusters=2\), seed 0: a \[remark\]"),
        ),
        strict=True,
    ):
        assert re.match(said, line), line
    assert shown(terminal=False, quiet=True) == shown(terminal=True, quiet=True) == ""


def test_stages_have_one_count_and_a_time_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("coterie.cli.live_cells.time.monotonic", lambda: now)
    file = StringIO()
    first, second, *_ = COMPARISON.cells()
    with watch_cells(False, Console(file=file, width=100, highlight=False)) as watcher:
        for later, cells in ((1 * 2 + 24, [replace(first, until=1), replace(second, until=1)]), (24, [first])):
            watcher.later(later)
            watcher.started(cells, 0)
            for cell in cells:
                for number in range(1 if cell.until else 2, (cell.until or 3) + 1):
                    now += 2.0
                    watcher.round(cell, number, 0.5, ACCURACY)
                watcher.ended(cell, DONE)
    lines = file.getvalue().splitlines()
    assert len(lines) == 4  # one says how much there is in all
    assert [int(re.findall(r"(\d+)%  ", line)[0]) for line in lines[1:]] == [4, 7, 14]
    assert [re.findall(r"\d:\d\d left", line) for line in lines[1:]] == [[], [], ["0:48 left"]]


def test_a_long_cell_says_its_round_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.cli.live_cells.MOST_SILENT_SECONDS", 0.0)
    said = [line for line in shown(terminal=False).splitlines() if "fedavg, seed 0" in line]
    assert [re.findall(r"\b[23]/3\b", line) for line in said[:2]] == [["2/3"], ["3/3"]]


def test_bars_on_a_terminal() -> None:
    printed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(terminal=True))
    assert "run 1/4" in printed
    assert "run 4/4" in printed
    assert re.search(r"fedavg, seed 0 +round 3/3 +87.5%", printed)
    assert "run 3/4  fedavg, seed 1: failed: ValueError: [no]" in printed
