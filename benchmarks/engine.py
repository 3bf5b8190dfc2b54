"""How fast each engine trains, as a fraction of a plain training loop over the same samples.

    python -m benchmarks.engine [--repeats 5]

The plain loop trains one model on one core with `torch.optim.SGD`, at the same batch size, on as many samples as
all clients hold together; an engine with w workers is compared with w such loops side by side, a perfect speed-up.
A fraction above 1 is faster than that. All ways are timed in turn, several times; the table gives medians and the
spread between the slowest and the fastest repeat.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from coterie.clients import LocalUpdate, Training
from coterie.exchange import Exchange, Send
from coterie.federation.federation import Federation
from coterie.models.networks import build, channels_first
from coterie.runtime.local import EngineSpec, LocalRuntime
from coterie.runtime.workers import cores

CLIENTS, SAMPLES, EPOCHS = 40, 100, 2

CASES: list[tuple[str, str, Mapping[str, Any], tuple[int, ...], int]] = [
    ("MLP 64-32-10, batch 10", "mlp", {"hidden": [32]}, (8, 8, 1), 10),
    ("MLP 784-64-10, batch 10", "mlp", {"hidden": [64]}, (28, 28, 1), 10),
    ("LeNet 28x28, batch 20", "lenet", {}, (28, 28, 1), 20),
    ("CNN 28x28, batch 32", "cnn", {}, (28, 28, 1), 32),
    ("FedCR's CNN 32x32x3, batch 48", "fedcr-cnn", {}, (32, 32, 3), 48),
]


def federation(features: tuple[int, ...]) -> Federation:
    """Clients with random images and labels: what they learn does not matter here."""
    rng = np.random.default_rng(0)
    total = CLIENTS * SAMPLES
    inputs = torch.from_numpy(rng.normal(size=(total, *features)).astype(np.float32))
    ends = np.arange(1, CLIENTS + 1) * SAMPLES
    bounds = np.stack([ends - SAMPLES, ends, ends, ends], 1)
    names = tuple(f"client {i}" for i in range(CLIENTS))
    return Federation(
        "noise", inputs, torch.from_numpy(rng.integers(0, 10, total)), 10, bounds, names, None, None, None
    )


def plain(
    network: str, settings: Mapping[str, Any], features: tuple[int, ...], data: Federation, batch: int
) -> Callable[[], None]:
    """A training loop without clients."""
    model, _ = build(network, settings, features, 10, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def once() -> None:
        for _ in range(EPOCHS):
            order = torch.randperm(len(data.labels))
            for a in range(0, len(order), batch):
                rows = order[a : a + batch]
                optimizer.zero_grad()
                loss = cross_entropy(model(channels_first(data.inputs[rows])), data.labels[rows])
                torch.autograd.backward(loss)
                optimizer.step()

    return once


def rounds(runtime: LocalRuntime, initial: torch.Tensor) -> Callable[[], None]:
    """A whole exchange with every client, ledger and replies included."""
    clients = np.arange(CLIENTS)

    def once() -> None:
        runtime.begin(1)
        runtime.answer(Exchange(clients, LocalUpdate(), {"model": Send.same(initial, clients)}))

    return once


def measured(ways: Mapping[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each way, interleaved, after one run to warm up."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, once in ways.items():
            start = time.perf_counter()
            once()
            if repeat:
                found[name].append(time.perf_counter() - start)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    workers = cores()
    table = Table(title=f"Fraction of a plain loop's speed ({CLIENTS} clients of {SAMPLES}, {EPOCHS} epochs)")
    for column in ("network", "engine", "workers", "plain s", "engine s", "fraction", "spread"):
        table.add_column(column, justify="left" if column in ("network", "engine") else "right")
    for title, network, settings, features, batch in CASES:
        data = federation(features)
        training = Training(epochs=EPOCHS, batch_size=batch, lr=0.01)
        ways = {"plain": plain(network, settings, features, data, batch)}
        runtimes = []
        for engine in ("sequential", "batched") if network == "mlp" else ("sequential",):
            for count in sorted({1, workers}):
                spec = EngineSpec(network, settings, features, data, training, 0, engine)
                runtime = LocalRuntime(spec, data.samples, workers=count)
                runtimes.append(runtime)
                initial = torch.zeros(runtime.layout.size)
                ways[f"{engine}/{count}"] = rounds(runtime, initial)
        times = measured(ways, repeats)
        for runtime in runtimes:
            runtime.close()
            torch.set_num_threads(1)
        base = statistics.median(times.pop("plain"))
        for way, seconds in times.items():
            engine, count_ = way.split("/")
            share = [base / int(count_) / s for s in seconds]
            middle = statistics.median(seconds)
            table.add_row(
                title,
                engine,
                count_,
                f"{base:.3f}",
                f"{middle:.3f}",
                f"{base / int(count_) / middle:.2f}",
                f"{min(share):.2f} to {max(share):.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
