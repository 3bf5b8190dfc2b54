"""Memory of a stateless method does not grow with the clients, and with the cohort less by sums than by rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

MEASURED = """
import multiprocessing, resource, sys
from dataclasses import replace
import numpy as np, torch
from coterie.clients.rules import Training
from coterie.clients.data.federation import Federation
from coterie.methods import Cohort, ServerView
from coterie.methods.fedavg import FedAvg
from coterie.models.origin import initialise
from coterie.runtime.runtime import drive
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime

n, m, workers, sums = map(int, sys.argv[1:])
torch.set_num_threads(1)
edges = np.arange(n) * 3 % 3000
bounds = np.stack([edges, edges + 2, edges + 2, edges + 3], axis=1)
inputs, labels = torch.randn(3003, 20), torch.randint(0, 10, (3003,))
data = Federation("made", inputs, labels, 10, bounds, tuple(map(str, range(n))), None, None, None)
spec = EngineSpec("mlp", {"hidden": "6400"}, (20,), data, Training(batch_size=2), 0, "sequential")
runtime = LocalRuntime(spec, data.samples, workers=workers)
engine = runtime.engine
server = ServerView(data.samples, runtime.layout, 0, lambda k: initialise(engine.network, runtime.layout, 0, k))
method = FedAvg()
state = method.start(server)

def memory():
    workers = [child.pid for child in multiprocessing.active_children() if child.name == "coterie worker"]
    rolled = [line for pid in ["self", *workers] for line in open(f"/proc/{pid}/smaps_rollup")]
    return sum(int(line.split()[1]) for line in rolled if line.startswith("Pss:")) / 1024

before = memory()
peak = 0.0
for number in range(1, 4):
    runtime.begin_round(number)
    def answer(ask):
        global peak
        wanted = {name: replace(reduce, row_limit=float("inf")) for name, reduce in ask.reduce.items()}
        reply = runtime.answer(replace(ask, reduce=wanted if sums else {}))
        peak = max(peak, memory())
        return reply
    clients = np.sort(np.random.default_rng(number).permutation(n)[:m])
    state = drive(method.round(state, Cohort(number, clients, server)), answer)
    runtime.states.commit()
runtime.close()
print(peak - before, runtime.layout.size * 4 / 2**20)
"""


def grown(clients: int, cohort: int, sums: bool = False) -> tuple[float, float]:
    """By how many MB rounds make all processes grow, and how many one model has."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(clients), str(cohort), "2", str(int(sums))],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"},
    )
    mb, model = (float(word) for word in done.stdout.split())
    return mb, model


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is looked up in /proc")
def test_a_stateless_method_needs_memory_for_its_cohort() -> None:
    few, model = grown(200, 50)
    many, _ = grown(20_000, 50)
    more, _ = grown(200, 200)
    assert model == pytest.approx(0.76, abs=0.05)
    assert abs(many - few) < 15  # a hundred times the clients: 100 bytes each, and what a process happens to take
    assert 0.7 * 150 * model < more - few < 1.5 * 150 * model  # one matrix of answers, not two


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is looked up in /proc")
def test_sums_need_less_than_half_the_memory_of_rows() -> None:
    few, model = grown(400, 100, sums=True)
    more, _ = grown(400, 300, sums=True)
    assert more - few < 0.5 * 200 * model
