"""The Ray cluster that a run uses: one of its own on this machine, or one that is there already."""

from __future__ import annotations

import atexit
import logging
import os
import platform
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.errors import BadInput
from coterie.runtime.threads import cores

CONNECT_SECONDS = 5.0
"""Time in which an address must accept a connection."""
VERSIONS_SECONDS = 120.0
"""Time in which a node must say which versions it has."""
MAX_FOLDER_LENGTH = 28
"""Longest path of the folder of temporary files below which Ray's sockets have room for their names (107 bytes)."""
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""An empty frame of settings: Ray speaks gRPC over HTTP/2, in which both ends begin with such a frame.

Written out, for Ray has no public check of an address, does not need grpcio, and tries for minutes to join a port
where something else answers.
"""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS
"""How a client begins in HTTP/2."""
QUIET_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns that it will do so one day
}
KEY = "run.ray_address"


class Cluster:
    """A connection to Ray. Whatever was there before stays when it is closed.

    Args:
        address: `auto`, `HOST:PORT`, or None for a Ray of its own on this machine, with a worker a core. Where this
            process is connected to Ray already, None means that one.

    Raises:
        BadInput: Ray is not installed, nothing answers at the address, it has no node that could work, or a node
            has other versions of what the results depend on.
    """

    def __init__(self, address: str | None) -> None:
        if find_spec("ray") is None:
            raise BadInput("run.runtime = 'ray' needs Ray, which is not installed; install coterie[ray]")
        import ray

        self.cpus = 0
        """Cores of all nodes."""
        self.folder: str | None = None
        self._checked: set[str] = set()
        self._started = False
        try:
            if ray.is_initialized():
                _refuse_other_address(address, str(ray.get_runtime_context().gcs_address))
            else:
                self._start(address)
            self.look()
            if not self.cpus:
                raise BadInput(
                    f"the Ray cluster {KEY} = {address!r} has no core to work on; add a machine to it with: "
                    "ray start --address HOST:PORT"
                )
        except BaseException:
            self.close()
            raise

    def _start(self, address: str | None) -> None:
        import ray

        found = None if address is None else _reach(address)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        for name, value in QUIET_VARIABLES.items():
            os.environ.setdefault(name, value)
        with _own_signals():
            self._started = True
            if found is None:
                place = Path(tempfile.gettempdir())
                if len(str(place)) > MAX_FOLDER_LENGTH:
                    place = Path("/tmp")
                atexit.register(self.close)  # for whoever forgets to: Ray would leave the folder
                self.folder = tempfile.mkdtemp(prefix="ray-", dir=place)
                ray.init("local", num_cpus=cores(), include_dashboard=False, _temp_dir=self.folder, **quiet)
                _mute_nodes(True)
                return
            try:
                ray.init(found, **quiet)
            except (OSError, RuntimeError, ValueError) as error:
                first = str(error).strip().splitlines()[0]
                raise BadInput(f"{KEY} = {address!r} cannot be joined: {first}") from error
            _mute_nodes(True)

    def look(self) -> None:
        """Look which nodes are there now, and check that new ones have the versions that this process has.

        Raises:
            BadInput: one has not.
        """
        import ray

        nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) >= 1]
        self.cpus = sum(int(n["Resources"]["CPU"]) for n in nodes)
        new = {n["NodeID"]: n["NodeManagerAddress"] for n in nodes if n["NodeID"] not in self._checked}
        if new:
            self._check_versions(new)

    def _check_versions(self, nodes: Mapping[str, str]) -> None:
        """Ask nodes, by id with their addresses, for their versions."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        versions = _version_reporter()
        ask = ray.remote(num_cpus=0, max_retries=0)(versions)
        asked = {
            ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(): node
            for node in nodes
        }
        problems, ours = [], versions()
        for task, node in asked.items():
            try:
                theirs = ray.get(task, timeout=VERSIONS_SECONDS)
            except ray.exceptions.RayError as error:
                if any(n["NodeID"] == node and n["Alive"] for n in ray.nodes()):
                    first = str(error).strip().splitlines()[0]
                    problems.append(f"the node {nodes[node]} of the Ray cluster cannot work: {first}")
                continue  # else it has gone, and is not asked for anything
            problems += [
                f"the node {nodes[node]} of the Ray cluster has {name} {theirs[name] or '(none)'}; it must be {own}"
                for name, own in ours.items()
                if theirs[name] != own
            ]
            self._checked.add(node)
        if problems:
            raise BadInput(problems)

    def close(self) -> None:
        """Leave the cluster; a Ray of its own ends."""
        import ray

        atexit.unregister(self.close)

        if self._started:
            with _own_signals():
                ray.shutdown()
            _mute_nodes(False)
            self._started = False
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


def _version_reporter() -> Callable[[], dict[str, str | None]]:
    """A function that says which versions there are; it can be sent to where Coterie is not installed."""

    def versions() -> dict[str, str | None]:
        from importlib.metadata import PackageNotFoundError, version

        found: dict[str, str | None] = {"Python": ".".join(platform.python_version_tuple()[:2])}
        for name in ("coterie", "torch", "numpy"):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = None
        return found

    return versions


def _refuse_other_address(address: str | None, connected: str) -> None:
    """Refuse another address than that of the Ray that this process is connected to."""
    if address not in (None, "auto") and address != connected:
        raise BadInput(
            f"{KEY} = {address!r} is not possible: this process is connected to Ray at {connected}; "
            "leave it out to use that one"
        )


def _reach(address: str) -> str:
    """`HOST:PORT` of an address at which Ray listens, for Ray itself would go on trying for minutes."""
    from ray._private.services import canonicalize_bootstrap_address as resolved

    try:
        found = str(resolved(address))  # Ray's ways: what `auto` means, and the machine's own address for localhost
        host, _, port = found.rpartition(":")
        if not 0 < int(port) < 1 << 16:
            raise ValueError
    except ConnectionError:
        raise BadInput(f"{KEY} = 'auto' finds no Ray on this machine; start one with: ray start --head") from None
    except ValueError:
        raise BadInput(
            f"{KEY} = {address!r} is not possible; it must be auto or HOST:PORT, as in 10.0.0.1:6379"
        ) from None
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as connection:
            connection.settimeout(CONNECT_SECONDS)
            connection.sendall(PREFACE)
            answer = connection.recv(len(SETTINGS))
    except OSError as error:
        raise BadInput(
            f"{KEY} = {address!r} cannot be reached ({error.strerror or error}); "
            f"start Ray there with: ray start --head --port {port}"
        ) from None
    if answer[3:4] != SETTINGS[3:4] and os.environ.get("RAY_USE_TLS") != "1":
        raise BadInput(
            f"{KEY} = {address!r} is not possible, because what answers there is not Ray; it must be the address "
            "that ray start --head gave"
        )
    return found


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's way with SIGTERM, for Ray sets its own, and say nothing of files that Ray leaves open."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield
        finally:
            if main and before is not None:
                signal.signal(signal.SIGTERM, before)


def _mute_nodes(quiet: bool) -> None:
    """Keep what Ray says about its nodes off the terminal; there is no public way to."""
    worker = sys.modules.get("ray._private.worker")
    if worker is not None and hasattr(worker, "_worker_logs_enabled"):
        worker._worker_logs_enabled = not quiet  # type: ignore[attr-defined]  # Ray has no types here
