"""A name that a file carries imports nothing, whoever reads the file, unless a person gave that very name."""

from __future__ import annotations

import multiprocessing
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.errors import BadInput
from coterie.models.networks import NETWORKS, build_network
from coterie.plugins import allow, fresh_consent
from coterie.runs.events import LoggedNotes
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema import toml
from coterie.shipping.model.trained import About, write_model
from tests.commandline import Terminal
from tests.packages import METHOD, install

TRAP = """
from pathlib import Path
Path("canary").touch()

def rmtree(*args, **keywords): ...
def net(features, outputs): ...
class Class: ...
"""
"""A module that leaves a trace when it is imported."""

OWN = (
    METHOD
    + """
import os
from shutil import rmtree
from torch import nn

class Net(nn.Sequential):
    def __init__(self, features: tuple[int, ...], outputs: int):
        super().__init__(nn.Flatten(), nn.Linear(features[0] * features[1], outputs))

def alter(generator, batch):
    return batch

class Watcher:
    def __getattr__(self, name):
        return lambda *what: None
"""
)
"""A module of a network, a method, an augmentation and an observer."""

HOSTILE: dict[str, dict[str, Any]] = {
    "os:system": {"network": {"name": "os:system", "command": "touch canary"}},
    "torch:load": {"network": {"name": "torch:load", "f": "payload.pt", "weights_only": False}},
    "shutil:rmtree": {"network": {"name": "shutil:rmtree", "path": "victim"}},
    "a module of Coterie": {"network": {"name": "coterie.plugins:import_module", "name_": "trap"}},
    "through torch.nn": {"network": {"name": "torch.nn.modules.module:torch.load", "f": "payload.pt"}},
    "a planted package": {"network": {"name": "planted"}},
    "a network": {"network": {"name": "trap:net"}},
    "a method": {"method": {"name": "trap:Class"}},
    "a task": {"task": {"name": "trap:Class"}},
    "a dataset": {"data": {"name": "trap:net"}},
    "an augmentation": {"data": {"augment": ["trap:net"]}},
    "an observer": {"run": {"observers": ["trap:Class(path='x')"]}},
    "a module to import": {"run": {"imports": ["trap"]}},
}
"""What strangers write into a file: sections of an experiment."""

TO_ALLOW = {
    "torch:load": "torch:load",
    "a module of Coterie": "coterie.plugins:import_module",
    **dict.fromkeys(("a network", "a dataset", "an augmentation"), "trap:net"),
    **dict.fromkeys(("a method", "a task", "an observer"), "trap:Class"),
    "a module to import": "trap",
}
"""What of it a person could allow."""

QUICK: dict[str, Any] = {
    "data": {"name": "digits", "clients": 3, "samples_per_client": 30},
    "method": {"name": "fedavg"},
    "run": {"rounds": 1, "workers": 1, "name": "first"},
}


class Once(LoggedNotes):
    """Interrupts a run after its first round."""

    def round(self, round: coterie.Round) -> None:
        raise KeyboardInterrupt


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("canary"),)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    with fresh_consent(None):
        return coterie.run(coterie.Experiment(**QUICK).updated({"run.folder": str(folder)})).folder


@pytest.fixture
def here(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, from which Python imports: a run, and what a stranger put beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for name in ("shutil", "trap"):
        Path(f"{name}.py").write_text(TRAP, "utf-8")
    Path("own.py").write_text(OWN, "utf-8")
    install(tmp_path, "evil", {"networks": {"planted": "trap:net"}, "datasets": {"planted-data": "trap:net"}})
    torch.save(Payload(), "payload.pt")
    Path("victim").mkdir()
    shutil.copytree(trained, "runs/first")
    yield tmp_path
    for name in ("own", "trap"):
        sys.modules.pop(name, None)


def merge(sections: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {title: {**sections.get(title, {}), **changes.get(title, {})} for title in {**sections, **changes}}


def write_experiment(changes: Mapping[str, Any]) -> None:
    Path("a.toml").write_text(toml.dump(merge(QUICK, changes)), "utf-8")


def write_comparison(changes: Mapping[str, Any]) -> None:
    sections = merge({title: table for title, table in QUICK.items() if title != "method"}, changes)
    method = sections.pop("method", {"name": "fedavg"})["name"]
    sections["run"].pop("name", None)
    parts = {f"experiment.{title}": table for title, table in sections.items()}
    text = f"methods = ['{method}']\nseeds = [0]\n{toml.dump(parts)}"
    Path("c.toml").write_text(text, "utf-8")
    Path("c").mkdir(exist_ok=True)
    Path("c/comparison.toml").write_text(text, "utf-8")


def write_run(changes: Mapping[str, Any]) -> None:
    path = Path("runs/first/experiment.toml")
    sections = toml.load(path)
    for title, table in changes.items():
        sections[title] = {**({} if "name" in table and title != "run" else sections[title]), **table}
    sections["run"]["rounds"] = 2  # else there is nothing left to do
    path.write_text(toml.dump(sections), "utf-8")


def write_file_of_model(changes: Mapping[str, Any]) -> None:
    named = dict(changes.get("network", {"name": "mlp"}))
    built = build_network("mlp", {}, (4,), 3, 0)
    about = About(named.pop("name"), named, (4,), 3, task=changes.get("task", {}))
    write_model(Path("m.safetensors"), built.initial, built.layout, about)


def in_another_thread(changes: Mapping[str, Any]) -> None:
    write_experiment(changes)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: coterie.run(coterie.Experiment.from_toml(Path("a.toml")))).result()


def in_python(changes: Mapping[str, Any]) -> None:
    write_experiment(changes)
    experiment = coterie.Experiment.from_toml(Path("a.toml"))
    coterie.run(experiment.updated({"run.seed": 1}))


def resume_in_python(changes: Mapping[str, Any]) -> None:
    write_run(changes)
    coterie.resume("runs/first")


FILES: dict[str, tuple[Callable[[Mapping[str, Any]], None], str]] = {
    "run": (write_experiment, "run a.toml -q"),
    "explain": (write_experiment, "explain a.toml"),
    "diagnose": (write_experiment, "diagnose a.toml"),
    "diagnose a run": (write_run, "diagnose first"),
    "compare": (write_comparison, "compare c.toml -q"),
    "compare a folder": (write_comparison, "compare c -q"),
    "predict": (write_run, "predict first --data digits"),
    "export": (write_run, "export first --to m.safetensors"),
    "resume": (write_run, "resume first -q"),
    "predict by a file": (write_file_of_model, "predict m.safetensors --data digits"),
    "flower new": (write_experiment, "flower new app --experiment a.toml"),
}
"""What writes a file, and the command that reads it."""

IN_PYTHON = {f.__name__: f for f in (in_python, in_another_thread, resume_in_python)}


def assert_nothing_happened() -> None:
    assert not Path("canary").exists()
    assert Path("victim").exists()
    assert "trap" not in sys.modules


HOSTILE_FILES = [
    *(("run", name) for name in HOSTILE),
    *((command, "a network") for command in (*FILES, *IN_PYTHON) if command != "run"),
    *((command, "a planted package") for command in ("compare", "predict", "predict by a file", "resume")),
    *((command, "a module to import") for command in ("explain", "compare a folder", "export", "in_python")),
    *((command, "os:system") for command in ("diagnose a run", "flower new", "in_another_thread")),
]
"""Every name in a file that is run, and every way to read a file with one name or more."""


@pytest.mark.medium
@pytest.mark.parametrize(("command", "name"), HOSTILE_FILES)
def test_a_file_makes_no_command_import_anything(
    command: str, name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = HOSTILE[name]
    if command in IN_PYTHON:
        with pytest.raises(BadInput) as caught:
            IN_PYTHON[command](changes)
        said = str(caught.value)
    else:
        write, words = FILES[command]
        write(changes)
        code, _, said = Terminal(capsys)(*shlex.split(words))
        assert code == 2, said
        assert said.startswith("coterie: ")
        assert name not in TO_ALLOW or f"coterie {words} --allow {TO_ALLOW[name]}" in said
    assert said.count("\n") <= 1, "one sentence"
    assert "Traceback" not in said
    assert_nothing_happened()


def find_accepted(names: list[str]) -> list[str]:
    """Return those of the names that this process builds a network by."""
    return [name for name in names if NETWORKS.problem(name) is None]


@pytest.mark.slow
def test_a_spawned_worker_begins_with_nothing_and_gets_what_its_work_has(here: Path) -> None:
    experiment = coterie.Experiment(**QUICK, network="own:Net")
    names = ["os:system", "shutil:rmtree", "trap:net", "own:Net"]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(find_accepted, names).result() == []
        assert pool.submit(coterie.check, experiment).result() is None
        assert pool.submit(find_accepted, names).result() == ["own:Net"]
    assert find_accepted(names) == ["own:Net"]
    assert_nothing_happened()


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [(), ("own:Net",)])
def test_a_run_resumed_from_the_page_may_import_what_watch_was_told(
    allowed: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.report.watch.control import Resumed

    Path("pickle.py").write_text(TRAP, "utf-8")  # which `python -m` would take for Python's own
    monkeypatch.setenv("COTERIE_ALLOW", "own:Net")
    own = {"network": {"name": "own:Net"}, "run": {"name": "own", "rounds": 2}}
    with fresh_consent(None):
        coterie.run(coterie.Experiment(**merge(QUICK, own)), observers=[Once()])
    resumed, run = Resumed(allowed), RunFolder("runs/own")
    resumed.resume(run)
    while resumed.is_starting(run) or run.status == "running":
        time.sleep(0.1)
    assert ("'own:Net'" in resumed.said("own")) is not bool(allowed)
    assert (run.progress().round == 2) is bool(allowed)  # type: ignore[union-attr]
    resumed.close()
    assert_nothing_happened()


# ---- what a person gave


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "run own:Mine",
        "run fedavg --network own:Net",
        'run fedavg --set data.augment=[\\"own:alter\\"] --observer own:Watcher --import own',
        "run a.toml --allow own:Net",
        "explain a.toml --allow own:Net",
        "compare fedavg 'own:Mine(power=2.0)' --network own:Net --seeds 1",
    ],
)
def test_what_is_typed_is_used_and_is_forgotten_with_the_command(
    words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_experiment({"network": {"name": "own:Net"}})
    quick = [] if "a.toml" in words else ["--data", "digits", "--clients", "3", "--rounds", "1"]
    quick += [] if words.startswith("explain") else ["-q"]
    call = Terminal(capsys)
    done = call(*shlex.split(words), *quick)
    assert done.code == 0, done.err
    assert "own:Net --allow own:Net" not in done.err
    refused = call("explain", "a.toml")
    assert (refused.code, "--allow own:Net" in refused.err) == (2, True)


@pytest.mark.slow
def test_the_command_of_a_refusal_and_that_of_an_interruption_go_on(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_experiment({"network": {"name": "own:Net"}, "run": {"rounds": 3, "name": "mine"}})
    Path("once.py").write_text(
        "from coterie import Observer\n"
        "class Once(Observer):\n"
        "    def round(self, round):\n"
        "        if round.number == 1:\n"
        "            raise KeyboardInterrupt\n"
    )
    call = Terminal(capsys)
    refused = call("run", "a.toml", "--observer", "once:Once")
    again = refused.err.rpartition("write: coterie ")[2]
    cut = call(*shlex.split(again))
    assert cut.code == 130, cut.err
    resume = shlex.split(cut.out.rpartition("coterie ")[2].strip())
    assert resume[:2] == ["resume", "mine"]
    allowed = resume[3::2]
    assert allowed == ["own:Net", "once:Once"]
    assert call("resume", "mine").code == 2
    done = call(*resume, "-q")
    assert done.code == 0, done.err
    assert call("predict", "mine", "--data", "digits", "--allow", "own:Net", "--allow", "once:Once").code == 0
    monkeypatch.setenv("COTERIE_ALLOW", "own:Net,once:Once")
    assert call("export", "mine", "--to", "m.safetensors").code == 0
    assert call("predict", "m.safetensors", "--data", "digits").code == 0
    assert call("diagnose", "mine", "--no-gains").code == 0


@pytest.mark.parametrize("how", ["name", "class", "module", "updated", "allow", "before"])
def test_what_is_passed_in_python_is_used(how: str, here: Path) -> None:
    write_experiment({"network": {"name": "own:Net"}})
    if how in ("class", "module"):
        import own  # type: ignore[import-not-found]  # in the current folder

        network = own.Net if how == "class" else own.Net((8, 8, 1), 10)
        experiment = coterie.Experiment(**{**QUICK, "network": network})
    elif how == "allow":
        experiment = coterie.Experiment.from_toml(Path("a.toml"), allow=["own:Net"])
    elif how == "updated":
        write_experiment({"network": {"name": "trap:net"}})
        experiment = coterie.Experiment.from_toml(Path("a.toml")).updated({"network.name": "own:Net"})
    else:
        experiment = coterie.Experiment(**QUICK, network="own:Net")
        if how == "before":
            experiment = coterie.Experiment.from_toml(experiment.to_toml())
    assert [event.number for event in coterie.rounds(experiment)] == [1]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("own:Net", "own:os.system"),
        ("own:os.system", "own:os.system"),
        ("own:rmtree", "own:rmtree"),
        ("own", "own:Net"),
        ("own:Net", "own:Net.__init__"),
        ("shutil:rmtree", "shutil:rmtree"),
        ("os:system", "os:system"),
    ],
)
def test_consent_is_to_one_object_of_one_module(given: str, named: str, here: Path) -> None:
    allow([given])
    with pytest.raises(BadInput):
        NETWORKS[named]
    assert_nothing_happened()


def test_layers_of_pytorch_need_nobody(here: Path) -> None:
    assert NETWORKS["torch.nn:Identity"].target.target is torch.nn.Identity  # type: ignore[attr-defined]
    for name in ("torch.nn:functional.relu", "torch.nn:Parameter", "torch.nn.init:zeros_"):
        assert NETWORKS.problem(name) is not None


@pytest.mark.slow
def test_cells_and_workers_take_nothing_of_the_current_folder_for_python_s_own(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are started by `python -c`, and may import what was given to the process that compares."""
    for name in ("pickle", "socket", "tempfile", "runpy"):
        Path(f"{name}.py").write_text(TRAP, "utf-8")
    write_comparison({"network": {"name": "own:Net"}, "data": {"augment": ["own:alter"]}})
    words = "compare c.toml -q --jobs 2 --allow own:Net --allow own:alter"
    done = Terminal(capsys)(*shlex.split(words))
    assert done.code == 0, done.err
    assert_nothing_happened()
