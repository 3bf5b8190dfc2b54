"""The guide to real machines: its commands, taken from the page, on one machine with a folder for each."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.setup import load_federation
from coterie.shipping.flower.command_line import make_environment
from coterie.shipping.flower.deployment import free_ports
from coterie.shipping.flower.parts import write_parts
from coterie.shipping.flower.status import FederationStatus
from tests.guide import blocks
from tests.shipping.flower.outside import Begin, beginning, until

PAGE = Path(__file__).parents[3] / "docs/deploy.md"
WARDS = ("ward-1", "ward-2")


def find_block(label: str) -> str:
    """The block of the page that a comment before it gives to this file, by its label."""
    (found,) = [b.source for b in blocks(PAGE) if b.test and b.mark == f"run by {b.test}: {label}"]
    return found


@dataclass
class Site:
    """The machines of the guide, each a folder, and what runs on them."""

    folder: Path
    start: Begin
    ports: list[int]

    @property
    def server(self) -> Path:
        return self.folder / "server"

    def written(self, label: str) -> str:
        """A block of the page, for this machine: a free port for the page's."""
        return (
            find_block(label)
            .replace("fl.example.org:443", f"127.0.0.1:{self.ports[0]}")
            .replace("8000", f"{self.ports[0]}")
        )

    def do(self, label: str, **words: str) -> str:
        """Carry out a block at the server, as one who has carried out those before in that shell; its output."""
        script = self.written(label)
        for word, instead in words.items():
            script = script.replace(word, instead)
        done = subprocess.run(
            ["sh", "-ec", script],
            cwd=self.server,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def begin(self, name: str, folder: Path, script: str) -> None:
        """Start what runs on."""
        self.start(name, ["sh", "-ec", script], folder, self.environment)

    @property
    def environment(self) -> dict[str, str]:
        return make_environment(self.server / "operator")

    def ask(self, *words: str) -> Any:
        """What Flower answers."""
        listed = subprocess.run(
            ["flwr", *words, "--format", "json"], env=self.environment, capture_output=True, text=True, check=True
        )
        return json.loads(listed.stdout)

    def wait(self, run: str, folder: RunFolder) -> str:
        """What has become of a run; Flower, who takes seconds to answer, is asked when it has ended."""
        until(lambda: folder.status != "running")
        found: list[str] = []

        def is_finished() -> bool:
            found[:] = [str(self.ask("list", "local", "--run-id", run)["runs"][0]["status"])]
            return found[0].startswith("finished")

        until(is_finished)
        return found[0]

    def keys(self) -> list[str]:
        """The numbers of the keys that may take part, in the order in which they were registered."""
        nodes: list[dict[str, str]] = self.ask("supernode", "list", "local")["nodes"]
        return [node["node-id"] for node in nodes if node["status"] != "unregistered"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "server").mkdir()
    with beginning(tmp_path) as start:
        yield Site(tmp_path, start, free_ports(1 + len(WARDS)))


def _experiment() -> Experiment:
    own: dict[str, Any] = {"name": "remote", "clients": 2, "features": [8, 8, 1], "classes": 10}
    return Experiment(
        data=own,
        method={"name": "fesem", "clusters": 2},
        network={"name": "mlp", "hidden": [16]},
        training={"epochs": 1},
        evaluation={"every": 3},
        run={"rounds": 3, "checkpoint_every": 1},
    )


def _started(output: str) -> str:
    """The number of the run that `flwr run` says it has started."""
    numbers = [word.strip(".") for word in output.split() if word.strip(".").isdigit() and len(word) > 10]
    assert len(set(numbers)) == 1, output
    return numbers[0]


@pytest.mark.slow
def test_the_guide_leads_to_a_federation_that_can_be_stopped_and_resumed(site: Site) -> None:
    site.do("keys")
    (site.server / "wards/experiment.toml").write_text(_experiment().to_toml(), "utf-8")
    simulated = _experiment().updated({"data": {"name": "digits", "clients": 2, "split": "iid"}})
    parts = write_parts(load_federation(prepare(simulated)), site.folder / "parts")

    site.begin("superlink", site.server, site.written("server"))
    trusted = ssl.create_default_context(cafile=str(site.server / "keys/ca.crt"))

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"https://127.0.0.1:{site.ports[0]}/health", context=trusted, timeout=5):
                return True
        except OSError:
            return False

    until(answers)
    site.do("operator")
    for ward, part, port in zip(WARDS, parts, site.ports[1:], strict=True):
        machine = site.folder / ward
        machine.mkdir()
        (site.server / "keys" / ward).rename(machine / ward)
        shutil.copy(site.server / "keys/ca.crt", machine)
        part.rename(machine / "data.npz")
        script = site.written("client").replace("ward-1", ward)
        site.begin(ward, machine, script.rstrip() + f" --port {port}\n")

    run = _started(site.do("submit"))
    folder = RunFolder(site.server / "runs/first")
    until(lambda: (folder.path / "federation.json").exists() and FederationStatus.read(folder).round >= 1)
    site.do("stop", NUMBER=run)
    assert site.wait(run, folder) == "finished:stopped"
    stopped_after = FederationStatus.read(folder).round
    assert 1 <= stopped_after <= 3

    run = _started(site.do("resume"))
    until(lambda: FederationStatus.read(folder).round == 3)
    assert site.wait(run, folder) == "finished:completed"
    status = FederationStatus.read(folder)
    assert (status.round, status.of) == (3, 3)
    assert [(member.name, member.online, member.problem) for member in status.clients] == [
        (ward, True, None) for ward in WARDS
    ]
    shown = site.do("watch")
    assert all(word in shown for word in ("finished", "round 3 of 3", *WARDS))
    for ward in WARDS:
        assert (site.folder / ward / "state/model.safetensors").exists()

    lost, kept = site.keys()
    site.do("replace", NUMBER=lost)
    first, second = site.keys()
    assert (first, second != lost) == (kept, True)


def test_every_long_running_command_is_in_a_unit_too() -> None:
    """The units of the page start what its blocks start, with the same options."""
    files = [b.source for b in blocks(PAGE) if b.source.startswith("# /etc/systemd")]
    units = {text.splitlines()[0]: text for text in files if "ExecStart=" in text}  # others add to one of these
    assert len(units) == 2
    for label, program in (("server", "flower-superlink"), ("client", "flower-supernode")):
        (unit,) = [text for text in units.values() if f"/{program} " in text]
        assert _options(unit, program) == _options(find_block(label), program)
        assert "Restart=always" in unit
        assert "RestartSec=10" in unit


def _options(text: str, program: str) -> list[str]:
    """The words behind a program up to the end of its line, with folders left out."""
    line = text.replace("\\\n", " ").split(program, 1)[1].splitlines()[0]
    return line.replace("$PWD", "").replace("/var/lib/coterie", "").split()
