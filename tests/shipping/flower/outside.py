"""What befalls a running federation from outside: nodes and processes that are stopped, killed and come back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from coterie.shipping.flower import supervisor
from coterie.shipping.flower.deployment import SUPERLINK, Deployment

CLIENT_APP = "flwr-clientapp"
"""The program that Flower runs a client's part of an app in."""

LONG = 300.0
"""Seconds that a machine with much else to do may take for anything."""


def until(condition: Callable[[], object], seconds: float = LONG) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def alive(pid: int) -> bool:
    return pid in {each for each, _ in supervisor.parents()}


def about(word: str) -> list[int]:
    """Processes whose command lines have a word."""
    return [
        pid for pid, _ in supervisor.parents() if pid != os.getpid() and word in " ".join(supervisor.command(pid))
    ]


def main_process(deployment: Deployment, name: str) -> int:
    """The process of a node or of the SuperLink, above all that it runs."""
    return deployment.find("flower-superlink" if name == SUPERLINK else "flower-supernode", name)[0]


def stop(deployment: Deployment, name: str) -> int:
    """Ask a node or the SuperLink to end, and wait until it has; the length of its log then."""
    pid = main_process(deployment, name)
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))
    return deployment.log(name).stat().st_size


def kill(deployment: Deployment, name: str) -> int:
    """Kill a node or the SuperLink as a power cut would, with all that it runs; the length of its log then."""
    pid = main_process(deployment, name)
    for each in (pid, *supervisor.family(pid)):
        os.kill(each, signal.SIGKILL)
    until(lambda: not alive(pid))
    return deployment.log(name).stat().st_size


def wait_for_return(deployment: Deployment, name: str, since: int) -> str:
    """Wait until the SuperLink has accepted a node again; what the node has logged since."""

    def logged() -> str:
        return deployment.log(name).read_bytes()[since:].decode("utf-8", "replace")

    until(lambda: deployment.nodes[name] in logged())
    return logged()


def online(deployment: Deployment) -> list[str]:
    """The nodes that the SuperLink takes to be there; one that was killed is missed after up to 60 s."""
    listed = deployment.command("supernode", "list", "local")["nodes"]
    there = {node["node-id"] for node in listed if node["status"] == "online"}
    return sorted(name for name, number in deployment.nodes.items() if number in there)
