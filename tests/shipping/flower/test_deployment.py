"""A real federation on 127.0.0.1: it comes up, does what it is asked, bears what is done to it, leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import BadInput
from coterie.shipping.flower import deployment as deploying
from coterie.shipping.flower import supervisor
from coterie.shipping.flower.command_line import DeploymentFailed, Scalar, format_settings
from coterie.shipping.flower.deployment import SUPERLINK, Deployment, deploy
from tests.shipping.flower.asking import printed, write_asking_app
from tests.shipping.flower.outside import LONG, about, kill, online, stop, until, wait_for_return

pytest.importorskip("flwr")


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_asking_app(tmp_path_factory.mktemp("apps") / "asking")


@dataclass(frozen=True)
class Returning:
    """A federation whose node a was stopped and whose node b was killed, with the lengths of their logs then."""

    deployment: Deployment
    since: dict[str, int]


@pytest.fixture(scope="module")
def returning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Returning]:
    """Its nodes come back: b while other tests are carried out, for that takes up to a minute."""
    nodes: dict[str, dict[str, Scalar]] = {name: {"client": name} for name in ("a", "b")}
    with deploy(tmp_path_factory.mktemp("federations") / "two", nodes, seconds=LONG) as deployment:
        yield Returning(deployment, {"b": kill(deployment, "b"), "a": stop(deployment, "a")})


@pytest.mark.slow
def test_a_stopped_node_comes_back_at_once(returning: Returning) -> None:
    logged = wait_for_return(returning.deployment, "a", returning.since["a"])
    assert "Failed to activate" not in logged
    assert "a" in online(returning.deployment)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_whatever_becomes_of_the_owner(tmp_path: Path, end: signal.Signals) -> None:
    script = f"""
import time
from pathlib import Path
from coterie.shipping.flower.deployment import deploy

with deploy(Path({str(tmp_path)!r}) / "left", {{"a": {{}}}}, seconds={LONG}) as federation:
    print("up", flush=True)
    time.sleep(600)
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    there = supervisor.family(owner.pid)
    assert len([pid for pid in there if str(tmp_path) in " ".join(supervisor.command(pid))]) >= 2
    owner.send_signal(end)
    owner.communicate(timeout=LONG)
    until(lambda: not set(there) & {pid for pid, _ in supervisor.parents()}, 60)
    assert about(str(tmp_path)) == []


@pytest.mark.medium
def test_what_does_not_come_up_in_time_is_ended_and_shown(tmp_path: Path) -> None:
    with pytest.raises(DeploymentFailed, match=r"the SuperLink does not answer; the end of .*superlink\.log"):  # noqa: SIM117
        with deploy(tmp_path / "late", {"a": {}}, seconds=0.01):
            raise AssertionError
    assert about(str(tmp_path)) == []


@pytest.mark.slow
def test_a_killed_node_and_a_killed_superlink_come_back(returning: Returning, asking: Path) -> None:
    """The node as soon as the SuperLink believes that it was away."""
    federation = returning.deployment
    wait_for_return(federation, "a", returning.since["a"])
    wait_for_return(federation, "b", returning.since["b"])
    assert online(federation) == ["a", "b"]
    since = kill(federation, SUPERLINK)
    until(lambda: federation.log(SUPERLINK).stat().st_size > since)
    until(lambda: answers(federation))
    run = federation.submit(asking, {"nodes": 2})
    assert federation.wait(run, LONG).completed
    assert {line["node"] for line in printed(federation, run)[:-1]} == set(federation.nodes.values())


def answers(federation: Deployment) -> bool:
    """Whether the SuperLink answers."""
    try:
        online(federation)
    except DeploymentFailed:
        return False
    return True


def test_names_and_folders_are_checked_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    for folder, nodes, sentence in (
        (tmp_path, {"a": {}}, "is not empty; name another"),
        (tmp_path / "new", {SUPERLINK: {}}, "that is the server's name"),
        (tmp_path / "new", {"../a": {}}, "'../a' is not possible"),
        (tmp_path / "new", {"a": {"data": "'\""}}, "cannot be told to Flower"),
    ):
        with pytest.raises(BadInput, match=sentence), deploy(folder, nodes):
            raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


@pytest.mark.medium
def test_who_gives_no_answer_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where something that it began goes on and holds its streams."""
    flwr = tmp_path / "flwr"
    flwr.write_text("#!/bin/sh\necho $$ >> begun\nsleep 5 &\nexec sleep 611\n", "utf-8")
    flwr.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deploying, "programs_folder", lambda: tmp_path)
    monkeypatch.setattr(deploying, "ANSWER_SECONDS", 0.3)
    with subprocess.Popen(["true"], text=True) as nothing:
        federation = Deployment(tmp_path, nothing)
        asked: list[tuple[str, Callable[[], object]]] = [
            ("list local --run-id 7", lambda: federation.status("7")),
            ("log 7 local --show", lambda: federation.output("7")),
            ("stop 7 local", lambda: federation.command("stop", "7", "local")),
        ]
        for words, ask in asked:
            with pytest.raises(
                DeploymentFailed, match=rf"flwr {words} has not answered after 0\.3 s; the end of .*superlink"
            ):
                ask()
    begun = {int(line) for line in (tmp_path / "begun").read_text("utf-8").split()}
    assert len(begun) == 3
    assert not begun & {pid for pid, _ in supervisor.parents()}


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
    with pytest.raises(BadInput, match="cannot be told to Flower"):
        format_settings({"fine": 1, key: value})


# ---- the supervisor alone, with processes that start at once


class Supervised:
    """The supervisor as a program, and what it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, do: str, name: str = "", **request: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, "name": name, **request}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, name: str, script: str) -> int:
        """Start a shell script; its process id."""
        how = {"command": ["sh", "-c", script], "folder": str(self.folder), "environment": dict(os.environ)}
        pid = self.ask("start", name, **how, log=str(self.folder / "log"))
        return int(pid)

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.wait(LONG) == 0
        self.process.stdout.close()


@contextmanager
def supervising(folder: Path) -> Iterator[Supervised]:
    supervised = Supervised(folder)
    try:
        yield supervised
    finally:
        supervised.end()


@pytest.mark.slow
def test_the_supervisor_ends_what_has_left_its_group_and_what_will_not_listen(tmp_path: Path) -> None:
    with supervising(tmp_path) as supervised:
        first = supervised.start(
            "first", "trap '' TERM; sleep 611 & setsid sleep 612 & (setsid sleep 613 &) ; wait; wait"
        )
        until(lambda: len(supervisor.family(supervised.process.pid)) >= 4)
        there = supervisor.family(supervised.process.pid)
        assert first in there
    assert not set(there) & {pid for pid, _ in supervisor.parents()}


def test_the_supervisor_finds_a_program_below_a_process(tmp_path: Path) -> None:
    with supervising(tmp_path) as supervised:
        supervised.start("other", "tail -f /dev/null")
        first = supervised.start("first", "sleep 611 & tail -f /dev/null; sleep 613")
        until(lambda: supervised.ask("find", "first", program="tail"))
        (found,) = supervised.ask("find", "first", program="tail")
        assert found in supervisor.family(first)
        os.kill(found, signal.SIGKILL)
        until(lambda: len(supervised.ask("find", "first", program="sleep")) == 2)
        assert found not in supervisor.family(first)
        assert supervised.ask("running") == ["other", "first"]


@pytest.mark.slow
def test_the_supervisor_restarts_what_ended(tmp_path: Path) -> None:
    with supervising(tmp_path) as supervised:
        first, second = (supervised.start(name, "sleep 611") for name in ("first", "second"))
        os.kill(first, signal.SIGKILL)
        until(lambda: supervised.ask("running") == ["second"])
        assert supervised.ask("find", "first", program="sleep") == []
        until(lambda: supervised.ask("running") == ["first", "second"], supervisor.RESTART_SECONDS + 30)
        assert first not in supervisor.family(supervised.process.pid)
        assert second in supervisor.family(supervised.process.pid)
