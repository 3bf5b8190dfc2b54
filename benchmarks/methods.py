"""What each method costs beside the training that its clients do, as shares of a round.

    python -m benchmarks.methods [--methods fesem,ifca] [--networks cnn,mlp] [--epochs 5,1] [--repeats 2]
                                 [--json FILE] [--smoke]

Every method, in its own settings, trains 100 clients of Fashion-MNIST (some 100 training images each; digits where
there is no Fashion-MNIST) at batch 10: complete rounds of the product, with the evaluation of all clients, tables,
ledger and checkpoints on disk. FedAvg runs beside, round by round in turn. The networks are the CNN that is the
default for images, and a perceptron 784-64-10, which trains so fast that anything else shows. Either is trained for
five local epochs, as many as the papers take or fewer, and for one, which is the harshest view.

A round is split into what the clients compute (`clients`), the method's own time between its questions, outputs on
public data included (`server`), the evaluation of all clients (`evaluation`), and the rest: the run's tables, its
ledger, its picture, its checkpoint. A checkpoint is written after every round here, and counted for what a run
spends on it that is alone and paces itself: all of it, but no more than a twentieth of the round. `extra` is what
server, evaluation and rest take beyond FedAvg's, as a share of the method's round: of each pair of rounds run side
by side, the median. Where clients train before they are evaluated, as in FedBABU, what the evaluation takes beyond
FedAvg's is training and counts as `clients`. The first round, in which some methods cluster once and for all, is
timed apart, and the last, before whose evaluation some adapt once and for all, is not run.
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measuring import arguments, median, write
from coterie.clients.data.read.datasets import find_problems
from coterie.clients.rules.evaluate import AdaptThenEvaluate
from coterie.errors import unknown
from coterie.methods import METHODS
from coterie.runs.checkpoint_schedule import CHECKPOINT_TIME_SHARE
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.loop import train
from coterie.runs.schema.experiment import Experiment
from coterie.runs.session import Session
from coterie.runtime.garbage import freeze_objects
from coterie.runtime.threads import one_thread

CLIENTS, BATCH = 100, 10
IMAGES, DIGITS, FEDAVG = "fashion-mnist", "digits", "fedavg"
SMOKE = {"methods": "fedavg,ifca,fedsr", "networks": "mlp", "epochs": "1", "clients": 4, "repeats": 1}
SIZE = {"samples_per_client": 143}
"""Of which a fifth is for tests and a tenth for validation: some 100 are left to train on."""
BAR = 0.10
"""Extra over FedAvg, as a share of the method's round, that a method stays under."""
PARTS = ("clients", "server", "evaluation", "rest")
SAVING = "saving"
"""The clock's name for checkpoints, which are part of the rest."""
NETWORKS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "cnn": ("gaussian-cnn", {}),
    "mlp": ("gaussian-mlp", {"hidden": [64]}),
}
"""Networks that methods are timed with: what stands for each where features must be Gaussian, and the settings."""
EPOCHS = (5, 1)
"""Local epochs that are timed: the papers' usual, and as few as there can be."""
TOGETHER = 7
"""Methods that are timed in turn with one FedAvg."""


@dataclass(frozen=True)
class Split:
    """Seconds of one round, and whether clients trained before they were evaluated."""

    clients: float
    server: float
    evaluation: float
    rest: float
    adapts: bool = False

    @property
    def total(self) -> float:
        return self.clients + self.beside

    @property
    def beside(self) -> float:
        """What is no work of the clients."""
        return self.server + self.evaluation + self.rest

    def without_adaptation(self, fedavg: Split) -> Split:
        """The same with what clients trained before their evaluation counted as their work."""
        more = max(0.0, self.evaluation - fedavg.evaluation) if self.adapts else 0.0
        return replace(self, clients=self.clients + more, evaluation=self.evaluation - more)


class Clock:
    """Seconds spent in functions; one that another counted function calls is counted with its caller."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._counting = False

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its seconds added to those of `name`."""

        def timed(*args: Any, **keys: Any) -> Any:
            if self._counting:
                return function(*args, **keys)
            self._counting, start = True, time.perf_counter()
            try:
                return function(*args, **keys)
            finally:
                self._counting = False
                self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - start

        return timed

    def between_asks(self, name: str, round: Callable[..., Any]) -> Callable[..., Any]:
        """The round of a method, its seconds between one ask and the next added to those of `name`."""

        def timed(*args: Any) -> Generator[Any, Any, Any]:
            step = self.around(name, round(*args).send)
            reply = None
            while True:
                try:
                    ask = step(reply)
                except StopIteration as end:
                    return end.value
                reply = yield ask

        return timed


def splits(experiment: Experiment, folder: RunFolder) -> Generator[Split]:
    """One round after the other of an experiment, whole: what `coterie.run` does, written into `folder`."""
    clock = Clock()
    with closing(Session(experiment)) as session:
        # What an object has of its own goes before what its class gives it, also where the class is frozen.
        own = vars(session.method), vars(session.runtime), vars(session)
        own[0]["round"] = clock.between_asks("server", session.method.round)
        own[1]["outputs"] = clock.around("server", session.runtime.outputs)
        own[1]["deliver"] = clock.around("clients", session.runtime.deliver)
        own[2]["evaluate"] = clock.around("evaluation", session.evaluate)
        folder.write_experiment(session.experiment.to_toml())
        session.write_into(folder)
        vars(session.checkpoints)["save"] = clock.around(SAVING, session.checkpoints.save)
        rule = session.method.evaluation(session.state, session.server, session.server.everyone).rule
        with closing(train(session)) as events:
            while True:
                clock.spent.clear()
                start = time.perf_counter()
                if next(events, None) is None:
                    return
                saving = clock.spent.get(SAVING, 0.0)
                took = time.perf_counter() - start - saving
                clients, server, evaluation = (clock.spent.get(part, 0.0) for part in PARTS[:3])
                rest = took - clients - server - evaluation + min(saving, CHECKPOINT_TIME_SHARE * took)
                yield Split(clients, server, evaluation, rest, isinstance(rule, AdaptThenEvaluate))


def experiment(data: str, method: str, network: str, epochs: int, clients: int, rounds: int) -> Experiment:
    """What a method is timed on: some 100 training images a client where there is Fashion-MNIST."""
    gaussian, settings = NETWORKS[network]
    return Experiment(
        data={"name": data, "split": "rotated(4)", "clients": clients} | (SIZE if data != DIGITS else {}),
        network={"name": gaussian if needs_gaussian(method) else network, **settings},
        method=method,
        training={"epochs": epochs, "batch_size": BATCH},
        run={"rounds": rounds, "checkpoint_every": 1},
    )


def needs_gaussian(method: str) -> bool:
    """Whether a method trains a network with Gaussian features alone; FedAvg beside it does so too."""
    return bool(METHODS[method].target().needs.gaussian)


def timed(
    data: str, methods: Sequence[str], network: str, epochs: int, clients: int, repeats: int
) -> list[dict[str, Any]]:
    """The rows of some methods with networks of one kind, a round of each in turn, FedAvg's first."""
    found: dict[str, list[Split]] = {}
    with ExitStack() as stack:
        loops = {}
        for name in (FEDAVG, *(m for m in methods if m != FEDAVG)):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            # One round more than are run: before the last evaluation some methods adapt once and for all.
            whole = experiment(data, name, network, epochs, clients, repeats + 2)
            if needs_gaussian(methods[0]):
                whole = whole.updated({"network.name": NETWORKS[network][0]})
            loops[name] = stack.enter_context(closing(splits(whole, RunFolder(folder))))
        # As in a run.
        stack.enter_context(freeze_objects())
        stack.enter_context(one_thread(blas=True))
        for _ in range(repeats + 1):
            for name, loop in loops.items():
                found.setdefault(name, []).append(next(loop))
    return [
        {
            "network": network,
            "epochs": epochs,
            **row(name, found[name], found[FEDAVG]),
            "data": data,
            "clients": clients,
        }
        for name in methods
    ]


def row(method: str, rounds: Sequence[Split], fedavg: Sequence[Split]) -> dict[str, Any]:
    """A method's medians over all rounds but the first; of that, the extra in seconds."""
    pairs = [(mine.without_adaptation(its), its) for mine, its in zip(rounds, fedavg, strict=True)]
    extras = [mine.beside - its.beside for mine, its in pairs]
    shares = [extra / mine.total for extra, (mine, _) in zip(extras, pairs, strict=True)][1:]
    return {
        "method": method,
        "rounds": len(shares),
        "round_s": median([mine.total for mine, _ in pairs[1:]]),
        **{f"{part}_s": median([getattr(mine, part) for mine, _ in pairs[1:]]) for part in PARTS},
        "fedavg_round_s": median([its.total for _, its in pairs[1:]]),
        "extra": median(shares),
        "extra_least": min(shares),
        "extra_most": max(shares),
        "first_extra_s": extras[0],
    }


def table(rows: Sequence[Mapping[str, Any]], network: str, epochs: int) -> Table:
    """The rows of a network for a terminal; shares are of the method's own round."""
    title = f"{network}, local epochs {epochs}: shares of a round; extra over FedAvg stays under {BAR:.0%}"
    found = Table(title=title)
    for column in ("method", "s", *PARTS, "extra", "from … to", "1st, s"):
        found.add_column(column, justify="left" if column == "method" else "right")
    for one in rows:
        shares = [f"{one[f'{part}_s'] / one['round_s']:.0%}" for part in PARTS]
        extra = f"[{'red' if one['extra'] >= BAR else 'green'}]{one['extra']:+.0%}"
        spread = f"{one['extra_least']:+.0%} … {one['extra_most']:+.0%}"
        found.add_row(
            one["method"], f"{one['round_s']:.2f}", *shares, extra, spread, f"{one['first_extra_s']:+.2f}"
        )
    return found


def asked(parser: ArgumentParser, given: Namespace) -> tuple[list[str], list[str], list[int]]:
    """Methods, networks and numbers of local epochs that were asked for; ends where one cannot be."""
    names = given.methods.split(",") if given.methods else METHODS.names()
    networks, epochs = given.networks.split(","), given.epochs.split(",")
    problems = [f"--methods: {METHODS.sentence(name)}" for name in names if name not in METHODS]
    problems += [f"--networks: {unknown('network', one, NETWORKS)}" for one in networks if one not in NETWORKS]
    problems += [
        f"--epochs = {one!r} is not possible; it must be whole numbers from 1 up with commas between"
        for one in epochs
        if not one.isdecimal() or int(one) < 1
    ]
    if problems:
        parser.error("\n".join(problems))
    return names, networks, [int(one) for one in epochs]


def main() -> None:
    """Print a table for each network and number of local epochs."""
    parser = arguments("methods", __doc__, SMOKE, 2)
    parser.add_argument("--methods", help="names with commas between; without it, all")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="cnn, mlp or both with a comma between")
    parser.add_argument("--epochs", default=",".join(map(str, EPOCHS)), help="local epochs, with commas between")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    given = parser.read()
    names, networks, numbers = asked(parser, given)
    data = DIGITS if find_problems(IMAGES) else IMAGES
    console = Console(width=None if sys.stdout.isatty() else 110)
    rows = []
    for network, epochs in product(networks, numbers):
        found = []
        for fit in ([n for n in names if not needs_gaussian(n)], [n for n in names if needs_gaussian(n)]):
            for start in range(0, len(fit), TOGETHER):
                found += timed(data, fit[start : start + TOGETHER], network, epochs, given.clients, given.repeats)
        found.sort(key=lambda one: names.index(one["method"]))
        console.print(table(found, network, epochs))
        rows += found
    write(given.json, "methods", rows)


if __name__ == "__main__":
    main()
