"""What every driver shares: the workload as files, the network in plain PyTorch, and the pace of the rounds.

Nothing of Coterie is imported here, so that it runs in an environment of a simulator with NumPy and PyTorch alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import Tensor, nn

SETTINGS = "workload.json"


@dataclass(frozen=True)
class Workload:
    """A federation of equal clients and how it is trained: FedAvg, SGD, one batch size."""

    name: str
    network: str
    clients: int
    cohort: int
    """Clients that train in a round, drawn anew each time."""
    samples: int
    """Training samples of each client."""
    parameters: int
    """Trainable numbers of the network."""
    features: int
    """Numbers in a sample."""
    classes: int
    batch_size: int
    lr: float
    epochs: int
    seed: int

    def write(self, folder: Path, arrays: dict[str, np.ndarray]) -> None:
        """Put the workload where `read` and `load` find it."""
        (folder / SETTINGS).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)

    @classmethod
    def read(cls, folder: Path) -> Workload:
        """The workload of a folder."""
        return cls(**json.loads((folder / SETTINGS).read_text(encoding="utf-8")))


def load(folder: Path, name: str, mapped: bool = False) -> Tensor:
    """An array: `train_x` `[n, s, *features]`, `train_y` `[n, s]`, `test_x` `[t, *features]` or `test_y` `[t]`.

    Images come as `[…, channels, height, width]`. With `mapped` the file is not read before it is used.
    """
    array = np.load(folder / f"{name}.npy", mmap_mode="c" if mapped else None)
    return torch.from_numpy(array)


def network(work: Workload) -> nn.Sequential:
    """The workload's network as anybody would write it: pfl-research's CNN for 3x32x32, or a perceptron.

    Raises:
        ValueError: it is another one.
    """
    if work.network == "simple-cnn":
        return nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, work.classes),
        )
    if work.network == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(work.features, 64), nn.ReLU(), nn.Linear(64, work.classes))
    raise ValueError(f"network {work.network!r} is not one of simple-cnn, mlp")


def parameters(model: nn.Module) -> int:
    """How many trainable numbers a network has."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class Pace:
    """Does one round for each line on standard input, and says on standard output what it was.

    Whatever else is printed goes to standard error.
    """

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._started = 0.0

    def begin(self, parameters: int) -> None:
        """All is built: wait for the first round."""
        self._say({"parameters": parameters})
        self._wait()

    def end(self, samples: int, loss: float | Callable[[], float], *, last: bool = False) -> None:
        """A round is complete.

        Args:
            samples: training samples that the clients went through.
            loss: mean loss on all clients' held-out samples after the round; a function is called when the clock
                has stopped.
            last: no round follows, and nobody will say go.
        """
        seconds = time.perf_counter() - self._started
        found = loss() if callable(loss) else loss
        self._say({"seconds": seconds, "samples": int(samples), "loss": float(found)})
        if not last:
            self._wait()

    def _say(self, what: dict[str, float]) -> None:
        self._out.write(json.dumps(what) + "\n")
        self._out.flush()

    def _wait(self) -> None:
        if not sys.stdin.readline():
            raise SystemExit("nobody is there any more to say go")
        self._started = time.perf_counter()


def arguments() -> argparse.Namespace:
    """The command line of a driver."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="a folder that Workload.write made")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="PyTorch's threads in each process")
    parser.add_argument("--precision", default="fp32")
    return parser.parse_args()
