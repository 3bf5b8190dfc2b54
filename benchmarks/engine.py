"""How fast clients train and are evaluated, as a fraction of the machine's limit.

    python -m benchmarks.engine [--only mlp] [--repeats 5] [--json FILE] [--smoke] [--ablate]

The limit is a plain training loop over the same samples at its best: one model, `torch.optim.SGD`, no clients, at
batches of 10 to 512, once as a process a core with one thread each, once as one process with a thread a core. The
best samples a second of all these, found in the same run, is the limit. Then each path is timed in turn with the
limit: whole exchanges through the local runtime, ledger and replies included, for both engines, with one worker and
with one a core. `of the limit` is the samples a second over those of the limit, taken per core: one worker is
compared with one core's share. `plain` is the same against the plain loop at the clients' own batch size, again at
the better of processes and threads. `evaluation` is the exchange that scores the same model on all clients' test
samples, a quarter as many as they train on, which is the default split, as a share of an exchange with one epoch of
training. Medians; the spread is that of `of the limit` between the repeats.

Batch sizes are those of papers: 10 of FedAvg's and pfl-research's benchmarks, 32 of DC-PFL, 48 of FedCR. Clients
hold whole minibatches, 50 or some 100 samples.

With `--ablate` it times the engines' fast paths instead: an exchange with each and one without, in turn, on a
worker. `gain` is the seconds of a processor without the path over those with it, the medians. What modules of one's
own gain by one kernel, `python -m benchmarks.modules --clients 32` says.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from benchmarks.measuring import arguments, measured, median, ratios, write
from coterie.clients.data.federation import Federation
from coterie.clients.engine import (
    allocator,
    batched,
    chain,
    layer_gradients,
    perceptron,
)
from coterie.clients.engine.batched_steps import Descent, StackedSolver, descend
from coterie.clients.engine.dual_perceptron import Dual
from coterie.clients.rules import Evaluate, LocalUpdate, Train, Training
from coterie.methods.exchange import Exchange, Send
from coterie.models.layout import Layout
from coterie.models.networks import build, channels_first
from coterie.runtime.garbage import freeze_objects
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from coterie.runtime.threads import cores

SIZES = (10, 20, 32, 64, 128, 256, 512)
"""Batches of the plain loop."""


@dataclass(frozen=True)
class Case:
    """A network, and the clients that train it."""

    title: str
    network: str
    features: tuple[int, ...]
    batch: int
    clients: int
    samples: int = 100
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.clients * self.samples

    @property
    def engines(self) -> tuple[str, ...]:
        return ("sequential", "batched") if self.network == "mlp" else ("sequential",)


CASES = (
    Case("MLP 64-32-10, batch 10", "mlp", (8, 8, 1), 10, 400, settings={"hidden": [32]}),
    Case("MLP 784-64-10, batch 10", "mlp", (28, 28, 1), 10, 200, settings={"hidden": [64]}),
    Case("MLP 784-200-10, batch 10", "mlp", (28, 28, 1), 10, 200, settings={"hidden": [200]}),
    Case("MLP 784-200-10, batch 32", "mlp", (28, 28, 1), 32, 200, 96, settings={"hidden": [200]}),
    Case("LeNet 32x32x3, batch 32", "lenet", (32, 32, 3), 32, 60, 96),
    Case("CNN 28x28, batch 32", "cnn", (28, 28, 1), 32, 40, 96),
    Case("FedCR's CNN 32x32x3, batch 48", "fedcr-cnn", (32, 32, 3), 48, 8, 96),
    Case("simple CNN 32x32x3, batch 10", "simple-cnn", (32, 32, 3), 10, 20, 50),
)


def federation(case: Case) -> Federation:
    """Clients with random images and labels: what they learn does not matter here."""
    rng = np.random.default_rng(0)
    held = case.samples // 4
    each = case.samples + held
    inputs = torch.from_numpy(rng.normal(size=(case.clients * each, *case.features))).float()
    starts = np.arange(case.clients) * each
    ends = starts + each
    bounds = np.stack([starts, starts + case.samples, starts + case.samples, ends], 1)
    names = tuple(f"client {i}" for i in range(case.clients))
    labels = torch.from_numpy(rng.integers(0, 10, len(inputs)))
    return Federation("noise", inputs, labels, 10, bounds, names, None, None, None)


Step = Callable[[Tensor, Tensor], None]
"""Trains on the inputs and labels of a minibatch."""


def sgd(model: nn.Module, lr: float = 0.01, *, bf16: bool = False) -> Step:
    """Return a step of `torch.optim.SGD`, in bfloat16 by autocast if asked."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16) if bf16 else nullcontext():
            loss = cross_entropy(model(x), y)
        torch.autograd.backward(loss)
        optimizer.step()

    return step


def epoch(steps: Sequence[Step], inputs: Tensor, labels: Tensor, batch: int) -> None:
    """Give all samples, in a fresh order, to the steps: a minibatch to each in turn."""
    order = torch.randperm(len(labels), device=labels.device)
    for number, a in enumerate(range(0, len(labels), batch)):
        rows = order[a : a + batch]
        steps[number % len(steps)](inputs[rows], labels[rows])


def plain(case: Case, samples: int) -> Callable[[int], None]:
    """A training loop without clients: one epoch over so many samples at a batch size."""
    model, _ = build(case.network, case.settings, case.features, 10, 0)
    step = sgd(model)
    inputs, labels = torch.randn(samples, *case.features), torch.randint(10, (samples,))
    return partial(epoch, [lambda x, y: step(channels_first(x), y)], inputs, labels)


def _serve(pipe: Connection, threads: int) -> None:
    """A process of plain loops: takes a case and a number of samples, or the batch size of an epoch to run."""
    torch.set_num_threads(threads)
    once: Callable[[int], None] = print
    while (asked := pipe.recv()) is not None:
        if isinstance(asked, int):
            once(asked)
        else:
            once = plain(*asked)
        pipe.send(None)


class Loops:
    """Plain loops in processes of their own, all at work on their share of the samples at the same time."""

    def __init__(self, processes: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes = []
        self._pipes = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, threads), daemon=True)
            process.start()
            self._processes.append(process)
            self._pipes.append(ours)

    def prepare(self, case: Case) -> None:
        """Make the model and the samples of a case."""
        for pipe in self._pipes:
            pipe.send((case, case.total // len(self._pipes)))
        for pipe in self._pipes:
            pipe.recv()

    def epoch(self, batch: int) -> None:
        """One epoch over all samples of the case."""
        for pipe in self._pipes:
            pipe.send(batch)
        for pipe in self._pipes:
            pipe.recv()

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join()


@contextmanager
def loops() -> Iterator[dict[str, Loops]]:
    """The plain loops' processes: one a core, and one with a thread a core."""
    found = {"processes": Loops(cores(), 1), "threads": Loops(1, cores())}
    try:
        yield found
    finally:
        for each in found.values():
            each.close()


def best(ways: Mapping[str, Loops], case: Case, sizes: tuple[int, ...], repeats: int) -> tuple[str, int]:
    """The way and the batch size at which the plain loop is fastest."""
    found: dict[tuple[str, int], list[float]] = {}
    for repeat in range(repeats + 1):
        for name, each in ways.items():
            for size in sizes:
                start = time.perf_counter()
                each.epoch(size)
                if repeat:
                    found.setdefault((name, size), []).append(time.perf_counter() - start)
    return min(found, key=lambda way: median(found[way]))


@contextmanager
def runtime(case: Case, data: Federation, engine: str, workers: int) -> Iterator[LocalRuntime]:
    """A runtime as a run has it."""
    training = Training(epochs=1, batch_size=case.batch, lr=0.01)
    spec = EngineSpec(case.network, case.settings, case.features, data, training, 0, engine)
    made = LocalRuntime(spec, data.samples, workers=workers)
    try:
        yield made
    finally:
        made.close()


def exchanged(made: LocalRuntime, case: Case, rule: LocalUpdate | Evaluate) -> Callable[[], None]:
    """A whole exchange with every client, ledger and replies included."""
    clients, model = np.arange(case.clients), torch.zeros(made.layout.size)

    def once() -> None:
        made.begin_round(1)
        made.answer(Exchange(clients, rule, {"model": Send.same(model, clients)}))

    return once


def rows_of(case: Case, plains: Mapping[str, Loops], repeats: int) -> list[dict[str, Any]]:
    """Measure one case: a row a path."""
    data = federation(case)
    for each in plains.values():
        each.prepare(case)
    limit_way, limit_batch = best(plains, case, SIZES, 3)
    own_way, _ = best(plains, case, (case.batch,), 3)
    with ExitStack() as stack:
        ways = {
            "limit": lambda: plains[limit_way].epoch(limit_batch),
            "plain": lambda: plains[own_way].epoch(case.batch),
        }
        for engine in case.engines:
            for count in sorted({1, cores()}):
                made = stack.enter_context(runtime(case, data, engine, count))
                ways[f"{engine}/{count}"] = exchanged(made, case, LocalUpdate())
                ways[f"{engine}/{count}/evaluation"] = exchanged(made, case, Evaluate())
        stack.enter_context(freeze_objects())
        times = measured(ways, repeats)
    limit, own = times.pop("limit"), times.pop("plain")
    rows = []
    for way, seconds in times.items():
        engine, count_, *kind = way.split("/")
        if kind:
            continue
        share = cores() / int(count_)
        fraction, least, most = (r * share for r in ratios(limit, seconds))
        rows.append(
            {
                "network": case.title,
                "engine": engine,
                "workers": int(count_),
                "samples_per_second": case.total / median(seconds),
                "limit_samples_per_second": case.total / median(limit),
                "limit": f"{limit_way}, batch {limit_batch}",
                "of_limit": fraction,
                "least": least,
                "most": most,
                "of_plain": ratios(own, seconds)[0] * share,
                "evaluation": median(times[f"{way}/evaluation"]) / median(seconds),
            }
        )
    return rows


# ---- each fast path switched off in turn


@dataclass(frozen=True)
class FastPath:
    """A way in which an engine saves time, and a network that shall gain by it."""

    title: str
    case: Case
    engine: str
    off: Callable[[], AbstractContextManager[Any]]
    """Switches it off."""
    rule: LocalUpdate | Evaluate = LocalUpdate()  # noqa: RUF009  # it is frozen


def _by_solver(model: perceptron.Perceptron, layout: Layout, task: Descent, classes: int) -> Tensor:
    """Plain steps as any other solver takes them."""
    requests = [Train(row[: layout.size]) for row in task.stack]
    solver = StackedSolver(Training(), task.lr, task.stack, task.entries, requests, [None] * len(requests))
    return descend(model, layout, task, solver, model.backward)


def _drop(link: layer_gradients.Dropout, x: Tensor, own: Sequence[Tensor], use: layer_gradients.Use) -> Any:
    """Dropout as PyTorch draws it."""
    if not (link.module.training and link.module.p):
        return x, None
    scale = dropout(torch.ones_like(x), link.module.p)
    return x * scale, scale


@contextmanager
def _freed_memory_goes_back() -> Iterator[None]:
    """The C allocator as it is by itself."""
    if sys.platform.startswith("linux"):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(allocator._MMAP_THRESHOLD, 1 << 17)
        mallopt(allocator._TRIM_THRESHOLD, 1 << 17)
    yield
    allocator.retain_freed_memory.cache_clear()
    allocator.retain_freed_memory()


@contextmanager
def _models_apart() -> Iterator[None]:
    """Every client's model copied, though many are the very same."""
    with (
        patch.object(batched, "model_memories", lambda requests: [None] * len(requests)),
        patch.object(batched.Batched, "_stack_or_share", batched.Batched._stack),
    ):
        yield


SMALL = CASES[0]
MLP = CASES[1]
LENET = next(case for case in CASES if case.network == "lenet")
CNN = next(case for case in CASES if case.network == "cnn")
DIGITS = Case("CNN 8x8, batch 10", "cnn", (8, 8, 1), 10, 200)
DROPPING = Case("FedTSDP's CNN 28x28, batch 32", "fedtsdp-cnn", (28, 28, 1), 32, 10, 96)
OTHER_PRODUCT = torch.ops.mkldnn._linear_pointwise if layer_gradients.ONEDNN is None else None
"""The product that this processor does not use."""
PATHS = (
    FastPath("a first layer in its dual form", MLP, "batched", lambda: patch.object(Dual, "room", lambda *_: None)),
    FastPath("plain steps", SMALL, "batched", lambda: patch.object(batched, "descend_plainly", _by_solver)),
    FastPath("one model of many clients read once", MLP, "batched", _models_apart, Evaluate()),
    FastPath(
        "convolutions side by side, not by torch.func",
        DIGITS,
        "batched",
        lambda: patch.object(batched, "is_chain", lambda network: False),
    ),
    *(
        FastPath(
            "gradients written out", case, "sequential", lambda: patch.object(chain, "link", layer_gradients.Opaque)
        )
        for case in (*CASES[3:], DROPPING)
    ),
    *(
        FastPath(
            "products by the faster library",
            case,
            "sequential",
            lambda: patch.object(layer_gradients, "ONEDNN", OTHER_PRODUCT),
        )
        for case in (CASES[3], *CASES[5:])
    ),
    FastPath(
        "dropout by sixteen bits",
        DROPPING,
        "sequential",
        lambda: patch.object(layer_gradients.Dropout, "forward", _drop),
    ),
    *(
        FastPath("freed memory kept", case, "sequential", _freed_memory_goes_back)
        for case in (CNN, LENET, CASES[7])
    ),
)


def ablated(path: FastPath, repeats: int, smoke: bool) -> dict[str, Any]:
    """Measure an exchange with a fast path and without it: a row."""
    case = replace(path.case, clients=4) if smoke else path.case
    data = federation(case)
    with ExitStack() as stack:
        once = exchanged(stack.enter_context(runtime(case, data, path.engine, 1)), case, path.rule)
        with path.off():
            without = exchanged(stack.enter_context(runtime(case, data, path.engine, 1)), case, path.rule)
        stack.enter_context(freeze_objects())
        found: dict[str, list[float]] = {"with": [], "without": []}
        for repeat in range(repeats + 1):
            for way in found:
                with path.off() if way == "without" else ExitStack():
                    start = time.process_time()
                    (without if way == "without" else once)()
                    if repeat:
                        found[way].append(time.process_time() - start)
    gain, least, most = ratios(found["without"], found["with"])
    return {"path": path.title, "network": case.title, "gain": gain, "least": least, "most": most}


def show_ablation(only: str, repeats: int, smoke: bool) -> list[dict[str, Any]]:
    """Measure all fast paths; print each row as soon as it is there."""
    rows = []
    print(f"{'gain':>6}  {'spread':14}  {'network':32}  path: an exchange without it, in times one with it")
    for path in PATHS:
        if only.lower() in f"{path.title} {path.case.title}".lower():
            row = ablated(path, repeats, smoke)
            rows.append(row)
            spread = f"{row['least']:.2f} to {row['most']:.2f}"
            print(f"{row['gain']:6.2f}  {spread:14}  {row['network']:32}  {row['path']}", flush=True)
    return rows


def main() -> None:
    """Print the table."""
    parser = arguments("engine", __doc__, {"only": "64-32", "repeats": 1})
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose title holds this")
    parser.add_argument("--ablate", action="store_true", help="time each fast path switched off instead")
    asked = parser.read()
    torch.set_num_threads(1)
    if asked.ablate:
        write(asked.json, "engine-ablation", show_ablation(asked.only, asked.repeats, asked.smoke))
        return
    rows: list[dict[str, Any]] = []
    with loops() as plains:
        for case in CASES:
            if asked.only.lower() in case.title.lower():
                case = replace(case, clients=4) if asked.smoke else case
                rows += rows_of(case, plains, asked.repeats)
    table = Table(title=f"Training on {cores()} cores, as fractions of a plain loop's speed")
    columns = (
        "network",
        "engine",
        "workers",
        "samples/s",
        "limit",
        "of the limit",
        "spread",
        "plain",
        "evaluation",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("network", "engine", "limit") else "right")
    for row in rows:
        table.add_row(
            row["network"],
            row["engine"],
            str(row["workers"]),
            f"{row['samples_per_second']:,.0f}",
            f"{row['limit_samples_per_second']:,.0f} ({row['limit']})",
            f"{row['of_limit']:.2f}",
            f"{row['least']:.2f} to {row['most']:.2f}",
            f"{row['of_plain']:.2f}",
            f"{row['evaluation']:.2f}",
        )
    Console(width=150).print(table)
    write(asked.json, "engine", rows)


if __name__ == "__main__":
    main()
