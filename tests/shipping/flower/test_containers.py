"""The containers' entry points as plain processes on this machine: the federation of three that compose describes.

There is no builder of images here and no proxy: nodes reach the SuperLink's own port in the place of the door's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")
pytest.importorskip("yaml", reason="PyYAML comes with the extra docs")

import yaml

from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.check import build_method
from coterie.runs.schema.experiment import Experiment
from coterie.runs.setup import load_federation
from coterie.shipping.flower.command_line import make_environment
from coterie.shipping.flower.deployment import SERVER_APP, free_ports
from coterie.shipping.flower.parts import write_parts
from coterie.shipping.flower.status import FederationStatus
from tests.shipping.flower.outside import until
from tests.shipping.flower.test_deployment import supervising

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/deploy.md"
WARDS = ("ward-1", "ward-2", "ward-3")


@dataclass(frozen=True)
class Stage:
    """What one target of the Dockerfile sets."""

    entry: list[str]
    check: list[str]
    environment: dict[str, str]


def stages() -> dict[str, Stage]:
    """The targets by name; each begins with the environment of the stage that it is made from."""
    lines = (ROOT / "docker/Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines()
    found: dict[str, Stage] = {}
    name = ""
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            source, _, name = rest.partition(" AS ")
            found[name] = Stage([], [], dict(found[source].environment) if source in found else {})
        elif word == "ENV":
            found[name].environment.update(
                {key: value for key, _, value in (p.partition("=") for p in rest.split())}
            )
        elif word == "ENTRYPOINT":
            found[name].entry[:] = json.loads(rest)
        elif word == "HEALTHCHECK":
            found[name].check[:] = json.loads(rest.partition("CMD ")[2])
    return found


def services() -> dict[str, Any]:
    """The services that compose starts, aliases and merged keys resolved."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker/compose.yml").read_text("utf-8"))["services"]
    return found


def test_every_part_is_confined() -> None:
    for name, service in services().items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == "unless-stopped", name
    assert services()["door"]["network_mode"] == "service:superlink"
    lines = (ROOT / "docker/Dockerfile").read_text("utf-8").splitlines()
    assert "USER ${UID}" in lines


def test_only_the_door_can_be_reached_and_it_is_the_page_s() -> None:
    entry = stages()["server"].entry
    assert entry[entry.index("--host") + 1] == "127.0.0.1"
    assert services()["superlink"]["ports"] == ["${PORT:-8443}:8443"]
    page = PAGE.read_text("utf-8").partition("# /etc/nginx/conf.d/federation.conf\n")[2].partition("```")[0]
    for before, after in (
        ("443 ssl", "8443 ssl"),
        ("fl.example.org", "superlink"),
        ("/var/lib/coterie/keys", "/keys"),
    ):
        page = page.replace(before, after)
    assert (ROOT / "docker/door.conf").read_text("utf-8").partition("\n")[2] == page


def test_the_server_starts_as_the_page_says() -> None:
    block = PAGE.read_text("utf-8").partition("flower-superlink")[2].partition("\n```")[0]
    assert stages()["server"].entry[1:] == block.replace("\\\n", " ").split()


@pytest.mark.slow
def test_the_federation_of_compose_trains(tmp_path: Path) -> None:
    own: dict[str, Any] = {"name": "own", "clients": 3, "features": [8, 8, 1], "classes": 10}
    experiment = Experiment(
        data=own,
        method={"name": "fesem", "clusters": 2},
        network={"name": "mlp", "hidden": [16]},
        training={"epochs": 1},
        run={"rounds": 1},
    )
    server, ports = tmp_path / "server", free_ports(4)
    port = dict(zip(("superlink", *WARDS), ports, strict=True))
    server.mkdir()
    operator = make_environment(server / "operator")

    def do(script: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", script], cwd=server, env=operator, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def here(name: str, words: list[str]) -> list[str]:
        """The words of a container for a process on this machine."""
        machine = server if name == "superlink" else tmp_path / name
        pairs = (
            ("superlink:8443", f"127.0.0.1:{port['superlink']}"),
            ("8000", str(port["superlink"])),
            ("9094", str(port[name])),
            ("/federation", str(machine)),
        )
        for before, after in pairs:
            words = [word.replace(before, after) for word in words]
        return words

    def begin(name: str) -> None:
        service = services()[name]
        stage = stages()[service["build"]["target"]]
        machine = server if name == "superlink" else tmp_path / name
        words = here(name, [*stage.entry, *service.get("command", [])])
        words += [] if name == "superlink" else ["--port", str(port[name])]
        own = {key: value for key, value in stage.environment.items() if key != "PATH"}
        environment = {**make_environment(machine), **dict(zip(own, here(name, list(own.values())), strict=True))}
        supervised.ask(
            "start", name, command=words, folder=str(machine), environment=environment, log=f"{tmp_path}/{name}.log"
        )

    def is_healthy(name: str) -> bool:
        words = here(name, stages()[services()[name]["build"]["target"]].check)
        machine = server if name == "superlink" else tmp_path / name
        return subprocess.run(words, cwd=machine, env=operator, capture_output=True, check=False).returncode == 0

    do(
        "coterie flower new wards; coterie flower keys keys --host superlink "
        + " ".join(f"--client {w}" for w in WARDS)
    )
    (server / "wards/experiment.toml").write_text(experiment.to_toml(), "utf-8")
    simulated = experiment.updated({"data": {"name": "digits", "clients": 3, "split": "iid"}})
    parts = write_parts(load_federation(simulated, build_method(simulated.method)), tmp_path / "parts")
    for ward, part in zip(WARDS, parts, strict=True):
        (tmp_path / ward).mkdir()
        (server / "keys" / ward).rename(tmp_path / ward / ward)
        shutil.copy(server / "keys/ca.crt", tmp_path / ward)
        part.rename(tmp_path / ward / "data.npz")
    for folder in (server / "superlink", server / "operator"):
        folder.mkdir(exist_ok=True)
    (server / "operator/config.toml").write_text(
        f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port["superlink"]}"\n'
        f'root-certificates = "{server}/keys/ca.crt"\n',
        "utf-8",
    )
    with supervising(tmp_path) as supervised:
        begin("superlink")
        until(lambda: is_healthy("superlink"), 120)
        for ward in WARDS:
            do(f"flwr supernode register keys/{ward}.pub local --name {ward}")
            begin(ward)
        until(lambda: all(is_healthy(ward) for ward in WARDS), 120)
        do(f"flwr run wards local --run-config \"name='first' runs='{server}/runs'\"")
        first = RunFolder(server / "runs/first")
        until(lambda: (first.path / "federation.json").exists() and first.status == "finished", 240)
        until(lambda: not supervised.ask("find", "superlink", program=SERVER_APP), 60)
    status = FederationStatus.read(first)
    assert [(member.name, member.problem) for member in status.clients] == [(ward, None) for ward in WARDS]
    assert all((tmp_path / ward / "state/model.safetensors").exists() for ward in WARDS)
