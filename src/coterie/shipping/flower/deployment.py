"""A whole Flower federation on this machine: SuperLink, SuperNodes, TLS and keys on 127.0.0.1.

with deploy(folder, {"ward-1": {"client": "ward-1"}, "ward-2": {"client": "ward-2"}}) as deployment:
    run = deployment.submit(app, {"name": "first"})
    status = deployment.wait(run, seconds=600)

Its processes run under a supervisor (see `supervisor.py`), which ends them whatever becomes of this process.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.errors import BadInput, unknown
from coterie.runtime.flower import require
from coterie.shipping.flower import keys
from coterie.shipping.flower.command_line import (
    DeploymentFailed,
    Scalar,
    format_settings,
    make_environment,
    parse_answer,
    programs_folder,
)

SUPERLINK, SUPERVISOR = "superlink", "supervisor"
"""The names of these two processes beside those of the nodes; each has a log."""

SERVER_APP = "flwr-serverapp"
"""The program that Flower runs the server's part of an app in."""

ANSWER_SECONDS = 120.0
"""For Flower's command line to answer; it computes for one or two."""

LOG_LINES = 15
"""Lines of a log that an error ends with."""


@dataclass(frozen=True)
class Status:
    """The state of a run: `pending`, `starting`, `running` or `finished:completed`, `:failed`, `:stopped`."""

    state: str
    details: str = ""

    @property
    def finished(self) -> bool:
        return self.state.startswith("finished")

    @property
    def completed(self) -> bool:
        return self.state == "finished:completed"


class Deployment:
    """A running federation; made by `deploy`. Names are those of the nodes, and `SUPERLINK`."""

    def __init__(self, folder: Path, supervisor: subprocess.Popen[str]) -> None:
        self.folder = folder
        self._supervisor = supervisor
        self.nodes: dict[str, str] = {}
        """Flower's number of each node."""

    @property
    def address(self) -> str:
        """Host and port of the SuperLink."""
        return f"127.0.0.1:{self._port}"

    def submit(self, app: Path, config: Mapping[str, Scalar] | None = None) -> str:
        """Start an app, with other values for keys of its configuration.

        Returns:
            The run's number at Flower.

        Raises:
            DeploymentFailed: Flower refuses the app; the message says why.
        """
        words = ["--run-config", format_settings(config)] if config else []
        return str(self.command("run", str(app), "local", *words)["run-id"])

    def status(self, run: str) -> Status:
        """Return the state of a run."""
        found = self.command("list", "local", "--run-id", run)["runs"][0]
        return Status(found["status"], str(found.get("status-details") or ""))

    def wait(self, run: str, seconds: float, look: Callable[[], None] = lambda: None) -> Status:
        """Wait until a run has finished, well or not; `look` is called several times a second meanwhile.

        Raises:
            DeploymentFailed: it has not after so many seconds, or Flower does not say; the message ends with the
                last lines of the SuperLink's log.
        """
        deadline, asked = time.monotonic() + seconds, 0.0
        while True:
            look()
            # Asking takes a second of computing, so it waits while the app can be seen to run.
            if time.monotonic() > asked + 2 and not self.find():
                if (status := self.status(run)).finished:
                    look()
                    return status
                asked = time.monotonic()
            if time.monotonic() > deadline:
                raise DeploymentFailed(f"run {run} has not finished after {seconds:g} s; {self._ending(SUPERLINK)}")
            time.sleep(0.3)

    def output(self, run: str) -> str:
        """Return what the server's part of an app has printed."""
        words = "log", run, "local", "--show"
        return self._read_streams(self._run_flwr(*words), words, ANSWER_SECONDS)[0]

    def _wait_for_nodes(self, seconds: float) -> None:
        """Wait until the SuperLink has accepted all nodes.

        Raises:
            DeploymentFailed: it has not; the message ends with the last lines of a node's log.
        """
        deadline = time.monotonic() + seconds
        for name, number in self.nodes.items():
            # A node logs its number once it has been accepted; asking Flower would take a second each time.
            while number not in self._read_log(name):
                if time.monotonic() > deadline:
                    raise DeploymentFailed(f"{name} is not online after {seconds:g} s; {self._ending(name)}")
                time.sleep(0.1)

    def find(self, program: str = SERVER_APP, name: str = SUPERLINK) -> list[int]:
        """Return the ids of the processes that run a program now, at a node or the SuperLink."""
        return list(self._supervise("find", name, program=program))

    def _start(self, nodes: Mapping[str, Mapping[str, Scalar]], seconds: float) -> None:
        self._settings = {name: dict(settings) for name, settings in nodes.items()}
        self._port, *node_ports = free_ports(1 + len(nodes))
        self._ports = dict(zip(nodes, node_ports, strict=True))
        for part in (SUPERLINK, "user", "logs", *(f"nodes/{name}" for name in nodes)):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        (self.folder / "user/config.toml").write_text(
            f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{self.address}"\n'
            f"root-certificates = {json.dumps(str(self._keys / keys.AUTHORITY))}\n",
            "utf-8",
        )
        self._supervise("start", SUPERLINK, **self._process(SUPERLINK))
        self._wait_for_superlink(seconds)
        # All at once, for each takes a second of computing.
        words = {name: self._registration(name) for name in nodes}
        registering = {name: self._run_flwr(*words[name], "--format", "json") for name in nodes}
        try:
            for name, process in registering.items():
                answer = parse_answer(words[name], *self._read_streams(process, words[name], seconds))
                self.nodes[name] = str(answer["node-id"])
        finally:
            for process in registering.values():
                _kill(process)
        for name in nodes:
            self._supervise("start", name, **self._process(name))
        self._wait_for_nodes(seconds)

    def _registration(self, name: str) -> tuple[str, ...]:
        return "supernode", "register", str(self._keys / f"{name}.pub"), "local", "--name", name

    @property
    def _keys(self) -> Path:
        return self.folder / "keys"

    def _process(self, name: str) -> dict[str, Any]:
        """Return how a node or the SuperLink is started, for the supervisor."""
        if name == SUPERLINK:
            home = self.folder / SUPERLINK
            words = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self._port)]
            words += ["--ssl-ca-certfile", str(self._keys / keys.AUTHORITY)]
            words += ["--ssl-certfile", str(self._keys / keys.CERTIFICATE)]
            words += ["--ssl-keyfile", str(self._keys / keys.SERVER_KEY)]
            words += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
            words += ["--database", str(home / "state.db")]  # or it would not know its nodes after a restart
        else:
            home = self.folder / "nodes" / name
            words = ["flower-supernode", "--superlink", self.address, "--port", str(self._ports[name])]
            words += ["--root-certificates", str(self._keys / keys.AUTHORITY)]
            words += ["--auth-supernode-private-key", str(self._keys / name)]
            if self._settings[name]:
                words += ["--node-config", format_settings(self._settings[name])]
        return {
            "command": [str(programs_folder() / words[0]), *words[1:]],
            "folder": str(home),
            "environment": make_environment(home),
            "log": str(self.log(name)),
        }

    def _wait_for_superlink(self, seconds: float) -> None:
        trusted = ssl.create_default_context(cafile=str(self._keys / keys.AUTHORITY))
        deadline = time.monotonic() + seconds
        while True:
            try:
                with urllib.request.urlopen(f"https://{self.address}/health", timeout=5, context=trusted):
                    return
            except (urllib.error.URLError, OSError):
                pass
            if time.monotonic() > deadline or SUPERLINK not in self._supervise("running"):
                raise DeploymentFailed(f"the SuperLink does not answer; {self._ending(SUPERLINK)}")
            time.sleep(0.1)

    def command(self, *words: str) -> dict[str, Any]:
        """Call Flower's command line and return its answer.

        Raises:
            DeploymentFailed: it refuses, or does not answer.
        """
        process = self._run_flwr(*words, "--format", "json")
        return parse_answer(words, *self._read_streams(process, words, ANSWER_SECONDS))

    def _read_streams(
        self, process: subprocess.Popen[str], words: Sequence[str], seconds: float
    ) -> tuple[str, str]:
        """Wait for Flower's command line and return what it printed on both streams.

        Raises:
            DeploymentFailed: it has not ended after so many seconds, and was killed.
        """
        try:
            return process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            problem = f"flwr {' '.join(words)} has not answered after {seconds:g} s; {self._ending(SUPERLINK)}"
            raise DeploymentFailed(problem) from None
        finally:
            _kill(process)

    def _run_flwr(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(programs_folder() / "flwr"), *words],
            env=make_environment(self.folder / "user"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _supervise(self, do: str, name: str = "", **request: Any) -> Any:
        """Send a request to the supervisor and return its answer."""
        if name and name not in (SUPERLINK, *self._settings):
            raise BadInput(unknown("node", name, [SUPERLINK, *self._settings]))
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        try:
            self._supervisor.stdin.write(json.dumps({"do": do, "name": name, **request}) + "\n")
            self._supervisor.stdin.flush()
            answer = self._supervisor.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            problem = f"the supervisor of the processes has ended, and they with it; {self._ending(SUPERVISOR)}"
            raise DeploymentFailed(problem)
        return json.loads(answer)

    def log(self, name: str) -> Path:
        """Return the file that a node or the SuperLink logs to."""
        return self.folder / "logs" / f"{name}.log"

    def _read_log(self, name: str) -> str:
        path = self.log(name)
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def _ending(self, name: str) -> str:
        """The last lines of a log, as the end of a sentence."""
        lines = self._read_log(name).splitlines()[-LOG_LINES:]
        return "\n  ".join([f"the end of {self.log(name)}:", *(lines or ["(nothing)"])])


@contextmanager
def deploy(
    folder: Path, nodes: Mapping[str, Mapping[str, Scalar]], *, seconds: float = 120.0
) -> Iterator[Deployment]:
    """Run a federation as long as the context; nothing of it runs afterwards.

    It lies in `folder`: `keys`, `logs`, and what Flower keeps, in `superlink`, `nodes/NAME` and `user`. The
    server's part of an app runs in `superlink`, a client's in `nodes/NAME`.

    Args:
        folder: new or empty.
        nodes: for each SuperNode its name, with which its key is registered, and its node configuration.
        seconds: how long the SuperLink, and then the nodes, may take to come up.

    Raises:
        BadInput: Flower is not installed, a name or a value is not possible, or the folder is not empty.
        DeploymentFailed: something does not come up; the message ends with the last lines of its log.
    """
    require("a federation on this machine")
    if sys.platform == "win32":
        raise BadInput(
            "a federation on this machine is not possible on Windows; use WSL or containers, or "
            "start its processes by the commands of docs/deploy.md"
        )
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"folder {str(folder)!r} is not empty; name another")
    if SUPERLINK in nodes:
        raise BadInput(f"node {SUPERLINK!r} is not possible; that is the server's name, take another")
    for settings in nodes.values():
        format_settings(settings)
    folder = folder.resolve()
    keys.make_keys(folder / "keys", clients=list(nodes))
    (folder / "logs").mkdir()
    with (folder / f"logs/{SUPERVISOR}.log").open("wb") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("supervisor.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        deployment = Deployment(folder, supervisor)
        deployment._start(nodes, seconds)
        yield deployment
    finally:
        _end(supervisor)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process without waiting for others that may hold its streams."""
    process.kill()
    with process:
        pass


def _end(supervisor: subprocess.Popen[str]) -> None:
    """Let the supervisor end all processes and wait for it. Where it hangs it is killed, and they die with it."""
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    with suppress(BrokenPipeError):
        supervisor.stdin.close()
    try:
        supervisor.wait(30)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()
    supervisor.stdout.close()


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
