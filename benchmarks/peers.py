"""How fast Coterie is beside other simulators, on the same work: complete rounds, timed in turn.

    python -m benchmarks.peers --environments FOLDER [--workloads W1 W2] [--ways coterie pfl] [--json FILE]
                              [--smoke]

The workloads are FedAvg with one local epoch of SGD at batch 10. W1 is pfl-research's CIFAR-10 benchmark: 50
clients of 50 images a round, its CNN of 1,626,442 parameters with dropout, learning rate 0.1. W2 has 100 clients of
100 Fashion-MNIST images, all of them in every round, and a perceptron 784-64-10. In both, every round ends with the
evaluation of the new model on all clients' held-out samples. Coterie stores images as bytes and makes numbers of
them in the rounds; the others are handed the same numbers. As in a run, short rounds follow each other: of W2 each
way does five before its turn ends, and their mean counts. Coterie runs as it always does: metrics of every client,
ledger and tables are written in every round, checkpoints as often as takes a twentieth of the time.
`benchmarks/drivers` says what the others do.

The other simulators are looked for in FOLDER/pfl, FOLDER/flower and FOLDER/fluke, each a virtual environment of its
own; whichever is missing is left out. They are made like this:

    python -m venv FOLDER/pfl    && FOLDER/pfl/bin/pip install torch==2.13.0 "pfl[pytorch]==0.6.*"
    python -m venv FOLDER/flower && FOLDER/flower/bin/pip install torch==2.13.0 "flwr[simulation]==1.41.0"
    python -m venv FOLDER/fluke  && FOLDER/fluke/bin/pip install torch==2.13.0 fluke-fl

Each simulator first tries its settings (processes and PyTorch's threads) for a round or two, and takes part with
the fastest; pfl also with the fastest of those in one process, which is how it is run where nobody asks for more.
`plain` is one model trained by a plain loop on as many samples, without clients. Memory is the peak of what all
processes of a way hold together (shared memory counted once), in a run of its own with nothing beside it. Where the
time of Coterie's round goes is measured in a run of its own, too, as `benchmarks.methods` does.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import coterie
from benchmarks.drivers.workload import Workload
from benchmarks.measuring import arguments, median, ratios, write
from benchmarks.memory import Held, held, require_proc, tree
from benchmarks.methods import PARTS, splits
from benchmarks.smoke import shrink
from coterie.models.networks import build as build_network
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import prepare
from coterie.runs.schema.refusals import cohort_size
from coterie.runs.setup import load_federation
from coterie.runtime.garbage import freeze_objects
from coterie.runtime.threads import cores, one_thread

ROOT = Path(__file__).parents[1]
WARM = 1
"""Rounds that are not counted."""
IN_A_ROW = {"W2": 5}
"""How many rounds of a workload a way does in its turn; of others one."""
LEARNT = 0.99
"""Share of the loss of guessing below which a model has learnt: CIFAR-10's is there after three rounds of W1."""

WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "W1": (
        "CIFAR-10, 50 of 333 clients a round, 50 images each, CNN with 1,626,442 parameters",
        {
            "data": {"name": "cifar10", "clients": 333, "samples_per_client": 60, "test": 1 / 6},
            "network": {"name": "simple-cnn"},
            "run": {"participation": 50 / 333},
        },
    ),
    "W2": (
        "Fashion-MNIST, all of 100 clients a round, 100 images each, perceptron 784-64-10 with 50,890 parameters",
        {
            "data": {"name": "fashion-mnist", "clients": 100, "samples_per_client": 125, "test": 0.2},
            "network": {"name": "mlp", "hidden": [64]},
            "run": {"participation": 1.0},
        },
    ),
}


@dataclass(frozen=True)
class Way:
    """A driver, the environment that runs it, and the settings between which it may choose."""

    driver: str
    environment: str | None = None
    settings: tuple[tuple[int, int], ...] = ((1, 1), (1, cores()))
    """(processes, threads in each): one process with one thread or one a core."""
    precision: str = "fp32"

    def python(self, environments: Path | None) -> Path | None:
        """The Python that runs the driver; None where its environment is missing."""
        if self.environment is None:
            return Path(sys.executable)
        found = None if environments is None else environments / self.environment / "bin" / "python"
        return found.absolute() if found is not None and found.exists() else None


A_CORE_EACH = (cores(), 1)
WAYS = {
    "coterie": Way("coterie_driver", settings=(A_CORE_EACH,)),
    "coterie bf16": Way("coterie_driver", settings=(A_CORE_EACH,), precision="bf16"),
    "plain": Way("plain_driver"),
    "pfl": Way("pfl_driver", "pfl", (*Way.settings, A_CORE_EACH)),
    "pfl, one process": Way("pfl_driver", "pfl"),
    "flower": Way("flower_driver", "flower", (A_CORE_EACH, (1, cores()))),
    "fluke": Way("fluke_driver", "fluke"),
}
SMOKE = {"repeats": 1, "workloads": ["W2"], "ways": [way for way in WAYS if way != "coterie bf16"]}


def experiment(sections: Mapping[str, Any]) -> coterie.Experiment:
    """A workload as an experiment of Coterie."""
    return coterie.Experiment(
        data={"split": "iid", "validation": 0.0, **sections["data"]},
        network=sections["network"],
        method="fedavg",
        training={"epochs": 1, "batch_size": 10, "lr": 0.1},
        run=sections["run"],
    )


def prepared(name: str, whole: coterie.Experiment, folder: Path) -> Workload:
    """Write the clients of an experiment into `folder`, the very numbers that Coterie trains and evaluates on.

    Coterie stores images as bytes and makes numbers of them as it runs. The others get the numbers.
    """
    training, run = whole.training, whole.run
    changes = {"run.folder": str(folder / "runs"), "run.name": None}
    (folder / "experiment.toml").write_text(whole.updated(changes).to_toml(), encoding="utf-8")
    clients = load_federation(prepare(whole))
    name_, settings = whole.network.name, whole.network.settings
    _, layout = build_network(name_, settings, clients.features, clients.classes, run.seed)
    work = Workload(
        name=name,
        network=name_,
        clients=clients.n,
        cohort=cohort_size(clients.n, run.participation),
        samples=int(clients.samples[0]),
        parameters=layout.trainable.size,
        features=int(np.prod(clients.features)),
        classes=clients.classes,
        batch_size=training.batch_size,
        lr=training.lr,
        epochs=training.epochs,
        seed=run.seed,
    )
    parts: dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        x, y = zip(*(clients.slice(i, split) for i in range(clients.n)), strict=True)
        numbers = np.stack([clients.to_numbers(own).numpy() for own in x])
        parts[f"{split}_x"] = np.ascontiguousarray(np.moveaxis(numbers, -1, 2))  # channels first
        parts[f"{split}_y"] = np.stack(y)
    for name_ in ("test_x", "test_y"):
        parts[name_] = parts[name_].reshape(-1, *parts[name_].shape[2:])
    work.write(folder, parts)
    return work


@dataclass
class Driver:
    """A driver at work: a process that does a round whenever it is told to."""

    process: subprocess.Popen[str]
    log: Path
    parameters: int = 0
    rounds: list[dict[str, float]] = field(default_factory=list)

    def round(self) -> dict[str, float]:
        """One round: its seconds, the samples trained and the loss afterwards.

        Raises:
            RuntimeError: the driver has ended.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: what is heard next is nothing, and says so
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        self.rounds.append(self.heard())
        return self.rounds[-1]

    def heard(self) -> dict[str, float]:
        """The next thing the driver says.

        Raises:
            RuntimeError: it has ended.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.log.read_text("utf-8").split("\n")
            last = next((text.strip() for text in reversed(said) if text.strip()), "nothing")
            raise RuntimeError(f"{self.log.stem} has ended with {self.process.wait()}; the last it said is: {last}")
        found: dict[str, float] = json.loads(line)
        return found

    def close(self) -> None:
        """Let the driver end: nothing more is asked."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # what a dead one was told last is still on its way
            self.process.stdin.close()


@contextmanager
def started(way: Way, python: Path, folder: Path, rounds: int, setting: tuple[int, int]) -> Iterator[Driver]:
    """A driver that is ready for its first round; it and all it started are gone afterwards."""
    log = folder / f"{way.driver}.log"
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": str(setting[1]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [
        str(python), "-m", f"benchmarks.drivers.{way.driver}", str(folder), "--rounds", str(rounds),
        "--processes", str(setting[0]), "--threads", str(setting[1]), "--precision", way.precision,
    ]  # fmt: skip
    with (
        log.open("a", encoding="utf-8") as errors,
        subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **quiet}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        ) as process,
    ):  # fmt: skip
        driver = Driver(process, log)
        try:
            driver.parameters = int(driver.heard()["parameters"])
            yield driver
        finally:
            driver.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                for one in reversed(tree(process.pid)):
                    with suppress(ProcessLookupError):
                        os.kill(one, signal.SIGKILL)


def peak(way: Way, python: Path, folder: Path, setting: tuple[int, int]) -> Held:
    """The most that a way ever holds in a run of its own, from its start to the end of a few rounds."""
    most, done = Held(0, 0, ()), threading.Event()
    with started(way, python, folder, WARM + 1, setting) as driver:

        def watch() -> None:
            nonlocal most
            over = False
            while not over:
                over = done.wait(0.05)
                now = held(driver.process.pid)  # once more when all is done, however quick that was
                most = max(most, now, key=lambda some: some.total)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for _ in range(WARM + 1):
                driver.round()
        finally:
            done.set()
            watcher.join()
    return most


def split_round(whole: coterie.Experiment, rounds: int) -> dict[str, float]:
    """Seconds of each part of a round of Coterie, the medians of some rounds after the first."""
    whole = whole.updated({"run.rounds": WARM + rounds + 1, "run.workers": cores(), "run.checkpoint_every": 1})
    with ExitStack() as stack:
        folder = RunFolder(stack.enter_context(tempfile.TemporaryDirectory()))
        loop = stack.enter_context(closing(splits(whole, folder)))
        stack.enter_context(freeze_objects())
        stack.enter_context(one_thread(blas=True))
        found = [next(loop) for _ in range(WARM + rounds)][WARM:]
    return {part: median([getattr(one, part) for one in found]) for part in PARTS}


def fastest(way: Way, python: Path, folder: Path) -> tuple[int, int]:
    """The setting with which a way did its best round of a few."""
    if len(way.settings) == 1:
        return way.settings[0]
    found = {}
    for setting in way.settings:
        with started(way, python, folder, WARM + 1, setting) as driver:
            found[setting] = min(driver.round()["seconds"] for _ in range(WARM + 1))
    return min(found, key=lambda setting: found[setting])


def compared(
    name: str, whole: coterie.Experiment, ways: Mapping[str, Path], repeats: int, *, tune: bool = True
) -> list[dict[str, Any]]:
    """One row a way: seconds of a round, their ratio to Coterie's, memory, and the work that was done.

    Args:
        name: of the workload.
        whole: what is trained.
        ways: the Python of each way.
        repeats: turns that are timed.
        tune: take part with the fastest of a way's settings, else with one process and one thread.

    Raises:
        RuntimeError: a driver ended, or did other work than the others.
    """
    with tempfile.TemporaryDirectory(prefix="peers-") as place:
        folder = Path(place)
        work = prepared(name, whole, folder)
        settings = {way: fastest(WAYS[way], python, folder) if tune else (1, 1) for way, python in ways.items()}
        with ExitStack() as stack:
            row = IN_A_ROW.get(name, 1)
            drivers = {
                way: stack.enter_context(started(WAYS[way], python, folder, WARM + repeats * row, settings[way]))
                for way, python in ways.items()
            }
            for turn in range(WARM + repeats):
                for driver in drivers.values():
                    for _ in range(1 if turn < WARM else row):
                        driver.round()
        memory = {way: peak(WAYS[way], python, folder, settings[way]) for way, python in ways.items()}
    times = {
        way: np.reshape([r["seconds"] for r in driver.rounds[WARM:]], (-1, row)).mean(1).tolist()
        for way, driver in drivers.items()
    }
    rows = []
    for way, driver in drivers.items():
        check_work(work, way, driver)
        middle, least, most = ratios(times[way], times.get("coterie", times[way]))
        rows.append(
            {
                "workload": name,
                "way": way,
                "processes": settings[way][0],
                "threads": settings[way][1],
                "seconds": median(times[way]),
                "seconds_least": min(times[way]),
                "seconds_most": max(times[way]),
                "each": times[way],
                "ratio": middle,
                "ratio_least": least,
                "ratio_most": most,
                "memory_mib": memory[way].total / 2**20,
                "memory": memory[way]._asdict(),
                **({"where": split_round(whole, repeats * row)} if way == "coterie" else {}),
                "parameters": driver.parameters,
                "samples": int(driver.rounds[-1]["samples"]),
                "loss_first": driver.rounds[0]["loss"],
                "loss_last": driver.rounds[-1]["loss"],
            }
        )
    return rows


def check_work(work: Workload, way: str, driver: Driver) -> None:
    """Whether a way did the workload's work in every round that counts, and learnt from it.

    Raises:
        RuntimeError: it did not.
    """
    expected = work.epochs * work.cohort * work.samples
    trained = sorted({int(r["samples"]) for r in driver.rounds[WARM:]})
    last, guessing = driver.rounds[-1]["loss"], math.log(work.classes)
    if trained != [expected]:
        raise RuntimeError(f"{way} trained on {trained} samples a round in {work.name}; they must be {expected}")
    if driver.parameters != work.parameters:
        raise RuntimeError(
            f"{way} has {driver.parameters} parameters in {work.name}; they must be {work.parameters}"
        )
    if not last < LEARNT * guessing:  # nor a number
        raise RuntimeError(
            f"{way} did not learn in {work.name}: its last loss is {last:.3f}, and guessing has {guessing:.3f}; "
            f"it must be below {LEARNT * guessing:.3f}"
        )


def shown(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of one workload as a table."""
    work = f"{rows[0]['samples']:,} samples a round and {rows[0]['parameters']:,} parameters in every way"
    table = Table(
        title=f"{name}: {WORKLOADS[name][0]}",
        caption=f"{work}; times: of Coterie's round; memory: the peak; loss: on held-out samples",
    )
    table.add_column("way", no_wrap=True)
    for column in ("processes x threads", "s a round", "spread", "times", "spread", "MiB", "loss"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["way"],
            f"{row['processes']} x {row['threads']}",
            f"{row['seconds']:.3f}",
            f"{row['seconds_least']:.3f}-{row['seconds_most']:.3f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_least']:.2f}-{row['ratio_most']:.2f}",
            f"{row['memory_mib']:.0f}",
            f"{row['loss_first']:.2f}-{row['loss_last']:.2f}",
        )
    return table


def main() -> None:
    """Print a table for each workload."""
    parser = arguments("peers", __doc__, SMOKE)
    parser.add_argument("--environments", metavar="FOLDER", help="where the others' environments are")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    given = parser.read()
    require_proc()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the drivers are ended on the way out
    console = Console()
    environments = None if given.environments is None else Path(given.environments)
    pythons = {way: WAYS[way].python(environments) for way in given.ways}
    for way in [way for way, python in pythons.items() if python is None]:
        console.print(f"{way} is left out: there is no environment {WAYS[way].environment} in --environments")
    ways = {way: python for way, python in pythons.items() if python is not None}
    rows = []
    for name in given.workloads:
        whole = experiment(WORKLOADS[name][1])
        whole = shrink(whole) if given.smoke else whole
        found = compared(name, whole, ways, given.repeats, tune=not given.smoke)
        console.print(shown(name, found))
        rows += found
    write(given.json, "peers", rows)


if __name__ == "__main__":
    main()
