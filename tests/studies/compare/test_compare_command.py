"""`coterie compare` from start to page: again, killed, interrupted, tuned, and everything that it refuses."""

from __future__ import annotations

import html
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import coterie
from coterie.errors import BadInput
from coterie.report.comparison.compare import compare
from coterie.report.tables import escape_markdown
from coterie.studies.compare.cells import CellOutcome, Watcher
from coterie.studies.compare.folder import ComparisonFolder, choose_free_name, find_difference
from coterie.studies.compare.notes import describe_notes
from coterie.studies.compare.spec import Cell, Comparison
from tests.commandline import Terminal
from tests.processes import Processes

SMALL = ["--clients", "4", "--set", "samples_per_client=40", "--network", "mlp", "--set", "network.hidden=[8]"]
SMALL += ["--baselines", "none"]
METHODS = ["fedavg", "ifca(clusters=2)"]
WRITTEN = {"cells", "cells.parquet", "clients.parquet", "comparison.toml", "curves.parquet", "summary.parquet"} | {
    "table.md",
    "table.tex",
    "report.html",
    ".lock",
}
FRAMES = ("cells", "curves", "clients", "summary")


def frames(folder: Path) -> dict[str, pl.DataFrame]:
    """The tables; seconds of the wall are nobody's to repeat."""
    return {name: pl.read_parquet(folder / f"{name}.parquet").drop("seconds", strict=False) for name in FRAMES}


def until(true: Callable[[], bool], seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def state_of(pid: int) -> tuple[str, int]:
    """A process's state, and who started it: Z where it has ended and nobody has asked for its code yet."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "Z", 0
    return state, int(parent)


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    return state_of(pid)[0] == "Z"


@pytest.mark.slow
def test_from_start_to_page_and_again(terminal: Terminal) -> None:
    words = [*METHODS, "--rounds", "2", "--seeds", "2", "--set", "clusters=3", *SMALL]
    first = terminal("compare", *words, "--name", "mine", "--target", "0.1")
    assert (first.code, first.err) == (0, "")
    lines = [line for line in first.out.splitlines() if " done  " not in line]  # said after a silence
    assert lines[0].startswith("4 runs, 2 rounds")
    assert sorted(line.split("  ")[1] for line in lines[1:5]) == [
        f"{method}, seed {seed}" for method in METHODS for seed in (0, 1)
    ]
    folder = Path("comparisons/mine")
    assert lines[-3:] == [
        f"folder  {folder}",
        f"tables  {folder}/table.md, {folder}/table.tex, {folder}/summary.parquet",
        f"page    {folder}/report.html",
    ]
    assert {path.name for path in folder.iterdir()} == WRITTEN
    kept = ComparisonFolder(folder)
    comparison = kept.comparison()
    assert (comparison.name, comparison.target, comparison.seeds) == ("mine", 0.1, (0, 1))
    # A method's own settings override --set, which applies to those who have such a setting.
    own = [cell for cell in comparison.cells() if not cell.is_adapted]
    assert [cell.experiment.method.settings for cell in own[::2]] == [{}, {"clusters": 2}]
    assert {cell.experiment.data.samples_per_client for cell in comparison.cells()} == {40}
    measured = frames(folder)
    assert measured["cells"]["key"].to_list() == [cell.key for cell in comparison.cells()]
    assert measured["summary"]["method"].to_list() == [METHODS[0], f"{METHODS[0]}+FT", *METHODS[1:]]
    table = "\n".join(lines[5:-3])
    assert all(method in table for method in METHODS)
    (found,) = [line.removeprefix("found   ") for line in lines if line.startswith("found   ")]
    assert found in html.unescape((folder / "report.html").read_text("utf-8"))

    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    begun = {path: path.stat().st_mtime_ns for path in (folder / "cells").rglob("*")}
    again = terminal("compare", *words, "--name", "mine", "--target", "0.1")
    assert again == (0, "\n".join(lines[5:]) + "\n", "")
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert {path: path.stat().st_mtime_ns for path in (folder / "cells").rglob("*")} == begun

    wrong = terminal("show", "comparisons/mine")
    assert (wrong.code, wrong.out, "coterie compare comparisons/mine" in wrong.err) == (2, "", True)

    drawn = terminal("compare", "comparisons/mine", "--charts", "pictures", "-q")
    assert drawn == (0, "comparisons/mine\n", "")
    names = {path.stem for path in Path("pictures").iterdir()}
    assert {path.name for path in Path("pictures").iterdir()} == {
        f"{n}.{end}" for n in names for end in ("svg", "png")
    }
    assert {"accuracy", "clients", "cost"} <= names

    # More seeds in the same folder: what is there is kept.
    more = terminal("compare", "comparisons/mine", "--seeds", "1,", "-q")
    assert more == (0, "comparisons/mine\n", "")
    assert pl.read_parquet(folder / "cells.parquet")["seed"].to_list() == [1, 1, 1]


def notes_on_both(printed: str) -> list[str]:
    """The notes of a comparison of FedAvg and FeSEM that name both."""
    notes = [line.removeprefix("note: ") for line in printed.splitlines() if line.startswith("note: ")]
    return [note for note in notes if "fedavg" in note and "fesem(" in note]


@pytest.mark.slow
def test_local_passes_are_counted_with_the_warm_up(terminal: Terminal) -> None:
    words = ["compare", "fedavg", "fesem(clusters=2, warm_up=6)", *SMALL, "--rounds", "3", "--seeds", "1"]
    printed = terminal(*words, "--name", "unequal").out
    folder = Path("comparisons/unequal")
    summary = pl.read_parquet(folder / "summary.parquet")
    fesem = "fesem(clusters=2, warm_up=6)"
    assert dict(summary.select("method", "passes_mean").iter_rows()) == {"fedavg": 3, "fedavg+FT": 3, fesem: 8}
    curve = pl.read_parquet(folder / "curves.parquet").filter(method=fesem)
    assert curve["passes"].to_list() == [6, 7, 8]
    (sentence,) = notes_on_both(printed)
    assert {"8", "3"} <= set(re.findall(r"\d+", sentence.replace(fesem, "")))
    assert escape_markdown(sentence) in (folder / "table.md").read_text()
    assert html.escape(sentence[1:]) in (folder / "report.html").read_text()
    for table in ("table.md", "table.tex"):
        assert "local passes" in (folder / table).read_text()
    equal = ["compare", "fedavg", "fesem(clusters=2, warm_up=1)", *SMALL, "--rounds", "3", "--seeds", "1"]
    assert not notes_on_both(terminal(*equal).out)


@pytest.mark.slow
def test_equal_passes_end_each_method_after_the_same_training(terminal: Terminal) -> None:
    fesem = "fesem(clusters=2, warm_up=6)"
    words = ["compare", "fedavg", fesem, "fedsgd", *SMALL, "--set", "epochs=2", "--rounds", "5", "--seeds", "1"]
    printed = terminal(*words, "--equal", "passes", "--name", "equal").out
    cells = pl.read_parquet("comparisons/equal/cells.parquet").filter(pl.col("method") != "fedavg+FT")
    # Five rounds of two epochs; FeSEM begins with six; FedSGD's gradients are one pass.
    assert dict(cells.select("method", "rounds").iter_rows()) == {"fedavg": 5, fesem: 3, "fedsgd": 10}
    assert set(cells["passes"]) == {10.0}
    assert not notes_on_both(printed)
    header = Path("comparisons/equal/table.md").read_text().split("\n\n")[1].splitlines()[0]
    assert " rounds " in header  # so that nobody takes the most that were possible for those that were played
    before = frames(Path("comparisons/equal"))
    terminal("compare", "comparisons/equal", "--baselines", "none")
    assert all(table.equals(before[name]) for name, table in frames(Path("comparisons/equal")).items())
    pruned = terminal(*words, "--equal", "passes", "--tune", "4", "--prune")
    assert (pruned.code, pruned.out) == (2, "")
    assert "passes" in pruned.err


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({}, None),
        ({"seeds": 7, "target": 0.3, "baseline": "ditto"}, None),
        ({"methods": ["fedavg", "ditto", "fesem"]}, None),
        ({"experiment": {"run": {"rounds": 9, "workers": 2}}}, None),
        ({"experiment": {"run": {"rounds": 10}}}, "run.rounds is 9 there and 10 here"),
        ({"methods": ["fedprox"]}, None),
        ({"settings": {"few": {"run.participation": 0.5}}}, None),
        ({"methods": {"ditto": {"method": "ditto", "training.lr": 1.0}}}, "training.lr is 0.05 there and 1.0 here"),
    ],
)
def test_what_goes_on_with_a_comparison(changes: dict[str, Any], difference: str | None) -> None:
    tables = {"methods": ["fedavg", "ditto"], "seeds": 2, "experiment": {"run": {"rounds": 9}}}
    kept, given = Comparison.from_tables(tables), Comparison.from_tables({**tables, **changes})
    assert find_difference(kept, given) == difference


def test_a_folder_that_cannot_be_read_ends_no_comparison_that_nobody_named(tmp_path: Path) -> None:
    given = Comparison.from_tables({"methods": ["fedavg"]})
    (tmp_path / given.name).mkdir()
    (tmp_path / given.name / "comparison.toml").touch()
    with pytest.raises(BadInput) as refused, ComparisonFolder.hold(tmp_path, given.name, given):
        pass
    assert all(sentence.startswith(f"{str(tmp_path / given.name)!r}: ") for sentence in refused.value.problems)
    assert choose_free_name(given, tmp_path).name == f"{given.name}-2"


def test_other_methods_grow_a_named_folder_and_are_apart_in_one_nobody_named(tmp_path: Path) -> None:
    first, other = (Comparison.from_tables({"methods": [method], "name": "mine"}) for method in ("fedavg", "ditto"))
    for comparison in (first, other):
        with ComparisonFolder.hold(tmp_path, "mine", comparison) as folder:
            assert [method.name for method in folder.comparison().methods] == [comparison.methods[0].name]
    assert choose_free_name(replace(first, is_named=False), tmp_path).name == "mine-2"
    faster = Comparison.from_tables({**other.tables(), "experiment": {"training.lr": 0.2}})
    with pytest.raises(BadInput, match=r"training\.lr .*0\.05 .*0\.2 .*--name"):
        compare(faster, folder=tmp_path)
    with pytest.raises(BadInput, match="jobs = 0"):
        compare(first, folder=tmp_path, jobs=0)


def cells_of(*methods: str, seeds: int = 3, **more: Any) -> list[list[Cell]]:
    """The cells of each method, in the order of the seeds."""
    tables = {"methods": list(methods), "seeds": seeds, "adapted": {}, **more}
    cells = Comparison.from_tables(tables).cells()
    return [[cell for cell in cells if cell.method == method] for method in methods]


def test_a_number_of_one_run_is_not_said_of_others() -> None:
    """Of one method it is said how many others there are; of another method it is said with its own numbers."""
    halves, cfl = cells_of("halves", "cfl")
    would = "alpha = {}"
    values = (
        (halves[0], 0.459),
        (halves[1], 0.918),
        (halves[2], 0.28),
        (cfl[0], 0.7),
        (cfl[1], 0.7),
        (cfl[2], 0.8),
    )
    first, second = describe_notes(((cell, would.format(value)) for cell, value in values), 6)
    assert first.startswith("halves: alpha = 0.459 (seed 0; 2 others ")
    assert second.startswith("cfl: alpha = 0.7 (2 of 6 runs; 1 other ")
    # What is the same to the letter is said once for all methods.
    same = [*((cell, "3 samples") for cell in halves), (cfl[0], "3 samples")]
    assert describe_notes(same, 6) == ["halves, cfl: 3 samples (4 of 6 runs)"]
    assert describe_notes(same, 4) == ["3 samples (all 4 runs)"]
    (said,) = describe_notes([*same, (cfl[1], "4 samples")], 6)
    assert said.startswith("halves, cfl: 3 samples (4 of 6 runs; 1 other ")
    settings = {name: {"data.split": "iid"} for name in ("β = 1", "β = 2")}
    ((one, other),) = cells_of("halves", seeds=1, settings=settings)
    (said,) = describe_notes(((one, "p = 0.1"), (other, "p = 0.2")), 2)
    assert said.startswith("halves: p = 0.1 (β = 1, seed 0; 1 other ")


@pytest.mark.slow
def test_what_did_not_come_about_is_said_by_all_that_a_comparison_writes(terminal: Terminal) -> None:
    words = ["fedavg", "cfl", *SMALL, "--rounds", "2", "--seeds", "2", "--name", "mine"]
    first = terminal("compare", *words).out
    comparison = ComparisonFolder(Path("comparisons/mine"))
    warned = [
        (cell, sentence)
        for cell in comparison.comparison().cells()
        if not cell.is_adapted
        for sentence in comparison.cell(cell.key).warnings()
    ]
    (said,) = describe_notes(warned, 4)
    assert said.startswith("cfl: ")
    assert f"\n- {escape_markdown(said)}\n" in (comparison.path / "table.md").read_text("utf-8")
    page = " ".join(html.unescape((comparison.path / "report.html").read_text("utf-8")).split())
    assert said.partition(": ")[2] in page.replace("\N{NO-BREAK SPACE}", " ")
    # It is printed once: as the runs end, and where no run is left, behind the table.
    assert " ".join(first.split()).count(said) == 1
    again = terminal("compare", "comparisons/mine", "--baselines", "none").out
    assert f"note: {said}" in " ".join(again.split())


def test_a_short_key_of_the_task_counts_once_the_task_is_named(terminal: Terminal, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez("wear.npz", x=rng.normal(size=(80, 4)), y=500 * rng.normal(size=80), client=np.arange(80) % 4)
    words = ["compare", "fedavg", "--data", "wear.npz", "--set", "target_scale=global"]
    for setting in ("target_scale=global", "task.target_scale=global"):
        _, _, err = terminal(*words[:-1], setting)
        assert "target_scale" in err
        assert "regression" in err
    # With the task it goes on to the next mistake.
    _, _, err = terminal(*words, "--set", "task.name=regression", "--name", "/")
    assert err.startswith("coterie: name = '/' ")


@pytest.mark.slow
def test_a_file_with_settings_and_a_cell_that_fails(terminal: Terminal) -> None:
    Path("paper.toml").write_text(
        'seeds = 1\n[experiment.run]\nrounds = 3\n[experiment.network]\nname = "mlp"\nhidden = [8]\n'
        "[experiment.data]\nclients = 4\nsamples_per_client = 40\n"
        '[methods.good]\nmethod = "fedavg"\n'
        '[methods.broken]\nmethod = "fedavg"\ntraining.lr = 1e30\nrun.rounds = 5\n'
        '[settings."β = 0.2"]\ndata.split = "dirichlet(0.2)"\n',
        "utf-8",
    )
    found = terminal("compare", "paper.toml", "--jobs", "1", "--baselines", "none")
    assert found.code == 1
    assert re.match(r"coterie: β = 0\.2, broken, seed 0 failed: .* rounds 2 to 4", found.err)
    assert Path("comparisons/paper/report.html").is_file()
    assert "good" in found.out
    assert pl.read_parquet("comparisons/paper/cells.parquet")["method"].to_list() == ["good", "good+FT"]
    # Where nothing at all is finished there is no table.
    text = Path("paper.toml").read_text("utf-8").replace('[methods.good]\nmethod = "fedavg"\n', "")
    Path("none.toml").write_text(text, "utf-8")
    none = terminal("compare", "none.toml", "--jobs", "1")
    assert none.code == 2
    assert "rounds 2 to 4" in none.err
    assert not Path("comparisons/none/table.md").exists()


@pytest.mark.slow
def test_killed_and_interrupted_it_goes_on_to_the_same_tables(tmp_path: Path) -> None:
    words = ["compare", *METHODS, "--rounds", "30", "--seeds", "2", "--name", "mine", *SMALL]
    folder = tmp_path / "comparisons" / "mine"
    cells = ComparisonFolder(folder)

    def running() -> list[int]:
        """The processes of cells that are between their first round and their last."""
        there = [coterie.RunFolder(path).progress() for path in cells.pool.glob("*") if path.is_dir()]
        return [p.pid for p in there if p is not None and p.state == "running" and p.round]

    processes = Processes(tmp_path)
    killed = processes.start(*words, "--jobs", "2")
    until(lambda: bool(running()))
    pids = running()
    second = processes.start(*words)
    assert second.wait() == 2
    assert re.fullmatch("coterie: .*'comparisons/mine' .*running.*\n", second.printed)
    killed.send(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    until(lambda: all(is_gone(pid) for pid in pids))
    assert not (folder / "summary.parquet").exists()

    stopped = processes.start(*words, "--jobs", "1")

    def started() -> list[int]:
        """Its own: one that the killed call had just begun may still be about to notice."""
        return [pid for pid in running() if state_of(pid)[1] == stopped.pid]

    until(lambda: bool(started()))
    pids = started()
    stopped.send(signal.SIGINT)
    assert stopped.wait() == 130
    kept = cells.done(cells.comparison().cells())
    left = [cells.cell(key).progress() for key in {c.key for c in cells.comparison().cells()} - {*kept}]
    rounds_left = sum(30 - (0 if p is None else p.round) for p in left)
    *_, counts, go_on = stopped.printed.splitlines()
    assert re.match(rf"{len(kept)} of 4 runs\D+ {4 - len(kept)} \D+ {rounds_left} rounds", counts)
    assert go_on.endswith("coterie compare comparisons/mine --baselines none")
    assert all(is_gone(pid) for pid in pids)

    last = processes.start("compare", "comparisons/mine", "-q", "--jobs", "1")
    assert (last.wait(), last.printed) == (0, "comparisons/mine\n")
    whole = processes.start(*words[: -len(SMALL)], *SMALL, "--folder", "others", "--jobs", "1", "-q")
    assert (whole.wait(), whole.printed) == (0, "others/mine\n")
    ours, theirs = frames(folder), frames(tmp_path / "others" / "mine")
    assert all(ours[name].equals(theirs[name]) for name in FRAMES)
    assert ours["cells"]["rounds"].to_list() == [30] * 6  # two methods, and the first after adaptation
    assert (folder / "table.md").read_bytes() == (tmp_path / "others" / "mine" / "table.md").read_bytes()


@pytest.mark.slow
def test_tuned_first(terminal: Terminal) -> None:
    words = ["--rounds", "1", "--seeds", "1", "--name", "tuned", "--jobs", "1", *SMALL]
    found = terminal("compare", "fedavg", "fedprox", *words, "--tune", "2")
    assert (found.code, found.err) == (0, "")
    tuning = pl.read_parquet("comparisons/tuned/tuning.parquet")
    assert tuning["method"].to_list() == ["fedavg"] * 2 + ["fedprox"] * 2
    comparison = ComparisonFolder(Path("comparisons/tuned")).comparison()
    picked = {row["method"]: row["changes"] for row in tuning.filter("picked").iter_rows(named=True)}
    assert {method for method, changes in picked.items() if changes} == set(comparison.tuned.get("", {}))
    told = [line for line in found.out.splitlines() if line.startswith("tuned ")]
    assert [changes in line for changes, line in zip(picked.values(), told, strict=True)] == [True, True]
    tried = [line for line in found.out.splitlines() if line.startswith("tuning ")]
    assert all(any(changes in line for line in tried) for changes in tuning["changes"])
    # Tuned again it begins from what was compared, not from what was picked.
    again = terminal("compare", "comparisons/tuned", "--tune", "2", "-q")
    assert again == (0, "comparisons/tuned\n", "")
    assert pl.read_parquet("comparisons/tuned/tuning.parquet").equals(tuning)
    # Compared without tuning, what was tried stays where it picked what is compared.
    assert terminal("compare", "fedavg", "fedprox", *words, "-q") == (0, "comparisons/tuned\n", "")
    assert Path("comparisons/tuned/tuning.parquet").exists() == (not comparison.tuned)
    path = Path("comparisons/tuned/comparison.toml")
    path.write_text(f'{path.read_text()}\n[tuned."".fedavg.training]\nlr = 0.3\n', "utf-8")
    assert terminal("compare", "comparisons/tuned", "-q") == (0, "comparisons/tuned\n", "")
    assert not Path("comparisons/tuned/tuning.parquet").exists()


class StopAfterTheFirst(Watcher):
    """Interrupts as soon as one cell is finished, as Ctrl-C would."""

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.usefixtures("forked_cells")
def test_interrupted_it_keeps_a_table_of_what_is_finished(tmp_path: Path) -> None:
    tables = {
        "name": "cut",
        "methods": METHODS,
        "seeds": 2,
        "experiment": {
            "data": {"clients": 4, "samples_per_client": 40},
            "network": {"name": "mlp", "hidden": [8]},
            "run": {"rounds": 2},
        },
    }
    cut = compare(tables, folder=tmp_path, jobs=1, observer=StopAfterTheFirst())
    assert cut.status == "interrupted"
    assert repr(cut) == f"<Compared '{tmp_path / 'cut'}': interrupted, 1 of 4 cells finished>"
    assert re.match(r"1 of 4 runs\D+ 3 \D+ 6 rounds", cut.left)
    assert cut.summary is not None
    assert cut.summary.select("method", "finished").rows() == [("fedavg", 1), ("fedavg+FT", 1), (METHODS[1], 0)]
    assert "fedavg" in (tmp_path / "cut" / "table.md").read_text("utf-8")
    page = (tmp_path / "cut" / "report.html").read_text("utf-8")
    assert "1 of 4 runs" in page
    tuned = compare({**tables, "name": "tuned"}, folder=tmp_path, jobs=1, tune=2, observer=StopAfterTheFirst())
    assert (tuned.status, tuned.summary) == ("interrupted", None)
    assert re.match(r"1 \D+ 4 trials\D+ 4 runs", tuned.left)


@pytest.mark.slow
def test_newcomers_are_scored_and_public_samples_accounted_for(terminal: Terminal) -> None:
    words = ["--rounds", "2", "--seeds", "1", "--name", "late", "--jobs", "1", "--network", "mlp", "--clients", "6"]
    found = terminal("compare", "fedavg", "fedtsdp", *words, "--holdout-clients", "0.3")
    assert (found.code, found.err) == (0, "")
    folder = Path("comparisons/late")
    cells = pl.read_parquet(folder / "cells.parquet")
    for row in cells.filter(~pl.col("method").str.contains("FT")).iter_rows(named=True):
        joined = coterie.RunFolder(folder / "cells" / row["key"]).newcomers()
        assert joined is not None
        assert joined.height == 2
        assert row["newcomers"] == pytest.approx(joined["arrival"].mean())
        assert row["newcomers_adapted"] == pytest.approx(joined["adapted"].mean())
    after = cells.filter(method="fedavg+FT").row(0, named=True)
    assert (after["newcomers"], after["newcomers_adapted"]) == (None, cells["newcomers_adapted"][0])
    page = (folder / "report.html").read_text("utf-8")
    for written in ((folder / "table.md").read_text("utf-8"), page.replace("\N{NO-BREAK SPACE}", " ")):
        assert "on arrival, %" in written
    (line,) = [line for line in found.out.splitlines() if "public samples" in line]
    assert re.match("note: fedtsdp .*179 public samples", line)
    assert line.removeprefix("note: ") in html.unescape(page)


@pytest.mark.slow
def test_a_script_without_a_guard_runs_once_and_is_told_what_it_lacks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    small = {"data": {"clients": 4}, "run": {"rounds": 1}}
    tables = {"name": "mine", "methods": ["fedavg"], "seeds": 1, "experiment": small}
    runs = f"coterie.run(coterie.Experiment(method='fedavg', **{small}))\ncoterie.compare({tables!r}, jobs=1)\n"
    script.write_text(f"import coterie\n{runs}", "utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert not list((tmp_path / "comparisons" / "mine" / "cells").glob("[!.]*"))
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "if __name__ == '__main__':" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_folder_that_is_called_like_a_method(terminal: Terminal) -> None:
    Path("fedavg").mkdir()
    found = terminal("compare", "fedavg", "--rounds", "1", "--seeds", "1", *SMALL, "-q")
    assert found == (0, "comparisons/fedavg\n", "")
    # One that holds a comparison is gone on with, under whatever name.
    Path("comparisons/fedavg").rename("fedprox")
    assert terminal("compare", "fedprox", "-q") == (0, "fedprox\n", "")


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        (["fesme"], ["method 'fesme' .*fesem"]),
        (["none.toml"], [r"'none\.toml'"]),
        (["empty"], [r"'empty' .*comparison\.toml"]),
        (["fedavg", "--target", "80"], ["target = 80 .* 0 to 1"]),
        (["errors.toml"], ["measure = 'macro_f1' .*rmse, macro_rmse, worst10, std, loss, adapted_"]),
        (["fedavg", "--tune", "2", "--set", "validation=0"], [r"data\.validation = 0 .*evaluation\.on"]),
        (["fedavg", "ifca", "--set", "method.name=ditto"], [r"method\.name "]),
        (
            ["fedavg", "--rounds", "0", "--participation", "2", "--split", "iidd"],
            [r"run\.rounds = 0 ", r"run\.participation = 2 ", "split 'iidd'"],
        ),
        (["grid.toml", "--split", "iid"], [r"data\.split "]),
    ],
)
def test_what_is_refused(terminal: Terminal, words: list[str], problems: list[str]) -> None:
    Path("empty").mkdir()
    Path("grid.toml").write_text('methods = ["fedavg"]\n[grid]\n"data.split" = ["iid"]\n', "utf-8")
    Path("errors.toml").write_text(
        'methods = ["fedavg"]\nmeasure = "macro_f1"\n[experiment]\n'
        'task = { name = "regression", metrics = ["rmse"] }\n',
        "utf-8",
    )
    found = terminal("compare", *words)
    assert (found.code, found.out) == (2, "")
    lines = found.err.splitlines()
    for line, problem in zip(lines, problems, strict=True):
        assert re.match(f"coterie: .*{problem}", line)
    assert not Path("comparisons").exists()
