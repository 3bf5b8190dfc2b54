"""A Ray cluster of several nodes, of which one is lost in mid-round."""

from __future__ import annotations

import importlib.util
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.rules import Answer, Client, Order, Rule, Train, Work, rule
from coterie.errors import BadInput
from coterie.grouping.exact_sums import Reduce
from coterie.methods.aggregation import Aggregation
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.runtime.local.runtime import LocalRuntime
from coterie.runtime.runtime import Runtime
from tests.runtime.kinds import ask, spec_of

MISSING = importlib.util.find_spec("ray") is None
pytestmark = [pytest.mark.medium, pytest.mark.skipif(MISSING, reason="Ray is not installed (coterie[ray])")]

CLIENTS = 20
MEAN = replace(Reduce.mean(np.arange(CLIENTS)), row_limit=float("inf"))
NO_SUMS: Mapping[str, Reduce] = {}
SPEC = spec_of(CLIENTS, engine="auto", samples=40)
STORE = 80 * 2**20
SOON = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""A lost node is missed within seconds."""


@rule("test-slow-on-ray")
@dataclass(frozen=True)
class Slow(Rule):
    """Train and keep the model; with a folder, say there on which node, and take a while."""

    folder: str = ""
    uploads, client_state = ("model",), ("model",)

    def run(self, client: Client, order: Order) -> Work:
        if self.folder:
            import ray

            (Path(self.folder) / ray.get_runtime_context().get_node_id()).touch()
            time.sleep(0.4)
        start = order.items["model"].values + client.state.get("model", torch.zeros(()))
        trained = (yield Train(start)).model
        return Answer({"model": trained}, {"norm": float(trained.norm())}, {"model": trained})


def train(runtime: Runtime, number: int, folder: str = "", reduce: Mapping[str, Reduce] = NO_SUMS) -> Replies:
    who, start = np.arange(CLIENTS), torch.linspace(-0.1, 0.1, runtime.layout.size)
    return ask(runtime, Exchange(who, Slow(folder), {"model": Send.same(start, who)}, reduce=reduce), number)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that does not work, and two nodes of a core each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        for name, value in {**SOON, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        (Path(folder) / "ray").mkdir()  # Ray writes the head's address there, and does not make the folder
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=1, object_store_memory=STORE, wait=False)
            cluster.wait_for_nodes()
            yield cluster
        finally:
            cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_node_that_is_lost_in_mid_round_costs_nobody_the_round(
    cluster: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.runtime.ray import queue
    from coterie.runtime.ray.runtime import RayRuntime

    sound = LocalRuntime(*SPEC, workers=1)
    expected = [train(sound, number) for number in (1, 2, 3, 4)]
    runtime = RayRuntime(*SPEC, address=cluster.address)
    try:
        first, lost = tmp_path / "first", cluster.list_all_nodes()[-1]
        first.mkdir()
        killing = threading.Thread(target=kill_at_work, args=(lost, first))
        killing.start()
        found = train(runtime, 1, str(first))
        killing.join()
        assert (first / lost.node_id).exists()
        assert len(list(first.iterdir())) == 2
        (note,) = runtime.notes
        assert "lost" in note
        compare(found, expected[0])

        cluster.remove_node(lost)
        compare(train(runtime, 2), expected[1])
        assert runtime.notes == []

        # Whoever comes later works too.
        third, new = tmp_path / "third", cluster.add_node(num_cpus=1, object_store_memory=STORE)
        third.mkdir()
        compare(train(runtime, 3, str(third)), expected[2])
        assert (third / new.node_id).exists()

        # Where sums are made, a node is lost with what it had added.
        fourth = tmp_path / "fourth"
        fourth.mkdir()
        killing = threading.Thread(target=kill_at_work, args=(new, fourth))
        killing.start()
        summed = train(runtime, 4, str(fourth), {"model": MEAN})
        killing.join()
        assert (fourth / new.node_id).exists()
        assert summed.sums
        compare(summed, expected[3])
        cluster.remove_node(new)
        for client in range(CLIENTS):
            assert torch.equal(runtime.states.of(client)["model"], sound.states.of(client)["model"])

        # Nor does a run wait for ever where nobody is left.
        monkeypatch.setattr(queue, "WAIT_SECONDS", 0.5)
        monkeypatch.setattr(queue, "MAX_DESERTED_SECONDS", 2.0)
        for node in cluster.list_all_nodes():
            if node is not cluster.head_node:
                cluster.remove_node(node)
        with pytest.raises(BadInput, match=r"no core.* 2 s"):
            train(runtime, 5)
    finally:
        runtime.close()
    said = capfd.readouterr()
    assert "raylet" not in said.out + said.err


def kill_at_work(node: Any, folder: Path) -> None:
    """Kill a node as soon as a client has begun on it."""
    deadline = time.monotonic() + 120
    while not (folder / node.node_id).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)


def compare(found: Replies, expected: Replies) -> None:
    assert dict(found.missing) == {}
    start = torch.zeros(1, expected.models.shape[1])
    means = [Aggregation().centres(replies, "model", MEAN, start) for replies in (found, expected)]
    assert torch.equal(*means)
    assert found.sums or torch.equal(found.models, expected.models)
    assert found.numbers["norm"].tobytes() == expected.numbers["norm"].tobytes()
    assert found.sketches is not None
    assert expected.sketches is not None
    assert torch.equal(found.sketches, expected.sketches)
