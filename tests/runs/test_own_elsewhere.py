"""Networks, tasks and metrics of one's own in processes that begin with nothing, and on a GPU.

A script defines them as a newcomer would, in the file that is run; a module holds them where they have a path.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import numpy as np, torch
from dataclasses import dataclass
from torch import nn
import coterie
from coterie.clients.tasks import Regression, measure
from coterie.runtime import shared_memory
from coterie.runtime.local import pool
from tests.own_networks import ViT

@measure("main-bias", "bias", "how far the mean is off", "value", is_share=False, less_is_better=True)
def bias(predicted, targets):
    return float((predicted - targets).mean().abs())

@dataclass(frozen=True)
class Squares(Regression):
    metrics = ("rmse", "main-bias")
    measurable = ("rmse", "main-bias")

class Net(nn.Module):
    def __init__(self, features: tuple[int, ...], outputs: int):
        super().__init__()
        self.body = nn.Linear(features[0], 7)
        self.norm = nn.LayerNorm(7)
        self.head = nn.Linear(7, outputs)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.body(x))))

def outcome(network, task, data, **run):
    rng = np.random.default_rng(0)
    tables = {str(i): (rng.normal(size=(40, 3)), rng.poisson(2, 40).astype(float)) for i in range(4)}
    digits = {"name": "digits", "clients": 4, "split": "iid", "samples_per_client": 40}
    experiment = coterie.Experiment(
        method="fedper",
        data=digits if data == "digits" else tables,
        network=network,
        task=task,
        training={"lr": 0.02},
        run={"rounds": 1, **run},
    )
    return [(event.metrics["loss"], *sorted(event.metrics.items())[:3]) for event in coterie.rounds(experiment)]

if __name__ == "__main__":
    torch.manual_seed(0)
    elsewhere = {"spawn": {"workers": 2}, "ray": {"runtime": "ray"}, "gpu": {"engine": "gpu"}}[sys.argv[1]]
    cases = [(Net((3,), 1), "__main__:Squares", "tables"), (ViT(10), "classification", "digits")]
    for case in cases[: 1 if sys.argv[1] == "ray" else 2]:
        alone = outcome(*case, workers=1, engine="sequential")
        pool.FORKS = shared_memory.NAMELESS = False
        found = outcome(*case, **{"engine": "sequential", **elsewhere})
        if sys.argv[1] == "gpu":
            losses = [[each[0] for each in events] for events in (found, alone)]
            assert np.allclose(*losses, rtol=1e-3), (case, found, alone)
            assert outcome(*case, **elsewhere) == found, case
        else:
            assert found == alone, (case, found, alone)
        print("the same", flush=True)
"""


def run(folder: Path, where: str, cases: int = 2) -> None:
    script = folder / "script.py"
    script.write_text(SCRIPT, "utf-8")
    paths = f"{ROOT / 'src'}:{ROOT}"
    done = subprocess.run(
        [sys.executable, str(script), where],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same") == cases


@pytest.mark.slow
def test_spawned_workers_give_the_bits_of_one_process(tmp_path: Path) -> None:
    run(tmp_path, "spawn")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (coterie[ray])")
def test_ray_gives_the_bits_of_one_process(tmp_path: Path) -> None:
    run(tmp_path, "ray", 1)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here (run.engine = 'gpu')")
def test_a_gpu_gives_the_same_bits_twice_and_nearly_those_of_a_processor(tmp_path: Path) -> None:
    run(tmp_path, "gpu")
