"""A runtime in which a few clients of each exchange really work, and the others repeat their answers.

Messages, the clients asked and the matrices on the server are as in a run. The time of all clients is extrapolated
from that of the few.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rules.rule import Order
from coterie.methods.exchange import Exchange, Outputs
from coterie.models.layout import BYTES_PER_SCALAR
from coterie.runtime.local.runtime import LocalRuntime
from coterie.runtime.rows import Outcome, Rows, vector_shapes
from coterie.runtime.runtime import Failure
from coterie.runtime.states import ClientStates

T = TypeVar("T")

BUDGET_SECONDS = 5.0
"""Seconds that may be spent beyond the least: one client for each process, once in each exchange."""

EXCHANGE_SHARE = 0.25
"""Share of the remaining budget that one exchange may use."""

MAX_REPEATS = 3
"""How often an exchange is timed at most."""

SAMPLE_SIZES = (32, 16, 4)
"""About how many clients of an exchange really work: the first number that fits the budget, else one a process."""

MAX_MODELS = 32
"""Models whose outputs are really computed, at most, where the server asks for outputs on its own inputs."""


class OutOfMemory(Exception):
    """The messages of an exchange do not fit in this machine's memory."""


@dataclass
class Times:
    """Time of clients, and of outputs on the server's own inputs, since the last `take_times`."""

    predicted: float = 0.0
    """Seconds that all clients would take."""
    spent: float = 0.0
    """Seconds that the few took here, and the bookkeeping about them."""


@dataclass(frozen=True)
class Peak:
    """The largest exchange so far, in bytes."""

    sent: int = 0
    """What the server sends, each model once."""
    answers: int = 0
    """The matrices of what comes back, a row for each client."""
    clients: int = 0
    """Clients that are asked for a vector, or to keep one."""


class SampledRuntime(LocalRuntime):
    """Takes the place of a local runtime, with its processes and states.

    Args:
        whole: the runtime that a run would use. Close this one instead of it.
        workers: its processes.
        room: bytes that one exchange may take; None where that is not known.
    """

    def __init__(self, whole: LocalRuntime, workers: int, room: int | None = None) -> None:
        vars(self).update(vars(whole))
        self.states: SampledStates = SampledStates(whole.states)
        self.workers = workers
        self.times = Times()
        self.peak = Peak()
        self.lost: dict[str, None] = {}
        """Reasons why clients that really worked gave no answer, in order and each once."""
        self._room = room
        self._seconds_left = BUDGET_SECONDS

    def take_times(self) -> Times:
        """Return the times since the last call, and begin anew."""
        found, self.times = self.times, Times()
        return found

    def _orders(self, exchange: Exchange) -> list[Order]:
        orders = super()._orders(exchange)
        begun = time.perf_counter()
        self._measure_memory(exchange, orders)
        self.times.spent += time.perf_counter() - begun
        return orders

    def _answered(self, rows: Rows[Tensor], answers: Sequence[Outcome]) -> Rows[Tensor]:
        begun = time.perf_counter()
        rows = super()._answered(rows, answers)
        self.times.spent += time.perf_counter() - begun  # in a run workers fill the rows, and nothing is copied
        return rows

    def deliver(self, orders: Sequence[Order], keep: bool) -> tuple[list[Outcome | Failure], Rows[Tensor]]:
        """Have a few clients answer; the others repeat the answer of the one nearest to them in size."""
        begun = time.perf_counter()
        sizes = np.array([self.samples[order.client] for order in orders], np.float64)
        few, stands_for, (answers, rows), seconds = self._deliver_few(orders, sizes, keep)
        self.lost.update((a.reason, None) for a in answers if isinstance(a, Failure))
        by_position = dict(zip(few, answers, strict=True))
        found: list[Outcome | Failure] = []
        for i, order in enumerate(orders):
            of = orders[stands_for[i]]
            answer = by_position[stands_for[i]]
            if isinstance(answer, Outcome) and order is not of:
                answer = _scale_samples(answer, sizes[i] / sizes[stands_for[i]])
                if keep and order.rule.client_state:
                    self.states.copy(of.client, order.client)
            found.append(answer)
        self.times.predicted += seconds * makespan(sizes, self.workers) / makespan(sizes[few], self.workers)
        self.times.spent += time.perf_counter() - begun
        return found, rows

    def _deliver_few(
        self, orders: Sequence[Order], sizes: NDArray[np.float64], keep: bool
    ) -> tuple[list[int], list[int], tuple[list[Outcome | Failure], Rows[Tensor]], float]:
        """Return who really worked, who stands for whom, the answers, and the seconds they took together.

        One client for each process is asked first; if that is fast enough, more are, several times.
        """
        kinds = [self._kind(order) for order in orders]
        few, stands_for = choose_few(sizes, kinds, self.workers)
        own = {orders[i].client: self.states.make_own(orders[i].client) for i in few}
        deliver = super().deliver
        answers, seconds = self._time(lambda: deliver([orders[i] for i in few], keep), lambda: None, 1)
        for least in SAMPLE_SIZES:
            more, stands_for_more = choose_few(sizes, kinds, -(-least // self.workers) * self.workers)
            if seconds * len(more) <= self._allowance * len(few):
                break
        else:
            return few, stands_for, answers, seconds
        self.states.reset(own)
        own = {orders[i].client: self.states.make_own(orders[i].client) for i in more}
        again = self._time(lambda: deliver([orders[i] for i in more], keep), lambda: self.states.reset(own))
        return more, stands_for_more, *again

    def outputs(self, ask: Outputs) -> Tensor:
        begun = time.perf_counter()
        count = len(ask.models)
        rows = np.unique(np.linspace(0, count - 1, min(MAX_MODELS, count)).astype(np.int64))
        few = replace(ask, models=ask.models[torch.as_tensor(rows)])
        ask_few = super().outputs
        found, seconds = self._time(lambda: ask_few(few), lambda: None)
        nearest = np.searchsorted(rows, np.arange(count), side="right") - 1
        self.times.predicted += seconds * count / max(len(rows), 1)
        self.times.spent += time.perf_counter() - begun
        return found[torch.as_tensor(nearest)]

    @property
    def chunk(self) -> int:
        """Clients that one kernel takes, at most."""
        return self.together

    def _kind(self, order: Order) -> tuple[object, ...]:
        """Return what clients must share to repeat each other's answers: items, states and parts of one shape."""
        items = frozenset((name, tuple(item.values.shape)) for name, item in order.items.items())
        return items, frozenset(self.states.of(order.client)), frozenset(order.upload_part.items())

    @property
    def _allowance(self) -> float:
        """Seconds that one exchange may take beyond the least."""
        return self._seconds_left * EXCHANGE_SHARE

    def _time(self, do: Callable[[], T], undo: Callable[[], None], most: int = MAX_REPEATS) -> tuple[T, float]:
        """Return what `do()` returns, and the median seconds of `most` calls, or of fewer where they are slow."""
        allowance = self._allowance
        times: list[float] = []
        while True:
            begun = time.perf_counter()
            found = do()
            times.append(time.perf_counter() - begun)
            if len(times) == most or sum(times) + times[-1] > allowance:
                break
            undo()
        self._seconds_left = max(0.0, self._seconds_left - sum(times))
        return found, float(np.median(times))

    def _measure_memory(self, exchange: Exchange, orders: Sequence[Order]) -> None:
        """Note how much memory an exchange takes in a run, if it is the largest so far.

        Raises:
            OutOfMemory: it is more than there is.
        """
        shapes = {name: torch.Size(s).numel() for name, s in vector_shapes(exchange.rule, self.layout).items()}
        items = {id(i.values) if i.key is None else i.key: i for order in orders for i in order.items.values()}
        sent = sum(item.values.numel() for item in items.values()) * BYTES_PER_SCALAR
        answers = len(orders) * sum(shapes[name] for name in exchange.rule.uploads) * BYTES_PER_SCALAR
        asked, before = len(orders) if shapes else 0, self.peak
        self.peak = Peak(max(before.sent, sent), max(before.answers, answers), max(before.clients, asked))
        if self._room is not None and sent + answers > self._room:
            raise OutOfMemory


class SampledStates(ClientStates):
    """Takes the place of the clients' states; a client that did not really work has those of its stand-in."""

    def __init__(self, whole: ClientStates) -> None:
        vars(self).update(vars(whole))
        self._stand_in: dict[int, int] = {}
        self.scalars = 0
        """The most scalars that any client keeps, under all names."""

    def of(self, client: int) -> dict[str, Tensor]:
        return super().of(self._stand_in.get(client, client))

    def update(self, client: int, keep: Mapping[str, Tensor | None], *, own: bool = False) -> None:
        super().update(client, keep, own=own)
        self.scalars = max(self.scalars, sum(values.numel() for values in self.of(client).values()))

    def copy(self, source: int, client: int) -> None:
        """Give `client` the state of `source`, without a copy."""
        self._stand_in[client] = source

    def make_own(self, client: int) -> dict[str, Tensor]:
        """Give a client that is about to work a state of its own, and return a copy of it."""
        now = {name: values.clone() for name, values in self.of(client).items()}
        if self._stand_in.pop(client, None) is not None:
            super().update(client, now)
        return now

    def reset(self, own: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Put back the states of clients, as `make_own` returned them."""
        for client, values in own.items():
            super().update(client, {**dict.fromkeys(self.of(client)), **values})


def choose_few(
    sizes: NDArray[np.float64], kinds: Sequence[tuple[object, ...]], least: int
) -> tuple[list[int], list[int]]:
    """Choose who really works, and for each `[m]` the stand-in: of its kind, and nearest to it in size.

    Of each kind the smallest, the largest, and some between them are taken, `least` clients or a few more in all.
    """
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, kind in enumerate(kinds):
        alike[kind].append(i)
    few: list[int] = []
    stands_for = np.arange(len(sizes))
    for positions in alike.values():
        members, count = np.array(positions), len(positions)
        members = members[np.argsort(sizes[members], kind="stable")]
        share = min(count, max(1, round(least * count / len(sizes))))
        ends = (0, count - 1) if share > 1 else ((count - 1) // 2,) * 2
        taken = members[np.linspace(*ends, share).round().astype(np.int64)]
        between = (sizes[taken][1:] + sizes[taken][:-1]) / 2
        stands_for[members] = taken[np.searchsorted(between, sizes[members])]
        stands_for[taken] = taken
        few += taken.tolist()
    return sorted(few), stands_for.tolist()


def makespan(sizes: NDArray[np.float64], workers: int) -> float:
    """Return how long `workers` take for clients of these sizes, in units of a client of size 1."""
    return max(float(sizes.sum()) / workers, float(sizes.max()))


def _scale_samples(answer: Outcome, ratio: float) -> Outcome:
    """Return the answer of a client that has `ratio` times the samples."""
    if answer.report.get("trained_samples") is None:
        return answer
    return answer._replace(report={**answer.report, "trained_samples": answer.report["trained_samples"] * ratio})
