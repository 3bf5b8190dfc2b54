"""A runtime in which a few clients really work, and the others repeat the answer of one of about their size.

Messages, the clients asked and the matrices on the server are as in a run. The time of all clients is scaled from
that of the few.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.clients.rules.requests import Request
from coterie.clients.rules.rule import Order, Rule
from coterie.methods.exchange import Exchange, Replies
from coterie.models.layout import BYTES_PER_SCALAR
from coterie.runtime.local.runtime import LocalRuntime
from coterie.runtime.rows import Rows, StoredAnswer, find_sums, vector_shapes
from coterie.runtime.runtime import Failure, answer_orders
from coterie.runtime.threads import one_thread

REPRESENTATIVES = 32
"""Clients that work for all others, where they are quick; more where more of them fill each process's kernel."""

QUICK_SECONDS = 0.5
"""Clients are quick if one for each process takes no longer."""

START_SECONDS = 6.0
"""What takes longer is not done a second time, which would leave out what starts but once: a process, a kernel."""


class OutOfMemory(Exception):
    """The messages of an exchange do not fit in this machine's memory."""


@dataclass(frozen=True)
class Peak:
    """The largest exchange so far."""

    sent: int = 0
    """Bytes that the server sends, each model once."""
    answers: int = 0
    """Bytes of the matrices of what comes back: a row for each client, or sums."""
    clients: int = 0
    """Clients that are asked for a vector, or to keep one."""
    form: Literal["", "sums", "run", "few"] = ""
    """Whether sums come back; or rows, as the run must see single models or sums take no less. Empty where a method
    asks for rows."""


@dataclass(frozen=True)
class Shares:
    """Which share of a round is tried."""

    epochs: float = 1.0
    asked: int = 1
    """Clients of a cohort that are asked."""
    cohort: int = 1
    """Clients of a whole cohort."""

    def times(self, clients: int) -> float:
        """Return how many times as many clients an exchange of a run asks; one of more than a cohort asks all."""
        return self.cohort / self.asked if clients <= self.asked else 1.0


class SampledRuntime(LocalRuntime):
    """Takes the place of a local runtime, with its processes and states.

    Args:
        whole: the runtime that a run would use. Close this one instead of it.
        workers: its processes.
        room: bytes that one exchange may take; None where that is not known.
    """

    def __init__(self, whole: LocalRuntime, workers: int, room: int | None = None) -> None:
        vars(self).update(vars(whole))
        self.workers = workers
        self.predicted = 0.0
        """Seconds that all clients would have taken so far."""
        self.spent = 0.0
        """Seconds that the few have taken here."""
        self.shares = Shares()
        """What is tried of the rounds that are played; of all else, the whole."""
        self.asked = 0
        """Clients of the largest exchange so far in this round."""
        self.untried_bytes = {"up": 0.0, "down": 0.0}
        """What the clients of this round would move who are not asked."""
        self.peak = Peak()
        self.lost: dict[str, None] = {}
        """Reasons why clients that really worked gave no answer, in order and each once."""
        self._room = room
        self._stand_in: NDArray[np.int64] | None = None
        self._started: set[type[Rule]] = set()
        """What clients have done before."""
        self._growth: dict[str, float] = {}
        """Of each round and rule with its settings: how much longer all epochs of a run train than those tried."""

    @property
    def largest_state(self) -> int:
        """The most scalars that a client keeps."""
        clients = range(len(self.samples))
        return max(sum(values.numel() for values in self.states.of(client).values()) for client in clients)

    def deliver(
        self, orders: Sequence[Order], keep: bool
    ) -> tuple[list[StoredAnswer | Failure], Rows[torch.Tensor]]:
        """Have the representatives of the clients answer in their place."""
        begun, before = time.perf_counter(), self.predicted
        try:
            if self._stand_in is None:  # a first try says how many clients can be tried
                self._stand_in = choose_stand_ins(self.samples, max(2, self.workers))
                found, seconds = self._deliver_warm(orders, keep)
                if seconds > QUICK_SECONDS:
                    return found
                self.states.roll_back()
                self.predicted = before
                count = max(REPRESENTATIVES, self.together * self.workers)
                self._stand_in = choose_stand_ins(self.samples, count)
                self._started.clear()  # a kernel of more clients is another one
            return self._deliver_warm(orders, keep)[0]
        finally:
            self.spent += time.perf_counter() - begun

    def _deliver_warm(
        self, orders: Sequence[Order], keep: bool
    ) -> tuple[tuple[list[StoredAnswer | Failure], Rows[torch.Tensor]], float]:
        """Deliver, twice where clients do something for the first time; return what came, and its seconds."""
        assert self._stand_in is not None
        kinds = {type(order.rule) for order in orders}
        # What clients keep can be taken back only before anything else is kept in the round.
        is_new = not (keep and self._started) and not kinds <= self._started
        self._started |= kinds
        before = self.predicted
        for again in (True, False) if is_new else (False,):
            begun = time.perf_counter()
            found = self._deliver_few(orders, keep, self._stand_in)
            seconds = time.perf_counter() - begun
            if not again or seconds > START_SECONDS:
                break
            self.predicted = before
            if keep:
                self.states.roll_back()
        return found, seconds

    def _deliver_few(
        self, orders: Sequence[Order], keep: bool, stand_in: NDArray[np.int64]
    ) -> tuple[list[StoredAnswer | Failure], Rows[torch.Tensor]]:
        """Carry out one order for each representative and form of a message; the answer to it is everybody's."""
        few: dict[tuple[object, ...], int] = {}
        places: list[int] = []
        asked: list[Order] = []
        for order in orders:
            client = int(stand_in[order.client])
            shapes = frozenset((name, tuple(item.values.shape)) for name, item in order.items.items())
            form = client, shapes, frozenset(order.upload_part.items())
            if form not in few:
                few[form] = len(asked)
                asked.append(replace(order, client=client, reduce={}))
            places.append(few[form])
        begun = time.perf_counter()
        answers, rows = super().deliver(asked, keep)
        seconds = time.perf_counter() - begun
        sizes = np.maximum(self.samples[[order.client for order in orders]], 1).astype(np.float64)
        sizes_of_few = np.maximum(self.samples[[order.client for order in asked]], 1).astype(np.float64)
        for at in np.argsort(sizes_of_few):  # the smallest client takes the least time
            self._grow(asked[at], answers[at])
        growth = [self._grow(order, answer) for order, answer in zip(asked, answers, strict=True)]
        work = np.array([_trained_samples(answer) for answer in answers])
        seconds *= self.shares.times(len(orders)) * (float(work @ growth / work.sum()) if work.any() else 1.0)
        self.predicted += seconds * makespan(sizes, self.workers) / makespan(sizes_of_few, self.workers)
        self.lost.update((answer.reason, None) for answer in answers if isinstance(answer, Failure))
        ratios = sizes / sizes_of_few[places] * np.array(growth)[places]
        found = [_scale_samples(answers[at], ratio) for at, ratio in zip(places, ratios.tolist(), strict=True)]
        return found, rows

    def _grow(self, order: Order, answer: StoredAnswer | Failure) -> float:
        """Return how many times as much a client trains in all of a run's epochs; passes of a rule's own stay."""
        if self.shares.epochs == 1.0 or not _trained_samples(answer):
            return 1.0
        if (kind := f"{order.round} {order.rule!r}") not in self._growth:
            counts = {"all": 0, "own": 0}
            training, keep_single = self.engine.training, not self.engine.batch_norm

            def count(request: Request) -> None:
                for name, settings in (("all", training), ("own", training.model_copy(update={"epochs": 0}))):
                    counts[name] += request.backpropagated(int(self.samples[order.client]), settings, keep_single)

            with one_thread():
                answer_orders(self.engine, [order], [self.states.of(order.client)], count)
            own = counts["own"] / max(1, counts["all"])
            self._growth[kind] = own + (1 - own) / self.shares.epochs
        return self._growth[kind]

    def begin_round(self, round: int) -> None:
        super().begin_round(round)
        self.asked, self.untried_bytes = 0, {"up": 0.0, "down": 0.0}

    def _exchange(self, exchange: Exchange) -> Replies:
        before, clients = len(self.ledger.rows), len(exchange.clients)
        replies = super()._exchange(exchange)
        self.asked, others = max(self.asked, clients), self.shares.times(clients) - 1
        for _, direction, _, scalars in self.ledger.rows[before:]:
            self.untried_bytes[direction] += others * scalars * BYTES_PER_SCALAR
        return replies

    def _orders(self, exchange: Exchange) -> list[Order]:
        """Note how much memory an exchange takes, if it is the largest so far.

        Raises:
            OutOfMemory: it is more than there is.
        """
        orders = super()._orders(exchange)
        shapes = {name: torch.Size(s).numel() for name, s in vector_shapes(exchange.rule, self.layout).items()}
        items = {id(i.values) if i.key is None else i.key: i for order in orders for i in order.items.values()}
        sent = sum(item.values.numel() for item in items.values()) * BYTES_PER_SCALAR
        times = self.shares.times(len(orders))
        whole = round(times * len(orders))
        sums = find_sums(orders * round(times), self.layout, self.tables) if orders else {}
        rows = {n: sums[n].table_rows * self.tables if n in sums else whole for n in exchange.rule.uploads}
        answers = sum(count * shapes[name] for name, count in rows.items()) * BYTES_PER_SCALAR
        asked, before = whole if shapes else 0, self.peak
        form = before.form
        if answers > before.answers:
            limit = max((reduce.row_limit for reduce in exchange.reduce.values()), default=0.0)
            form = "sums" if sums else "" if not exchange.reduce else "few" if limit else "run"
        own = times if len(items) >= len(orders) else 1.0  # who is sent a model of its own is so in a whole cohort
        self.peak = Peak(
            max(before.sent, round(own * sent)), max(before.answers, answers), max(before.clients, asked), form
        )
        if self._room is not None and sent + answers / times > self._room:
            raise OutOfMemory
        return orders


def choose_stand_ins(sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Choose who works for each client `[n]`: of `count` clients of all sizes the one nearest in size."""
    order = np.argsort(sizes, kind="stable")
    few = order[np.linspace(0, len(sizes) - 1, min(count, len(sizes))).round().astype(np.int64)]
    between = (sizes[few][1:] + sizes[few][:-1]) / 2
    stand_in = few[np.searchsorted(between, sizes)]
    stand_in[few] = few
    return stand_in


def makespan(sizes: NDArray[np.float64], workers: int) -> float:
    """Return how long `workers` take for clients of these sizes, in units of a client of size 1."""
    return max(float(sizes.sum()) / workers, float(sizes.max()))


def _trained_samples(answer: StoredAnswer | Failure) -> float:
    return 0.0 if isinstance(answer, Failure) else float(answer.report.get("trained_samples") or 0.0)


def _scale_samples(answer: StoredAnswer | Failure, ratio: float) -> StoredAnswer | Failure:
    """Return the answer of a client that trains on `ratio` times the samples."""
    if isinstance(answer, Failure) or answer.report.get("trained_samples") is None:
        return answer
    return answer._replace(report={**answer.report, "trained_samples": _trained_samples(answer) * ratio})
