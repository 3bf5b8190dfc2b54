"""A runtime answers what a method's round asks: it brings orders to clients, and lines their answers up.

How orders travel is a subclass's business. Counting bytes, clients that vanish, checks of what came back, and which
client is to blame for an error are the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.engine.engine import Engine
from coterie.clients.engine.private_steps import refuse_rule
from coterie.clients.rules.requests import Request
from coterie.clients.rules.rule import Answer, Item, Order
from coterie.clients.rules.starting_point import TRAINED, measure_update
from coterie.errors import escape
from coterie.methods.exchange import Ask, Exchange, Ids, Log, LogGap, Outputs, Replies, Summed
from coterie.models.layout import Layout
from coterie.randomness import stream
from coterie.runtime.dispatch import ranges
from coterie.runtime.ledger import Ledger
from coterie.runtime.quarantine import Quarantine
from coterie.runtime.rows import Rows, Sketcher, StoredAnswer, allocate_rows, close_gaps, find_apart, vector_shapes
from coterie.runtime.threads import one_thread

S = TypeVar("S")

WHOLE_MODELS = ("model", "models")
"""What is sent under these names are models; without a part, whole ones."""

VANISHED = "vanished in mid-round"
"""The reason of a client that `client_dropout` took away."""


MAX_REASON_LENGTH = 500
"""Characters of the reason for which a client gave no answer; the rest is cut off."""


@dataclass(frozen=True)
class Failure:
    """Why a client gave no answer, in a few words."""

    reason: str
    is_fault: bool = True
    """Whether it counts towards quarantine. It does not where the client was not asked at all."""

    def __post_init__(self) -> None:
        # An error may repeat what another machine sent.
        object.__setattr__(self, "reason", escape(self.reason)[:MAX_REASON_LENGTH])


class States(Protocol):
    """The clients' states between rounds, or what is known of them here. They can go back to the last commit."""

    folder: Path | None

    def mark(self) -> None: ...
    def rewound(self) -> AbstractContextManager[None]: ...
    def commit(self) -> None: ...
    def roll_back(self) -> None: ...
    def to_checkpoint(self) -> Mapping[str, Any]:
        """What a checkpoint holds of them: tables `kept` and `has`, which `restore` takes."""

    def restore(self, kept: Mapping[str, Tensor], has: Mapping[str, Tensor]) -> None: ...


class Runtime(ABC):
    """Answers the asks of a method. A subclass says how orders reach clients, and how answers come back.

    Args:
        layout: of the network all clients share.
        samples: training samples of each client `[n]`.
        seed: of the experiment.
        client_dropout: the chance that a client vanishes in a round. It vanishes in the first exchange of the
            round that asks it, after it was sent its order, and is away for the rest of the round.
    """

    remedy = "if that does not say what to do, try a smaller training.lr or a longer run.client_timeout"
    """What to do about it where nobody answers any more."""
    engine: Engine
    """It knows the network; on a real federation it computes for the server alone."""
    states: States

    def __init__(self, layout: Layout, samples: NDArray[np.int64], seed: int, client_dropout: float = 0.0) -> None:
        self.layout = layout
        self.samples = samples
        self.seed = seed
        self.client_dropout = client_dropout
        self.sketcher = Sketcher(layout, seed)
        self.ledger = Ledger()
        self.quarantine = Quarantine(None)
        """Who is not asked for a while; nobody unless it is replaced by another one."""
        self.failures: list[tuple[int, str]] = []
        self.model_sketches: list[tuple[Ids, Tensor]] = []
        """Who had a model in this round, and sketches of those models `[r, width]`, for the run's picture: of the
        model that a client keeps, and only where it keeps none of the one that it sent."""
        self.notes: list[str] = []
        """What went otherwise than usual in this round and changed no result."""
        self.logged: list[Log | LogGap] = []
        self.on_answers: Callable[[int, int], object] | None = None
        """Is told, while an exchange is answered, how many clients have answered it and how many were asked.

        Only where clients are simulated on this machine; also every few seconds in which none answers."""
        self.equipped: set[int] = set()
        """Clients that have downloaded what is frozen in the network."""
        self._round = 0
        self._vanished: set[int] = set()
        self._sent: dict[int, tuple[Mapping[str, Item], ...]] = {}
        """What each client was sent to train from in this round so far."""

    @abstractmethod
    def deliver(self, orders: Sequence[Order], keep: bool) -> tuple[list[StoredAnswer | Failure], Rows[Tensor]]:
        """Bring each order of an exchange to its client; return what came of each, in the same order, and the rows.

        With `keep`, the state that an answer holds becomes its client's. An answer that is not sound (see
        `validate`) is a failure and changes nothing. There is at least one order.
        """

    @abstractmethod
    def outputs(self, ask: Outputs) -> Tensor:
        """Softmax outputs `[n, samples, classes]` of models `[n, P]` on the server's own inputs."""

    def close(self) -> None:  # noqa: B027  # most runtimes hold nothing
        """Give back whatever the runtime holds."""

    def begin_round(self, round: int) -> None:
        """Empty the ledger, the failures and the log. Clients who vanished in the last round are back."""
        self._round = round
        self.quarantine.begin_round(round)
        self.ledger.clear()
        self.failures.clear()
        self.logged.clear()
        self.model_sketches.clear()
        self.notes.clear()
        self._vanished.clear()
        self._sent.clear()

    def answer(self, ask: Ask) -> Replies | Tensor | None:
        """Answer an ask of the method's round."""
        if isinstance(ask, Exchange):
            return self._exchange(ask)
        if isinstance(ask, Outputs):
            return self.outputs(ask)
        if isinstance(ask, Log | LogGap):
            self.logged.append(ask)
            return None
        raise BadAsk(f"a method yields {type(ask).__name__}; it must be an Exchange, Outputs, Log or LogGap")

    def measure(self, exchange: Exchange, clients: Ids | None = None) -> Replies:
        """Answer an exchange that belongs to the evaluation: nothing is counted, kept or lost.

        With `clients` only these are asked.
        """
        orders, missing = [], {}
        for order in self._orders(exchange):
            if clients is not None and order.client not in clients:
                continue
            if (reason := self.quarantine.reason(order.client)) is not None:
                missing[order.client] = reason
            else:
                orders.append(order)
        outcomes, rows = self._deliver(exchange, orders, keep=False)
        missing |= {o.client: f.reason for o, f in zip(orders, outcomes, strict=True) if isinstance(f, Failure)}
        return self._replies(orders, outcomes, rows, missing)

    def repeat(self, exchange: Exchange, clients: Ids) -> Replies:
        """Have clients answer once more, as they did in the last exchange, from the states that they had then.

        Nothing counts.
        """
        with self.states.rewound():
            return self.measure(exchange, clients)

    def _exchange(self, exchange: Exchange) -> Replies:
        """Count what crosses, lose those who vanish, and have the others answer."""
        missing: dict[int, str] = {}
        away: dict[int, str] = {}
        present = []
        for order in self._orders(exchange):
            if order.client in self._vanished:
                away[order.client] = "left earlier in the round"  # hears nothing more, and is counted once
                continue
            if (reason := self.quarantine.reason(order.client)) is not None:
                missing[order.client] = reason
                continue
            if self.layout.frozen and order.client not in self.equipped:
                self.equipped.add(order.client)
                self.ledger.count_frozen(order.client, self.layout.frozen_size)
            self.ledger.count_order(order)
            if self._vanishes(order.client):
                missing[order.client] = VANISHED
                continue
            before = self._sent.get(order.client, ())
            if any(name in order.items for name in TRAINED):
                self._sent[order.client] = (*before, order.items)
            present.append(replace(order, earlier=before) if before else order)
        self.states.mark()
        outcomes, rows = self._deliver(exchange, present, keep=True)
        for order, outcome in zip(present, outcomes, strict=True):
            if isinstance(outcome, Failure):
                missing[order.client] = outcome.reason
            else:
                self.ledger.count_answer(order, outcome, rows)
        self._vanished.update(missing)
        self.failures.extend(sorted(missing.items()))
        return self._replies(present, outcomes, rows, missing | away)

    def _orders(self, exchange: Exchange) -> list[Order]:
        if self.engine.example_privacy is not None:
            refuse_rule(exchange.rule)  # every client would; it is said once, before anybody begins
        shapes = exchange.rule.shapes(self.layout)
        for name in exchange.upload_part:
            if name in shapes:
                raise BadAsk(
                    f"upload_part names {name!r}, which is {shapes[name]} and no model; a part is of a model"
                )
        for name in WHOLE_MODELS:
            send = exchange.send.get(name)
            if send is not None and send.part is None and send.matrix.shape[1] != self.layout.size:
                shape = tuple(send.matrix.shape)
                raise BadAsk(f"{name!r} is sent as {shape}; a model of this network has {self.layout.size} numbers")
        return exchange.orders(self._round)

    def _vanishes(self, client: int) -> bool:
        # One draw a round, or a round of many exchanges would lose more clients than one of few.
        return bool(
            self.client_dropout and stream(self.seed, "vanish", client, self._round).random() < self.client_dropout
        )

    def _deliver(
        self, exchange: Exchange, orders: Sequence[Order], keep: bool
    ) -> tuple[list[StoredAnswer | Failure], Rows[Tensor]]:
        if orders:
            outcomes, rows = self.deliver(orders, keep)
            for order, outcome in zip(orders, outcomes, strict=True):
                if isinstance(outcome, Failure) and outcome.is_fault:
                    self.quarantine.note_failure(order.client, outcome.reason)
                elif keep and not isinstance(outcome, Failure):  # to be scored alone makes up for nothing
                    self.quarantine.note_answer(order.client)
            return outcomes, rows
        return [], allocate_rows(exchange.rule, self.layout, 0, self.sketcher.width, keep)

    def _replies(
        self,
        orders: Sequence[Order],
        outcomes: Sequence[StoredAnswer | Failure],
        rows: Rows[Tensor],
        missing: Mapping[int, str],
    ) -> Replies:
        """Line up the answers of those who gave one, in ascending id."""
        good = [(o.client, a) for o, a in zip(orders, outcomes, strict=True) if isinstance(a, StoredAnswer)]
        good.sort(key=lambda pair: pair[0])
        clients, answers = np.array([client for client, _ in good], np.int64), [a for _, a in good]
        rows, sums = self._answered(rows, answers)
        models = rows.upload_sketches if rows.state_sketches is None else rows.state_sketches
        if models is not None and len(models):
            self.model_sketches.append((clients, models))
        numbers = {n: [a.numbers.get(n, float("nan")) for a in answers] for n in _names(a.numbers for a in answers)}
        report = {n: [a.report.get(n) for a in answers] for n in _names(a.report for a in answers)}
        return Replies(
            clients,
            self.samples[clients],
            rows.uploads,
            {name: np.array(values, np.float64) for name, values in numbers.items()},
            report,
            dict(sorted(missing.items())),
            rows.state_sketches if rows.upload_sketches is None else rows.upload_sketches,
            {n: np.array([a.update_lengths.get(n, 0.0) for a in answers]) for n in (*rows.uploads, *sums)},
            sums,
        )

    def _answered(
        self, rows: Rows[Tensor], answers: Sequence[StoredAnswer]
    ) -> tuple[Rows[Tensor], dict[str, Summed]]:
        """The rows of these answers alone, and what was added up of them."""
        sums = {}
        for name, exact in rows.sums.items():
            apart = find_apart(answers, name, exact)
            models = rows.uploads[name][[answers[i].row for i in apart]]
            sums[name] = Summed(exact, np.array(apart, np.int64), models)
        uploads = {name: matrix for name, matrix in rows.uploads.items() if name not in sums}
        numbers = [answer.row for answer in answers]
        return replace(rows, uploads=uploads).map(lambda matrix: close_gaps(matrix, numbers)), sums


class BadAsk(ValueError):
    """What a method asks cannot be answered by anybody."""


def drive(work: Generator[Ask, Any, S], answer: Callable[[Ask], Replies | Tensor | None]) -> S:
    """Have `answer` reply to everything that a method's round `work` asks, and return what the round returns.

    Raises:
        BadAsk: from the line of the method that asks.
    """
    reply: Replies | Tensor | None = None
    while True:
        try:
            ask = work.send(reply)
        except StopIteration as end:
            result: S = end.value
            return result
        try:
            reply = answer(ask)
        except BadAsk as mistake:
            work.throw(mistake.with_traceback(None))
            raise


def compute_outputs(engine: Engine, ask: Outputs) -> Tensor:
    """Compute the outputs in this process, in the same runs of models as wherever they are computed."""
    count = len(ask.models)
    with one_thread():
        outputs = torch.empty(count, len(ask.inputs), engine.distribution_size)
        for a, b in ranges(count, engine.together):
            outputs[a:b] = engine.outputs(ask.models[a:b], ask.inputs, ask.temperature)
    return outputs


def answer_orders(
    engine: Engine,
    orders: Sequence[Order],
    states: Sequence[Mapping[str, Tensor]],
    watch: Callable[[Request], None] | None = None,
    blame: type[BaseException] | tuple[type[BaseException], ...] = (Exception, SystemExit),
) -> list[Answer | Failure]:
    """Have the engine carry out orders together; a failure stands for an answer that is not sound.

    Rules work on copies of what they kept and, unless they never write into it, of what they receive: whatever one
    writes changes nothing of the server's, nothing that another client receives, and no state. Where one of them
    raises, each half of the orders is carried out by itself, and so on, until it is known whose rule it was.

    Args:
        engine: does the work.
        orders: of one exchange.
        states: what each client has kept.
        watch: sees each request of a rule.
        blame: the errors that are a client's failure.
    """
    given = [_copy(order) if order.rule.writes else order for order in orders]
    try:
        answers = engine.run_rules(given, [{n: v.clone() for n, v in s.items()} for s in states], watch)
        return [validate(o, a, engine.layout) for o, a in zip(orders, answers, strict=True)]
    except blame as error:
        if len(orders) <= 1:
            return [Failure(f"{type(error).__name__}: {error}")] * len(orders)
    half = len(orders) // 2
    halves = (slice(None, half), slice(half, None))
    return [answer for some in halves for answer in answer_orders(engine, orders[some], states[some], watch, blame)]


def _copy(order: Order) -> Order:
    """The order with memory of its own."""
    items = {name: Item(item.values.clone(), item.part, item.key) for name, item in order.items.items()}
    return Order(order.client, order.round, order.rule, items, order.settings, order.upload_part)


def validate(order: Order, answer: Answer, layout: Layout) -> Answer | Failure:
    """Return an answer that is sound with the lengths of its updates, or what is wrong with it.

    Its vectors must be those the rule declares, float32 and of their shapes, and every number that crosses or is
    kept finite.
    """
    shapes = vector_shapes(order.rule, layout) if answer.uploads or answer.client_state else {}
    for verb, vectors, declared in (
        ("sent", answer.uploads, order.rule.uploads),
        ("kept", answer.client_state, order.rule.client_state),
    ):
        for name, values in vectors.items():
            if name not in declared:
                return Failure(f"{verb} a {name}, which its rule does not declare")
            if values is None:
                continue
            if values.shape != shapes[name]:
                return Failure(f"{verb} a {name} of the shape {tuple(values.shape)}; it must be {shapes[name]}")
            if values.dtype != torch.float32:
                return Failure(f"{verb} a {name} of {values.dtype}; it must be torch.float32")
    for name, number in answer.numbers.items():
        if not isfinite(number):
            return Failure(f"sent {name} = {number}")
    lengths = {name: measure_update(order, answer, name) for name in answer.uploads}
    for name, values in answer.uploads.items():
        part = order.upload_part.get(name)
        # A finite length says that all of it is; an infinite one may be too long for float32.
        if not (isfinite(lengths[name]) or _finite(values if part is None else part.take(values))):
            return Failure(f"sent a {name} with NaN or infinite values")
    for name, values in answer.client_state.items():
        looked_at = values is answer.uploads.get(name) and name not in order.upload_part
        if values is not None and not looked_at and not _finite(values):
            return Failure(f"made a {name} of its own with NaN or infinite values")
    return answer if lengths == answer.update_lengths else replace(answer, update_lengths=lengths)


def _finite(values: Tensor) -> bool:
    """Whether there is no NaN and nothing infinite; without a mask as large as a model."""
    return not values.numel() or all(isfinite(float(end)) for end in torch.aminmax(values))


def _names(tables: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every name in any of the tables, in order of appearance."""
    return list(dict.fromkeys(name for table in tables for name in table))
