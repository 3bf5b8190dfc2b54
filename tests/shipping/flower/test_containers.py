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

from coterie.shipping.flower.command_line import make_environment
from coterie.shipping.flower.deployment import free_ports
from tests.shipping.flower.outside import beginning, until

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/deploy.md"
WARD = "ward-1"


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
def test_the_server_and_a_client_of_compose_are_healthy(tmp_path: Path) -> None:
    """Its key registered, a client is let in; what runs then is that of `test_real.py`."""
    machines = {name: tmp_path / name for name in ("superlink", WARD)}
    port = dict(zip(machines, free_ports(2), strict=True))
    server = machines["superlink"]
    (server / "superlink").mkdir(parents=True)
    (server / "operator").mkdir()
    operator = make_environment(server / "operator")

    def do(*words: str) -> bool:
        return subprocess.run(words, cwd=server, env=operator, capture_output=True, check=False).returncode == 0

    def here(name: str, words: list[str]) -> list[str]:
        """The words of a container for a process on this machine."""
        pairs = (
            ("superlink:8443", f"127.0.0.1:{port['superlink']}"),
            ("8000", str(port["superlink"])),
            ("9094", str(port[name])),
            ("/federation", str(machines[name])),
        )
        for before, after in pairs:
            words = [word.replace(before, after) for word in words]
        return words

    def stage(name: str) -> Stage:
        return stages()[services()[name]["build"]["target"]]

    def start(name: str) -> None:
        words = here(name, [*stage(name).entry, *services()[name].get("command", [])])
        words += [] if name == "superlink" else ["--port", str(port[name])]
        own = {key: value for key, value in stage(name).environment.items() if key != "PATH"}
        told = dict(zip(own, here(name, list(own.values())), strict=True))
        begin(name, words, machines[name], {**make_environment(machines[name]), **told})

    assert do("coterie", "flower", "keys", "keys", "--host", "superlink", "--client", WARD)
    machines[WARD].mkdir()
    (server / "keys" / WARD).rename(machines[WARD] / WARD)
    shutil.copy(server / "keys/ca.crt", machines[WARD])
    (server / "operator/config.toml").write_text(
        f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port["superlink"]}"\n'
        f'root-certificates = "{server}/keys/ca.crt"\n',
        "utf-8",
    )
    with beginning(tmp_path) as begin:
        start("superlink")
        until(lambda: do(*here("superlink", stage("superlink").check)), 120)
        assert do("flwr", "supernode", "register", f"keys/{WARD}.pub", "local", "--name", WARD)
        start(WARD)
        until(lambda: do(*here(WARD, stage(WARD).check)), 120)
