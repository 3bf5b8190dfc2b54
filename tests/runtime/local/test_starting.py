"""Workers start wherever Python runs: from a main without a guard, from standard input, in a daemonic process."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import coterie
from coterie.runtime.local import pool

ROOT = Path(__file__).parents[3]

PROGRAM = """
import sys
import coterie
from coterie.runtime import shared_memory
from coterie.runtime.local import pool
if "fork" not in sys.argv[1:]:
    pool.FORKS = shared_memory.NAMELESS = False
experiment = coterie.Experiment(method="fedavg", data={"clients": 5}, run={"rounds": 2, "workers": 2})
print([event.metrics["loss"] for event in coterie.rounds(experiment)])
"""


def losses() -> str:
    """What the program prints where all happens in one process."""
    experiment = coterie.Experiment(method="fedavg", data={"clients": 5}, run={"rounds": 2, "workers": 1})
    return str([event.metrics["loss"] for event in coterie.rounds(experiment)])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "standard input"])
def test_a_main_without_a_guard(how: str, tmp_path: Path) -> None:
    """Spawned workers do not run it again."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM, "utf-8")
    done = subprocess.run(
        [sys.executable, str(script) if how == "script" else "-"],
        input=PROGRAM if how == "standard input" else "",
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
    )
    assert done.stdout.splitlines()[0] == losses()
    assert "Traceback" not in done.stderr


OWN = """
import inspect
from dataclasses import dataclass
import numpy as np
import torch
from coterie.clients.rules import Answer, Objective, Rule, Train, objective, rule
from coterie.methods.exchange import Exchange, Send
from coterie.runtime import shared_memory
from coterie.runtime.local import pool
from tests.runtime.local.test_pool import runtime_of

@objective("test-of-main")
@dataclass(frozen=True)
class LossOfMain(Objective):
    def loss(self, model, batch, extras):
        inspect.getmodule(torch.zeros(1))  # as PyTorch does where it imports a part of its own late
        return batch.loss(model(batch.inputs))

@rule("test-of-main")
@dataclass(frozen=True)
class RuleOfMain(Rule):
    def run(self, me, got):
        yield Train(got.items["model"].values, objective=LossOfMain())
        return Answer(numbers={"id": float(me.id)})

if __name__ == "__main__":
    for forks in (pool.FORKS, False):
        pool.FORKS = shared_memory.NAMELESS = forks
        runtime = runtime_of()
        clients = np.arange(6)
        send = {"model": Send.same(torch.zeros(runtime.layout.size), clients)}
        runtime.begin_round(1)
        print(runtime.answer(Exchange(clients, RuleOfMain(), send)).numbers["id"].tolist())
        runtime.close()
"""


@pytest.mark.slow
def test_a_rule_and_a_loss_of_the_main_module(tmp_path: Path) -> None:
    """Spawned workers need that module then, and the guard; forked ones have it, with its file."""
    script = tmp_path / "script.py"
    script.write_text(OWN, "utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        check=True,
    )
    assert done.stdout == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]\n" * 2


def _in_a_daemon(pipe: Connection) -> None:
    experiment = coterie.Experiment(method="fedavg", data={"clients": 5}, run={"rounds": 2, "workers": 2})
    found = str([event.metrics["loss"] for event in coterie.rounds(experiment)])
    pipe.send((found, multiprocessing.current_process().daemon))


@pytest.mark.medium
@pytest.mark.skipif(not pool.FORKS, reason="there is no fork")
def test_in_a_daemonic_process() -> None:
    """As that of a pool of somebody else; it stays daemonic."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_in_a_daemon, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    assert ours.recv() == (losses(), True)
    process.join()
    assert process.exitcode == 0
