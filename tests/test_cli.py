"""The command line: what it prints, what it refuses, and with which code it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

import coterie
from coterie.cli import KINDS, main
from coterie.experiment import Experiment
from coterie.runs import RunFolder

COTERIE = [sys.executable, "-c", "import sys; from coterie.cli import main; sys.exit(main())"]
SMALL = ["--clients", "4", "--rounds", "2", "--set", "samples_per_client=40", "--workers", "1"]


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Terminal:
    """Calls the command line in an empty folder, in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: str) -> Outcome:
        self._capture.readouterr()
        code = main(words)
        printed = self._capture.readouterr()
        return Outcome(code, printed.out, printed.err)


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys)


def fresh(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A call in a process of its own."""
    return subprocess.run(
        [*COTERIE, *words], cwd=cwd, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False
    )


# ---- the public names


def test_importing_the_package_is_fast_and_brings_no_torch() -> None:
    code = (
        "import time; start = time.perf_counter(); import coterie, sys; took = time.perf_counter() - start; "
        "print(took, 'torch' in sys.modules, 'pydantic' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    took, torch, pydantic = out.split()
    assert (torch, pydantic) == ("False", "False")
    assert float(took) < 0.5


def test_help_is_fast_and_brings_no_torch() -> None:
    code = "import sys; from coterie.cli import main; main(['run', '--help']); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "False"


def test_every_public_name_is_there() -> None:
    for name in coterie.__all__:
        assert getattr(coterie, name) is not None
    assert sorted(dir(coterie)) == sorted(coterie.__all__)
    assert set(coterie._HOMES) | {"__version__"} == set(coterie.__all__)
    assert coterie.BadInput is sys.modules["coterie.problems"].BadInput
    with pytest.raises(AttributeError, match="no attribute 'experimnt'"):
        coterie.experimnt  # noqa: B018  (the look-up is the test)


# ---- help, version, listings


def test_version(terminal: Terminal) -> None:
    assert terminal("--version") == (0, f"coterie {coterie.__version__}\n", "")


def test_help_names_every_command_and_what_comes_next(terminal: Terminal) -> None:
    bare, asked = terminal(), terminal("--help")
    assert bare.code == asked.code == 0
    assert bare.out.split() == asked.out.split()
    for word in ("demo", "run", "resume", "show", "report", "list", "new", "coterie run experiment.toml"):
        assert word in asked.out
    assert "--set mu=0.1" in terminal("run", "-h").out


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("methods", ["fedavg", "local-only", "ifca", "fesem"]),
        ("datasets", ["digits", "mnist", "fashion-mnist", "cifar10", "uci-har", "mnist-writers"]),
        ("splits", ["iid", "dirichlet", "by-user", "rotated", "few-shot"]),
        ("networks", ["mlp", "cnn", "lenet", "resnet18", "vgg16"]),
    ],
)
def test_list(terminal: Terminal, kind: str, names: list[str]) -> None:
    code, out, err = terminal("list", kind)
    assert (code, err) == (0, "")
    listed = {line.split()[0]: line for line in out.splitlines() if not line.startswith(" ")}
    assert set(names) <= set(listed)
    assert all(len(line.split()) > 2 for line in listed.values())


def test_list_shows_settings_with_default_and_meaning(terminal: Terminal) -> None:
    out = terminal("list", "methods").out
    assert re.search(r"^ +clusters = 4 +\w+", out, re.MULTILINE)
    assert re.search(r'^ +weights = "samples" +.*; one of samples, uniform$', out, re.MULTILINE)


def test_list_knows_four_kinds(terminal: Terminal) -> None:
    assert terminal("list", "method") == (2, "", "coterie: list 'method' is unknown; did you mean methods?\n")
    assert len(KINDS) == 4


# ---- bad input: code 2, sentences on the error output


@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        (["run", "fesm"], ["method 'fesm' is unknown; did you mean fesem?"]),
        (["run", "fesm", "--set", "clusters=3"], ["method 'fesm' is unknown; did you mean fesem?"]),
        (
            ["run", "fesem", "--rounds", "0", "--seed", "x", "--participation", "2", "--engine", "gpu"],
            [
                "run.rounds = 0 is not possible; it must be greater than or equal to 1",
                "run.participation = 2 is not possible; it must be less than or equal to 1",
                "run.seed = 'x' is not possible; it must be a valid integer",
                "run.engine = 'gpu' is not possible; it must be 'auto', 'sequential' or 'batched'",
            ],
        ),
        (
            ["run", "ifca", "--set", "clustrs=3", "--set", "lr"],
            [
                "--set 'lr' is not possible; write --set KEY=VALUE",
                "clustrs is not a setting of ifca or of any section; did you mean clusters?",
            ],
        ),
        (["run", "ifca", "--clients", "3"],
         ["method.clusters = 4 is more than data.clients = 3; it must be at most that"]),
        (["run", "ifca", "--against", "other"], ["run 'other' is unknown; there is no run in 'runs' yet"]),
        (["run", "a.toml"], ["experiment file 'a.toml' does not exist; write one with: coterie new a.toml"]),
        (["run"], ["missing argument 'METHOD|FILE.toml'"]),
        (["run", "fesem", "--round", "3"], ["no such option: --round (Possible options: --rounds)"]),
        (["rnu"], ["no such command 'rnu'. Did you mean 'run'?"]),
        (["show", "x"], ["run 'x' is unknown; there is no run in 'runs' yet"]),
        (["show"], ["missing argument 'RUN...'"]),
        (["resume", "x", "--folder", "elsewhere"], ["run 'x' is unknown; there is no run in 'elsewhere' yet"]),
        (["report", "x"], ["run 'x' is unknown; there is no run in 'runs' yet"]),
        (["new", "a.txt"], ["file 'a.txt' is not possible; its name must end in .toml"]),
        (["new", "a.toml", "--method", "fesm"], ["method 'fesm' is unknown; did you mean fesem?"]),
        (["new", "no/a.toml"], ["file 'no/a.toml' cannot be written: No such file or directory; name another"]),
        (["demo", "--folder", "file"], ["run.folder = 'file' is not possible; 'file' is a file, name a folder"]),
    ],
)  # fmt: skip
def test_bad_input(terminal: Terminal, words: list[str], sentences: list[str]) -> None:
    Path("file").write_text("in the way", encoding="utf-8")
    code, out, err = terminal(*words)
    assert (code, out) == (2, "")
    assert err.splitlines() == [f"coterie: {sentence}" for sentence in sentences]
    assert [p.name for p in Path.cwd().iterdir()] == ["file"]


def test_bad_input_of_a_process(tmp_path: Path) -> None:
    done = fresh("run", "fesm", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "coterie: method 'fesm' is unknown; did you mean fesem?\n"


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(
            [*COTERIE, "list", "splits"], cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"")


# ---- new


def test_new_writes_a_file_that_runs_and_never_overwrites(terminal: Terminal) -> None:
    code, out, _ = terminal("new", "experiment.toml", "--method", "ifca")
    assert (code, out) == (0, "experiment.toml is written; run it with: coterie run experiment.toml\n")
    text = Path("experiment.toml").read_text(encoding="utf-8")
    assert Experiment.from_toml(text) == Experiment(method="ifca").resolved()
    again = terminal("new", "experiment.toml")
    assert (again.code, again.out) == (2, "")
    assert again.err == "coterie: file 'experiment.toml' exists already; name another, or remove it first\n"
    assert Path("experiment.toml").read_text(encoding="utf-8") == text


# ---- runs


def test_a_run_from_start_to_report(terminal: Terminal) -> None:
    first = terminal("run", "fedavg", "--name", "first", *SMALL)
    assert (first.code, first.err) == (0, "")
    lines = first.out.splitlines()
    assert lines[0] == "first: fedavg on digits, rotated(4), seed 0"
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

    one = terminal("show", "fir")
    assert one.code == 0
    assert RunFolder("runs/first").rounds().height == 2
    loss = RunFolder("runs/first").rounds()["loss"].to_list()
    assert all(f"{value:.3f}" in one.out for value in loss)
    both = terminal("show", "first", "second")
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
    taken = terminal("report", "first", "--charts", "taken")
    assert (taken.code, taken.err) == (
        2,
        "coterie: --charts 'taken' cannot be written: File exists; name another folder\n",
    )


def test_charts_are_saved_where_asked(terminal: Terminal) -> None:
    assert terminal("run", "fedavg", "--name", "one", "-q", *SMALL).code == 0
    code, out, err = terminal("report", "one", "--charts", "charts")
    assert (code, err) == (0, "")
    _, *charts = out.splitlines()
    assert charts
    assert sorted(charts) == sorted(str(p) for p in Path("charts").iterdir())
    assert {Path(p).suffix for p in charts} == {".svg", ".png"}


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


def test_runs_elsewhere_are_found_there(terminal: Terminal) -> None:
    assert terminal("run", "fedavg", "--name", "x", "--folder", "a b", *SMALL).out.splitlines()[-1] == (
        "next    coterie show 'a b/x'   or   coterie report 'a b/x' --charts charts"
    )
    assert terminal("show", "a b/x").out == terminal("show", "x", "--folder", "a b").out != ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_resume_and_is_none_the_worse(
    terminal: Terminal, tmp_path: Path, number: signal.Signals
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
        started.send_signal(number)
        out, err = started.communicate(timeout=60)
    finally:
        started.kill()
        started.wait()
    done = RunFolder("runs/cut").rounds().height
    assert (started.returncode, err) == (130, "")
    assert out.splitlines()[-1] == f"interrupted after round {done}; resume with: coterie resume cut"
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
