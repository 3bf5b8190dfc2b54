"""Worker processes: shared memory that grows and is given back, and no process that outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from coterie.clients.rules import Answer, Client, Order, Rule, Work, rule
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.runtime.local import pool
from coterie.runtime.local import runtime as local_runtime
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from coterie.runtime.runtime import Runtime
from coterie.runtime.shared_memory import Arena
from tests.federated import TRAINING, planted
from tests.process_table import has_ended, until
from tests.runtime.kinds import ask

SHARED = [Path("/dev/shm"), Path(tempfile.gettempdir())]


@rule("test-mixture")
@dataclass(frozen=True)
class Mixture(Rule):
    """The sum of all received vectors, and their number; nothing is trained."""

    uploads = ("model",)

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        rows = [item.values.reshape(-1, client.layout.size) for item in order.items.values()]
        return Answer({"model": torch.cat(rows).sum(0)}, {"rows": float(sum(len(r) for r in rows))})


def arenas(pid: int | None = None) -> set[Path]:
    """The files of shared memory that a process, this one by default, has left."""
    pattern = f".coterie-{os.getpid() if pid is None else pid}-*"
    return {file for folder in SHARED if folder.is_dir() for file in folder.glob(pattern)}


def record_arenas(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[Arena]:
    """Return a list of the arenas that a module makes from now on."""
    made: list[Arena] = []

    class Recorded(Arena):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(module, "Arena", Recorded)
    return made


def scalars_of(arenas: list[Arena]) -> int:
    """How many scalars the files of the arenas have room for."""
    return sum(scalars for arena in arenas for _, scalars in arena.paths().values())


def runtime_of(
    clients: int = 6, workers: int = 2, timeout: float | None = None, kind: type[EngineSpec] = EngineSpec
) -> LocalRuntime:
    federation = planted(clients=clients, samples=20)
    spec = kind("mlp", {"hidden": "32"}, federation.features, federation, TRAINING, 0, "sequential")
    return LocalRuntime(spec, federation.samples, workers=workers, timeout=timeout)


def mixed(runtime: Runtime, send: dict[str, Send], clients: int = 6) -> Replies:
    return ask(runtime, Exchange(np.arange(clients), Mixture(), send))


def worker_processes() -> list[BaseProcess]:
    """The worker processes that this process has started, the oldest first."""
    found = [child for child in multiprocessing.active_children() if child.name == "coterie worker"]
    return sorted(found, key=lambda worker: worker.pid or 0)


def kill_workers() -> None:
    """Kill all worker processes, and wait until they are gone."""
    for worker in worker_processes():
        worker.kill()
        worker.join()


def test_the_shared_memory_grows_with_the_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = record_arenas(monkeypatch, local_runtime)
    runtime = runtime_of()
    before = arenas()
    try:
        clients = np.arange(6)
        sizes = [0]
        for rows in (1, 2, 40):
            matrix = torch.randn(rows, runtime.layout.size, generator=torch.Generator().manual_seed(rows))
            replies = mixed(runtime, {"models": Send.all(matrix, clients)})
            assert torch.equal(replies.models, matrix.sum(0).expand(6, -1))
            assert replies.numbers["rows"].tolist() == [rows] * 6
            sizes.append(scalars_of(shared))
        assert sizes == sorted(sizes)
        assert sizes[1] < sizes[3]
        # One matrix lies there once, however many clients are sent it.
        assert sizes[3] - sizes[1] < 1.25 * 40 * runtime.layout.size + 2000
        assert arenas() == before
    finally:
        runtime.close()
    assert arenas() == before


def test_different_views_of_one_memory_are_different_things() -> None:
    """One row as `[P]` and as `[1, P]`, and a matrix seen as a narrower one, share an address and nothing else."""
    runtime, alone = runtime_of(), runtime_of(workers=1)
    try:
        clients = np.arange(6)
        matrix = torch.arange(4.0 * alone.layout.size).view(4, -1)
        send = {
            "row": Send(matrix, np.zeros(6, np.int64)),
            "rows": Send(matrix, np.zeros((6, 1), np.int64)),
            "pair": Send(matrix, np.tile([0, 1], (6, 1))),
            "every other": Send(matrix[::2], np.tile([0, 1], (6, 1))),
            "nothing": Send(matrix, np.full(6, -1)),
        }
        expected = matrix[[0, 0, 0, 1, 0, 2]].sum(0)
        for some in (alone, runtime):
            replies = mixed(some, send)
            assert replies.numbers["rows"].tolist() == [6.0] * 6
            torch.testing.assert_close(replies.models, expected.expand(6, -1))
        part = alone.layout.trainable
        first = Send(matrix[:, : part.size], np.arange(6) % 4).item(0)
        second = Send(matrix, np.arange(6) % 4).item(0)
        assert first is not None
        assert second is not None
        assert (first.key == second.key) == (first.values.shape == second.values.shape)
        assert clients.tolist() == replies.clients.tolist()
    finally:
        runtime.close()


def test_a_closed_runtime_says_so() -> None:
    runtime = runtime_of()
    runtime.close()
    runtime.close()
    with pytest.raises(RuntimeError, match="closed"):
        mixed(runtime, {"model": Send.same(torch.zeros(runtime.layout.size), np.arange(6))})


@pytest.mark.slow
def test_workers_that_died_between_two_rounds_are_replaced() -> None:
    with closing(runtime_of()) as runtime:
        send = {"model": Send.same(torch.ones(runtime.layout.size), np.arange(6))}
        first = mixed(runtime, send)
        kill_workers()
        again = mixed(runtime, send)
        assert runtime.failures == []
        assert torch.equal(first.models, again.models)
        # And while the memory grows.
        kill_workers()
        matrix = torch.ones(100, runtime.layout.size)
        assert mixed(runtime, {"models": Send.all(matrix, np.arange(6))}).numbers["rows"].tolist() == [100] * 6


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is looked up in /proc")
def test_spawned_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no fork, workers start from nothing: same bits, one thread, and the data there once."""
    matrix, alone = torch.randn(30, runtime_of(workers=1).layout.size), runtime_of(workers=1)
    expected = mixed(alone, {"models": Send.all(matrix, np.arange(6))}).models
    monkeypatch.setattr(pool, "FORKS", False)
    before, federation = arenas(), planted(clients=6, samples=20)
    inputs = torch.zeros(800_000, *federation.features)  # 200 MB
    inputs[: len(federation.inputs)] = federation.inputs
    large = type(federation)(**{**vars(federation), "inputs": inputs})
    spec = EngineSpec("mlp", {"hidden": "32"}, large.features, large, TRAINING, 0, "sequential")
    runtime = LocalRuntime(spec, large.samples, workers=2)
    torch.set_num_threads(2)
    try:
        assert torch.equal(mixed(runtime, {"models": Send.all(matrix, np.arange(6))}).models, expected)
        for worker in worker_processes():
            status = Path(f"/proc/{worker.pid}/status").read_text("utf-8")
            own = {line.split()[0]: int(line.split()[1]) for line in status.splitlines() if line.startswith("Rss")}
            assert own["RssShmem:"] < 50_000  # kB: what of the data it looked at
            assert own["RssAnon:"] < 290_000  # PyTorch itself; twice 200 MB would be seen
    finally:
        torch.set_num_threads(1)
        runtime.close()
    assert arenas() == before


PARENT = """
import numpy as np, torch
from coterie.methods.exchange import Exchange, Send
from tests.runtime.local.test_pool import Asleep, runtime_of, worker_processes

if __name__ == "__main__":
    runtime = runtime_of()
    clients = np.arange(6)
    runtime.begin_round(1)
    send = {"model": Send.same(torch.zeros(runtime.layout.size), clients)}
    runtime.answer(Exchange(clients, Asleep(0.0), send))
    print(*[worker.pid for worker in worker_processes()], flush=True)
    runtime.answer(Exchange(clients, Asleep(300.0), send))
"""


@rule("test-asleep")
@dataclass(frozen=True)
class Asleep(Rule):
    """Sleep for some seconds; with `only`, that client alone."""

    seconds: float = 0.0
    only: int | None = None

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        if self.only in (None, client.id):
            time.sleep(self.seconds)
        return Answer()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL")
def test_nothing_outlives_a_killed_parent(tmp_path: Path) -> None:
    """Busy workers end by themselves, and leave no memory behind."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT, "utf-8")
    root = str(Path(__file__).parents[3])
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])},
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert not any(map(has_ended, pids))
    time.sleep(0.3)  # so that they are busy
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert until(
        lambda: all(map(has_ended, pids)), 60
    )  # a busy machine takes longer than the second it should take
    assert arenas(parent.pid) == set()
