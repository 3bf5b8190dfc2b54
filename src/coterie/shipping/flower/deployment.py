"""A whole Flower federation on this machine: SuperLink, SuperNodes, TLS and keys on 127.0.0.1.

with deploy(folder, {"ward-1": {"client": "ward-1"}, "ward-2": {"client": "ward-2"}}) as deployment:
    run = deployment.submit(app, {"name": "first"})
    status = deployment.wait(run, seconds=600)

On Linux its processes end with this one, whatever becomes of it; what they have started notices that and ends, too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.errors import BadInput
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

SUPERLINK = "superlink"
"""The name of this process beside those of the nodes."""

ANSWER_SECONDS = 120.0
"""For Flower's command line to answer; it computes for one or two."""

ASK_SECONDS = 5.0
"""Between two questions whether a run has finished."""

END_SECONDS = 5.0
"""For a process that was asked to end; after that it is killed."""

LOG_LINES = 15
"""Lines of a log that an error ends with."""

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PARENT_DEATH = 1
"""Number of Linux's prctl for the signal that a process gets when its parent dies."""


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
    """A running federation; made by `deploy`.

    Args:
        folder: where its keys are and its logs go.
        nodes: for each node, by its name, its node configuration.
    """

    def __init__(self, folder: Path, nodes: Mapping[str, Mapping[str, Scalar]]) -> None:
        self.folder = folder
        self.nodes: dict[str, str] = {}
        """Flower's number of each node, by its name."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """Those of the nodes and of `SUPERLINK`, in the order in which they were started."""
        self._settings = nodes
        self._keys = folder / "keys"
        self._port, *node_ports = free_ports(1 + len(nodes))
        self._ports = dict(zip(nodes, node_ports, strict=True))

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
            DeploymentFailed: it has not after so many seconds, or the SuperLink has ended; the message ends with
                the last lines of its log.
        """
        deadline, asked = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < deadline and self.processes[SUPERLINK].poll() is None:
            look()
            if time.monotonic() > asked + ASK_SECONDS:  # to ask takes a second of computing
                with suppress(DeploymentFailed):  # on a busy machine the SuperLink may be too late
                    if (status := self.status(run)).finished:
                        look()
                        return status
                asked = time.monotonic()
            time.sleep(0.2)
        raise DeploymentFailed(f"run {run} has not finished after {seconds:g} s; {self._ending(SUPERLINK)}")

    def output(self, run: str) -> str:
        """Return what the server's part of an app has printed."""
        return self._run_flwr("log", run, "local", "--show")[0]

    def command(self, *words: str) -> dict[str, Any]:
        """Call Flower's command line and return its answer.

        Raises:
            DeploymentFailed: it refuses, or does not answer.
        """
        return parse_answer(words, *self._run_flwr(*words, "--format", "json"))

    def log(self, name: str) -> Path:
        """Return the file that a node or the SuperLink logs to."""
        return self.folder / "logs" / f"{name}.log"

    def start(self, name: str) -> None:
        """Start a node or the SuperLink, also again after its end."""
        home, program, words = self._describe(name)
        home.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(programs_folder() / program), *words],
                cwd=home,
                env=make_environment(home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if _LIBC else None,
            )

    def start_all(self, seconds: float) -> None:
        """Start the SuperLink, register the nodes' keys there and start the nodes; wait until all are online."""
        for part in ("user", "logs"):
            (self.folder / part).mkdir()
        (self.folder / "user/config.toml").write_text(
            f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{self.address}"\n'
            f"root-certificates = {json.dumps(str(self._keys / keys.AUTHORITY))}\n",
            "utf-8",
        )
        self.start(SUPERLINK)
        self.wait_for_superlink(seconds)
        for name in self._settings:
            words = ("supernode", "register", str(self._keys / f"{name}.pub"), "local", "--name", name)
            self.nodes[name] = str(self.command(*words)["node-id"])
            self.start(name)
        for name in self._settings:
            self.wait_for_node(name, seconds)

    def wait_for_superlink(self, seconds: float) -> None:
        """Wait until the SuperLink answers."""
        trusted = ssl.create_default_context(cafile=str(self._keys / keys.AUTHORITY))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.processes[SUPERLINK].poll() is None:
            try:
                with urllib.request.urlopen(f"https://{self.address}/health", timeout=5, context=trusted):
                    return
            except OSError:
                time.sleep(0.1)
        raise DeploymentFailed(f"the SuperLink does not answer; {self._ending(SUPERLINK)}")

    def wait_for_node(self, name: str, seconds: float) -> None:
        """Wait until the SuperLink has accepted a node, which then logs its number."""
        deadline = time.monotonic() + seconds
        while self.nodes[name].encode() not in self.log(name).read_bytes():
            if time.monotonic() > deadline:
                raise DeploymentFailed(f"{name} is not online after {seconds:g} s; {self._ending(name)}")
            time.sleep(0.1)

    def end(self) -> None:
        """End all processes and what they have started: the SuperLink last, of which the nodes take leave."""
        processes = list(self.processes.values())
        for some in (processes[1:], processes[:1]):
            for process in some:
                process.terminate()
            deadline = time.monotonic() + END_SECONDS
            for process in some:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
                kill_group(process)

    def _describe(self, name: str) -> tuple[Path, str, list[str]]:
        """Return the folder of a node or the SuperLink, its program and the words behind it."""
        trusted = str(self._keys / keys.AUTHORITY)
        if name == SUPERLINK:
            home = self.folder / SUPERLINK
            words = ["--host", "127.0.0.1", "--port", str(self._port), "--ssl-ca-certfile", trusted]
            words += ["--ssl-certfile", str(self._keys / keys.CERTIFICATE)]
            words += ["--ssl-keyfile", str(self._keys / keys.SERVER_KEY)]
            words += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
            words += ["--database", str(home / "state.db")]  # or it would not know its nodes after a restart
            return home, "flower-superlink", words
        words = ["--superlink", self.address, "--port", str(self._ports[name]), "--root-certificates", trusted]
        words += ["--auth-supernode-private-key", str(self._keys / name)]
        if self._settings[name]:
            words += ["--node-config", format_settings(self._settings[name])]
        return self.folder / "nodes" / name, "flower-supernode", words

    def _run_flwr(self, *words: str) -> tuple[str, str]:
        """Call Flower's command line and return what it printed on both streams.

        Raises:
            DeploymentFailed: it has not ended in time, and was killed.
        """
        process = subprocess.Popen(
            [str(programs_folder() / "flwr"), *words],
            env=make_environment(self.folder / "user"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            return process.communicate(timeout=ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            said = f"flwr {' '.join(words)} has not answered after {ANSWER_SECONDS:g} s"
            raise DeploymentFailed(f"{said}; {self._ending(SUPERLINK)}") from None
        finally:
            process.kill()
            with process:  # closes its streams, without waiting for others that may hold them
                pass

    def _ending(self, name: str) -> str:
        """The last lines of a log, as the end of a sentence."""
        path = self.log(name)
        lines = path.read_text("utf-8", "replace").splitlines()[-LOG_LINES:] if path.exists() else []
        return "\n  ".join([f"the end of {path}:", *(lines or ["(nothing)"])])


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
    deployment = Deployment(folder, nodes)
    try:
        deployment.start_all(seconds)
        yield deployment
    finally:
        deployment.end()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was started with a session of its own, and all that it has started."""
    if sys.platform != "win32":
        with suppress(ProcessLookupError, PermissionError):  # there is nobody left
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _die_with_parent() -> None:
    if sys.platform == "linux" and _LIBC is not None:
        _LIBC.prctl(_PARENT_DEATH, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
