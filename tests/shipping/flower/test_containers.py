"""The containers: confined, reached through the door alone, and started as docs/deploy.md says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")
pytest.importorskip("yaml", reason="PyYAML comes with the extra docs")

import yaml

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/deploy.md"
WARD = "ward-1"


def find_entry(target: str) -> list[str]:
    """The command of a target of the Dockerfile."""
    stage = (ROOT / "docker/Dockerfile").read_text("utf-8").replace("\\\n", " ").partition(f" AS {target}\n")[2]
    found: list[str] = json.loads(stage.partition("ENTRYPOINT ")[2].splitlines()[0])
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
    entry = find_entry("server")
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
    assert find_entry("server")[1:] == block.replace("\\\n", " ").split()
