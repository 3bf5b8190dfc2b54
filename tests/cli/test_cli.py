"""The command line: what it lists, what it refuses, and with which code it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import coterie
from coterie.cli.list import KINDS, LISTING, gather
from coterie.methods import METHODS
from coterie.methods.method import FAMILIES
from coterie.runs.schema.experiment import Experiment
from coterie.runs.schema.names import catalog
from tests.commandline import COTERIE, Terminal
from website.methods import own_methods

PUBLIC = [
    *("BadInput", "Experiment", "Federation", "Observer", "Result", "Round", "RunFolder", "__version__", "check"),
    *("auto", "compare", "diagnose", "draw", "explain", "load", "resume", "rounds", "run"),
]
"""What a user of the package imports."""


# ---- the public names


def test_importing_the_package_is_fast_and_brings_no_torch() -> None:
    code = (
        "import time; start = time.process_time(); import coterie, sys; took = time.process_time() - start; "
        "print(took, 'torch' in sys.modules, 'pydantic' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    took, torch, pydantic = out.split()
    assert (torch, pydantic) == ("False", "False")
    assert float(took) < 0.5  # seconds of computing, however busy the machine is


@pytest.mark.medium
def test_help_is_fast_and_brings_no_torch() -> None:
    code = "import sys; from coterie.cli.app import main; main(['run', '--help']); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "False"


def test_every_public_name_is_there() -> None:
    for name in PUBLIC:
        assert getattr(coterie, name) is not None
    assert sorted(coterie.__all__) == sorted(dir(coterie)) == sorted(PUBLIC)
    assert coterie.BadInput is sys.modules["coterie.errors"].BadInput
    with pytest.raises(AttributeError, match="experimnt"):
        coterie.experimnt  # noqa: B018  (the look-up is the test)


# ---- help, version, listings


def test_the_package_is_a_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"coterie {coterie.__version__}\n"


def test_help_names_every_command_and_what_comes_next(terminal: Terminal) -> None:
    bare, asked = terminal(), terminal("--help")
    assert bare.code == asked.code == 0
    assert bare.out.split() == asked.out.split()
    for word in (
        "demo",
        "run",
        "resume",
        "show",
        "report",
        "watch",
        "compare",
        "reproduce",
        "list",
        "new",
        "diagnose",
        "explain",
        "coterie run experiment.toml",
    ):
        assert word in asked.out
    assert "--set mu=0.1" in terminal("run", "-h").out


@pytest.mark.medium
@pytest.mark.parametrize("words", [(), ("--help",), ("run", "--help"), ("list", "splits"), ("list", "methods")])
def test_what_is_said_fits_80_columns(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = terminal(*words).out.splitlines()
    assert max(map(len, lines)) <= 80
    examples = [line for line in lines if line.lstrip().startswith(("coterie run ", "coterie list "))]
    assert len({len(line) - len(line.lstrip()) for line in examples}) <= 1


def test_lists_say_what_auto_takes(terminal: Terminal) -> None:
    for kind, taken in (("networks", "har-cnn"), ("splits", "rotated(4)")):
        (line,) = re.findall(r"^auto .*(?:\n +.*)*", terminal("list", kind).out, re.MULTILINE)
        assert taken in line
    assert "auto" not in terminal("list", "datasets").out


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
    listed = dict(re.findall(r"^(?:  )?(\S+) {2,}(.+)$", out, re.MULTILINE))
    assert set(names) <= set(listed)
    assert all(len(said.split()) > 1 for said in listed.values())


def test_list_shows_settings_with_default_and_meaning(terminal: Terminal) -> None:
    out = terminal("list", "methods", "ifca").out
    assert re.search(r"^ +clusters = 4 +\w+", out, re.MULTILINE)
    assert re.search(r'^ +weights = "uniform" +\w+', out, re.MULTILINE)
    assert "samples, uniform" in " ".join(out.split())


def test_list_names_each_once_and_says_where_settings_are(terminal: Terminal) -> None:
    lines = terminal("list", "methods").out.splitlines()
    assert sorted(re.findall(r"^  (\S+) {2,}", "\n".join(lines), re.MULTILINE)) == sorted(METHODS.names())
    assert "coterie list methods NAME" in lines[-1]


def test_methods_are_listed_by_family(terminal: Terminal) -> None:
    """Each of the package's own says which one it is of, in its file."""
    found, family = {}, ""
    for line in terminal("list", "methods").out.splitlines()[:-1]:
        if not line.startswith(" "):
            family = line
        elif (name := re.match(r"^  (\S+) {2,}", line)) is not None:
            found[name[1]] = family
    assert all(found[method.name] in FAMILIES for method in own_methods())
    assert [found[name] for name in ("ifca", "pacfl", "cfl", "fedper", "fedavg")] == [
        "clustered, hard",
        "clustered, one-shot",
        "clustered, hierarchical",
        "personal layers",
        "one model",
    ]
    assert list(dict.fromkeys(found.values())) == [f for f in (*FAMILIES, "others") if f in found.values()]


def test_list_parts(terminal: Terminal) -> None:
    out = terminal("list", "parts").out
    assert re.search(r"^cluster\.kmeans +\(models, clusters\b[^)]*\)\s+\w+", out, re.MULTILINE)
    one = terminal("list", "parts", "trigger").out
    assert "hopkins" in one
    assert "kmeans" not in one


def test_what_is_listed_is_what_the_catalogues_say() -> None:
    kept = json.loads(LISTING.read_text("utf-8"))
    assert list(kept) == list(KINDS)
    for kind in KINDS:
        found = gather(kind)
        # Tests may have added entries of their own.
        assert kept[kind]["entries"].items() <= found["entries"].items(), "python -m website.methods --write"
        own = [] if kind == "parts" else [e for e in catalog(kind) if e.target.__module__.startswith("coterie.")]
        assert {entry.name for entry in own} <= kept[kind]["entries"].keys()
        assert kept[kind]["auto"] == found["auto"]
        assert all(set(names) <= set(found["families"][of]) for of, names in kept[kind]["families"].items())


@pytest.mark.medium
def test_a_listing_brings_no_torch(tmp_path: Path) -> None:
    code = "import sys; from coterie.cli.app import main\n"
    code += f"for kind in {KINDS}: main(['list', kind])\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_list_has_eight_kinds() -> None:
    assert len(KINDS) == 8


# ---- bad input: code 2, sentences on the error output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "fesm"], ["method 'fesm' .*fesem"]),
        (["run", "mixed"], [r"'mixed' .*grouped-layers.*docs/methods\.md"]),
        (["list", "methods", "fesm"], ["'fesm' .*fesem"]),
        (["list", "parts", "triger"], ["'triger' .*trigger"]),
        (["list", "method"], ["'method' .*methods"]),
        (
            ["run", "fesem", "--rounds", "0", "--seed", "x", "--participation", "2", "--engine", "tpu"],
            [
                *(r"run\.rounds = 0 .* 1$", r"run\.participation = 2 .* 1$", r"run\.seed = 'x' .*integer"),
                r"run\.engine = 'tpu' .*'auto', 'sequential', 'batched' or 'gpu'",
            ],
        ),
        (["run", "ifca", "--clients", "3"],
         [r"method\.clusters = 4 .*data\.clients = 3"]),
        (["run", "ifca", "--against", "other"], ["'other' .*'runs'"]),
        (["run", "a.toml"], [r"'a\.toml' .*coterie new a\.toml"]),
        (["run", "fesem", "--client", "my site", "--rounds", "3"], ["--client; .*--set client='my site'"]),
        (["run", "fesem", "--clusters", "3"], ["--clusters; .*--set clusters=3"]),
        (["run", "sites.csv"], [r"'sites\.csv' .*coterie diagnose sites\.csv.*--data sites\.csv"]),
        (["rnu"], ["'rnu' .*run"]),
        (["run", "experiment.yaml"], [r"'experiment\.yaml' .*coterie new experiment\.toml"]),
        (["show", "n" * 300], ["File name too long"]),
        (["show"], ["RUN"]),
        (["new", "a.txt"], [r"'a\.txt' .*\.toml"]),
        (["new", "no/a.toml"], [r"'no/a\.toml' .*No such file"]),
        (["demo", "--folder", "file"], [r"run\.folder = 'file'"]),
    ],
)  # fmt: skip
def test_bad_input(terminal: Terminal, words: list[str], said: list[str]) -> None:
    Path("file").write_text("in the way", encoding="utf-8")
    code, out, err = terminal(*words)
    assert (code, out) == (2, "")
    for line, expected in zip(err.splitlines(), said, strict=True):
        assert re.match(f"coterie: .*{expected}", line)
    assert [p.name for p in Path.cwd().iterdir()] == ["file"]


def test_momentum_without_sgd_is_refused(terminal: Terminal) -> None:
    code, _, err = terminal("run", "fedavg", "--set", "optimizer=adam", "--set", "training.momentum=0.9")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("coterie: training.momentum = 0.9 ")
    assert "training.optimizer = 'sgd'" in err


@pytest.mark.medium
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
    assert (code, "coterie run experiment.toml" in out) == (0, True)
    text = Path("experiment.toml").read_text(encoding="utf-8")
    assert Experiment.from_toml(text) == Experiment(method="ifca").resolved().updated({"data.split": "auto"})
    again = terminal("new", "experiment.toml")
    assert (again.code, again.out) == (2, "")
    assert "'experiment.toml' exists" in again.err
    assert Path("experiment.toml").read_text(encoding="utf-8") == text
