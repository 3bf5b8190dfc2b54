"""A federation on this machine, with small programs in the place of Flower's: all that begins is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.errors import BadInput
from coterie.shipping.flower import deployment as deploying
from coterie.shipping.flower.command_line import DeploymentFailed, Scalar, format_settings
from coterie.shipping.flower.deployment import SUPERLINK, Deployment, deploy
from tests.process_table import about, command
from tests.shipping.flower.outside import until

pytest.importorskip("flwr")

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")


def program(folder: Path, name: str, script: str) -> None:
    """Write a program of Flower's name, which leaves its id and stays."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(deploying, "programs_folder", lambda: tmp_path)
    monkeypatch.setattr(deploying, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(deploying, "END_SECONDS", 0.3)
    (tmp_path / "logs").mkdir()
    return tmp_path


@linux
def test_all_is_ended_also_what_will_not_listen_and_what_it_has_started(programs: Path) -> None:
    program(programs, "flower-superlink", f"trap '' TERM; tail -f {programs}/flwr & while :; do sleep 1; done")
    program(programs, "flower-supernode", f"tail -f {programs}/flwr & exec tail -f {programs}/flwr")
    program(programs, "flwr", "exit 1")
    federation = Deployment(programs, {"a": {}})
    try:
        federation.start(SUPERLINK)
        federation.start("a")
        until(lambda: sum("tail" in command(pid)[0] for pid in about(str(programs))) == 3, 30)
    finally:
        federation.end()
    assert [each.poll() is None for each in federation.processes.values()] == [False, False]
    until(lambda: not about(str(programs)), 10)


@pytest.mark.slow
@linux
def test_nothing_is_left_of_an_owner_that_was_killed(programs: Path) -> None:
    program(programs, "flower-superlink", "echo $$ > begun; exec sleep 611")
    script = f"""
import time
from pathlib import Path
from coterie.shipping.flower import deployment

deployment.programs_folder = lambda: Path({str(programs)!r})
deployment.Deployment(Path({str(programs)!r}), {{}}).start("superlink")
time.sleep(600)
"""
    begun = programs / SUPERLINK / "begun"
    with subprocess.Popen([sys.executable, "-c", script]) as owner:
        try:
            until(lambda: begun.exists() and begun.read_text("utf-8").strip(), 60)
            there = Path(f"/proc/{begun.read_text('utf-8').strip()}")
            assert there.exists()
        finally:
            owner.kill()
    until(lambda: not there.exists(), 10)


@pytest.mark.medium
def test_what_does_not_come_up_in_time_is_ended_and_shown(tmp_path: Path) -> None:
    with pytest.raises(DeploymentFailed, match=r"SuperLink.*superlink\.log"):  # noqa: SIM117
        with deploy(tmp_path / "late", {"a": {}}, seconds=0.01):
            raise AssertionError
    until(lambda: not about(str(tmp_path)), 10)


def test_names_and_folders_are_checked_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    for folder, nodes, said in (
        (tmp_path, {"a": {}}, "not empty"),
        (tmp_path / "new", {SUPERLINK: {}}, SUPERLINK),
        (tmp_path / "new", {"../a": {}}, r"'\.\./a'"),
        (tmp_path / "new", {"a": {"data": "'\""}}, "data.*Flower"),
    ):
        with pytest.raises(BadInput, match=said), deploy(folder, nodes):
            raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_who_gives_no_answer_is_not_waited_for_for_ever(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where something that it began goes on and holds its streams."""
    monkeypatch.chdir(programs)
    program(programs, "flwr", "echo $$ > begun\nsleep 5 &\nexec sleep 611")
    with pytest.raises(DeploymentFailed, match=r"flwr list local .*0\.3 s.*log"):
        Deployment(programs, {}).status("7")
    with pytest.raises(ProcessLookupError):
        os.kill(int((programs / "begun").read_text("utf-8")), signal.SIGCONT)


@pytest.mark.parametrize(
    "settings",
    [
        {"a": 1, "b-c": -0.5, "d": True, "e": False, "f": ""},
        {
            "path": "/a b/c.npz",
            "windows": "C:\\new",
            "quoted": 'say "a"',
            "apostrophe": "it's",
            "sign": "a=b c=d # e",
        },
    ],
)
def test_flower_reads_back_what_it_is_told(settings: dict[str, Scalar]) -> None:
    from flwr.common.config import parse_config_args

    assert parse_config_args([format_settings(settings)]) == settings


@pytest.mark.parametrize(("key", "value"), [("a b", 1), ("a", "'\""), ("a", "one\ntwo"), ("", "x"), ("a", "'\\")])
def test_what_flower_could_not_read_back_is_refused(key: str, value: Scalar) -> None:
    with pytest.raises(BadInput, match="Flower"):
        format_settings({"fine": 1, key: value})
