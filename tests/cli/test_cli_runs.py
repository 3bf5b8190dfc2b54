"""Runs from the command line: training, pages, charts, interruptions, the demonstration."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from coterie.report import run_page
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from tests.commandline import COTERIE, Terminal, fresh
from tests.report.synthesis import synthesise

SMALL = ["--clients", "4", "--rounds", "2", "--set", "samples_per_client=40", "--workers", "1"]


@pytest.mark.medium
def test_a_run_from_start_to_report(terminal: Terminal) -> None:
    first = terminal("run", "fedavg", "--name", "first", *SMALL)
    assert (first.code, first.err) == (0, "")
    lines = first.out.splitlines()
    assert re.match(r"first: fedavg .*digits, rotated\(4\), seed 0", lines[0])
    assert [line[:9] for line in lines if line.startswith("round")] == ["round 1/2", "round 2/2"]
    assert "  accuracy " in first.out
    assert lines[-3:-1] == ["folder  runs/first", "page    runs/first/report.html"]
    assert Path("runs/first/report.html").is_file()

    second = terminal(
        "run",
        "ifca",
        "--name",
        "second",
        *SMALL,
        "--set",
        "clusters=2",
        "--set",
        "init=plain",
        "-q",
        "--against",
        "first",
    )
    assert second == (0, "runs/second\n", "")
    written = Experiment.from_toml(Path("runs/second/experiment.toml"))
    assert (written.method.name, written.method.settings["clusters"], written.data.clients) == ("ifca", 2, 4)
    assert "first" in Path("runs/second/report.html").read_text(encoding="utf-8")

    page = Path("runs/second/report.html").stat().st_mtime_ns
    assert terminal("resume", "second", "-q") == (0, "runs/second\n", "")
    assert Path("runs/second/report.html").stat().st_mtime_ns == page
    again = terminal("run", "fedavg", "--name", "first", "--baselines", "none", *SMALL)
    assert re.search("^note: .*first-2$", again.out, re.MULTILINE)

    one = terminal("show", "first")
    assert one.code == 0
    assert RunFolder("runs/first").rounds().height == 2
    loss = RunFolder("runs/first").rounds()["loss"].to_list()
    assert all(f"{value:.3f}" in one.out for value in loss)
    both = terminal("show", "first", "sec")
    assert both.code == 0
    assert [name for name in ("first", "second", "fedavg", "ifca") if name in both.out] == [
        "first",
        "second",
        "fedavg",
        "ifca",
    ]

    Path("runs/first/report.html").unlink()
    assert terminal("report", "first") == (0, "runs/first/report.html\n", "")
    assert Path("runs/first/report.html").is_file()
    Path("taken").write_text("", encoding="utf-8")
    Path("runs/first/report.html").write_text("as it was", encoding="utf-8")
    taken = terminal("report", "first", "--charts", "taken")
    assert Path("runs/first/report.html").read_text(encoding="utf-8") == "as it was"
    assert (taken.code, "'taken'" in taken.err) == (2, True)


@pytest.mark.medium
def test_options_go_before_the_file_and_set_before_options(terminal: Terminal) -> None:
    Path("e.toml").write_text(
        "[method]\nname = 'ifca'\nclusters = 2\ninit = 'plain'\n[data]\nclients = 4\nsamples_per_client = 40\n"
        "[run]\nrounds = 5\nname = 'of-file'\nworkers = 1\n",
        encoding="utf-8",
    )
    code, out, err = terminal("run", "e.toml", "-q", "--rounds", "3", "--seed", "7", "--set", "rounds=1")
    assert (code, out, err) == (0, "runs/of-file\n", "")
    written = Experiment.from_toml(Path("runs/of-file/experiment.toml"))
    assert (written.run.rounds, written.run.seed, written.method.settings["clusters"]) == (1, 7, 2)


@pytest.mark.slow
def test_runs_elsewhere_are_found_there(terminal: Terminal) -> None:
    ended = terminal("run", "fedavg", "--name", "x", "--folder", "a b", *SMALL).out.splitlines()[-1]
    assert re.match("next .*coterie show 'a b/x' .*coterie predict 'a b/x' --data FILE", ended)
    assert terminal("show", "a b/x").out == terminal("show", "x", "--folder", "a b").out != ""


@pytest.mark.slow
def test_what_a_run_is_compared_with_stays_and_charts_are_saved_where_asked(terminal: Terminal) -> None:
    for name in "abc":
        synthesise(Path("runs"), name, clients=4, groups=1, rounds=2, picture=False)
    page = Path("runs/c/report.html")
    assert terminal("report", "c", "--against", "a", "--against", "b") == (0, "runs/c/report.html\n", "")
    fresh = page.read_text(encoding="utf-8")
    assert all(f" to {name}" in fresh or f">{name}<" in fresh for name in ("a", "b"))
    code, out, err = terminal("report", "c", "--charts", "charts")
    assert (code, err) == (0, "")
    assert page.read_text(encoding="utf-8") == fresh
    assert sorted(out.splitlines()[1:]) == sorted(str(p) for p in Path("charts").iterdir())
    assert all(f">{name}</text>" in Path("charts/accuracy.svg").read_text(encoding="utf-8") for name in "abc")

    Path("runs/a").rename("elsewhere")
    code, out, err = terminal("report", "c")
    assert (code, out) == (0, "runs/c/report.html\n")
    assert re.fullmatch(r"note: run a .*\.\./a.*\n", err)
    assert err[len("note: r") : -1] in page.read_text(encoding="utf-8")  # a note begins with a capital
    assert terminal("report", "c", "--against", "b").err == ""
    assert "../a" not in page.read_text(encoding="utf-8")
    Path("runs/c/against.json").write_text("[", encoding="utf-8")
    assert re.match(r"coterie: runs/c/against\.json .*--against", terminal("report", "c").err)
    page.unlink()
    page.mkdir()
    code, out, err = terminal("report", "c", "--against", "b")
    assert (code, out) == (2, "")
    assert err.startswith("coterie: runs/c/report.html ")


@pytest.mark.medium
def test_a_page_that_cannot_be_drawn_costs_no_run(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise ValueError("eigenvalues\ndid not converge")

    with monkeypatch.context() as patch:
        patch.setattr(run_page, "build", fail)
        code, out, err = terminal("run", "fedavg", "--name", "x", "--baselines", "none", *SMALL)
    assert code == 0
    assert "folder  runs/x\n" in out
    assert not any(line.startswith("page ") for line in out.splitlines())
    assert re.search(r"\(ValueError: eigenvalues did not converge\).*coterie report x", err)
    assert terminal("report", "x").out == "runs/x/report.html\n"


def test_runs_that_are_not_there(terminal: Terminal) -> None:
    for name in ("fesem-a", "fesem-a-2"):
        RunFolder.create("runs", name).write_experiment('method = "fesem"\n')
    Path("runs/empty").mkdir()
    for word, said in {
        "empty": r"'runs/empty' .*experiment\.toml",
        "fese": "'fese' .*fesem-a or fesem-a-2",
        "zzz": "'zzz' .*'runs'.*fesem-a, fesem-a-2",
        "fesem-b": "'fesem-b' .*fesem-a",
    }.items():
        assert re.search(said, terminal("show", word).err)


@pytest.mark.slow
def test_an_interruption_before_the_first_round_is_said(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal, coterie.runs.loop as running\n"
        "def begin(*given, **more): os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "running.run = begin\n"
        "from coterie.cli.app import main; sys.exit(main(['run', 'fedavg']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
    assert len(done.stdout.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_whoever_interrupts_while_an_interrupted_process_ends_sees_no_traceback(tmp_path: Path) -> None:
    code = (
        "import atexit, os, signal, sys\n"
        "import coterie.runs.loop as running\n"
        "def interrupt(*given, **more): os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "running.run = interrupt\n"
        "atexit.register(interrupt)\n"
        "from coterie.cli.app import main; sys.exit(main(['run', 'fedavg']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_an_interrupted_run_says_how_to_resume_and_is_none_the_worse(
    terminal: Terminal, tmp_path: Path, number: signal.Signals, times: int
) -> None:
    rounds = ["--rounds", "25", "--clients", "4", "--set", "samples_per_client=40", "--workers", "1"]
    started = subprocess.Popen(
        [*COTERIE, "run", "fesem", "--name", "cut", *rounds, "--set", "checkpoint_every=7"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while RunFolder("runs/cut").rounds().height < 3:
            assert time.monotonic() < deadline
            assert started.poll() is None, started.communicate()
            time.sleep(0.01)
        for _ in range(times):
            started.send_signal(number)
            time.sleep(0.01)
        out, err = started.communicate(timeout=60)
    finally:
        started.kill()
        started.wait()
    done = RunFolder("runs/cut").rounds().height
    if times == 1:
        assert (started.returncode, err) == (130, "")
    else:  # where the second one comes depends on the machine: while the state is saved, or when all is said
        assert started.returncode in (130, -number)
        assert len(err.splitlines()) <= 1
    assert re.search(f" {done}; .*coterie resume cut$", out)
    assert 3 <= done < 25
    assert RunFolder("runs/cut").status == "interrupted"

    assert terminal("resume", "cut", "-q") == (0, "runs/cut\n", "")
    assert terminal("run", "fesem", "--name", "whole", "-q", *rounds).code == 0
    cut, whole = (RunFolder(f"runs/{name}").clients() for name in ("cut", "whole"))
    assert cut.height == 100
    assert cut.equals(whole)


@pytest.mark.slow
def test_the_demo_finds_the_planted_groups(tmp_path: Path) -> None:
    done = fresh("demo", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    runs = {name: RunFolder(tmp_path / f"runs/demo-{name}") for name in ("fedavg", "ifca", "fesem")}
    last = {name: run.rounds().row(-1, named=True) for name, run in runs.items()}
    assert last["fesem"]["ari"] == 1
    assert last["fedavg"]["groups"] == 1
    final = {name: run.clients().filter(pl.col("round") == pl.col("round").max()) for name, run in runs.items()}
    groups = final["fesem"]["group"].to_numpy()
    for group in range(4):
        ours, theirs = (
            final[name].filter(pl.Series(groups == group))["accuracy"].mean() for name in ("fesem", "fedavg")
        )
        assert isinstance(ours, float)
        assert isinstance(theirs, float)
        assert ours > theirs
    assert all(f"demo-{name}" in done.stdout for name in runs)
    assert "page  runs/demo-fesem/report.html" in done.stdout.splitlines()
    page = (tmp_path / "runs/demo-fesem/report.html").read_text(encoding="utf-8")
    assert "demo-fedavg" in page
    assert "demo-ifca" in page
