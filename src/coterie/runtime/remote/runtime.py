"""The runtime for clients elsewhere: orders and answers travel as bytes, and clients keep their own states."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.engine.engine import Engine
from coterie.clients.rules.rule import Answer, Order
from coterie.errors import BadInput
from coterie.methods.exchange import Outputs
from coterie.runtime.remote.codec import VERSION, pack_order, unpack_answer
from coterie.runtime.remote.message import Message
from coterie.runtime.remote.validation import validate_answer
from coterie.runtime.rows import Answered, Rows, StoredAnswer, allocate_rows
from coterie.runtime.runtime import Failure, Runtime, compute_outputs, validate

EXCHANGES, ROUNDS = 1000, 1_000_000
"""Limits of the exchanges in a round and of the rounds in a run.

The number of a state is made of the second in which the server was started, the round and the exchange: the third
state of round 12 ends in 000012003. The second keeps servers apart: a client may still be busy with an order of a
server that has died, and must not overwrite a state that the next server has it keep.
"""

NUMBER = "number"
"""The name under which a checkpoint holds the number of the state that each client goes on from."""


class StateNumbers:
    """The number of the state that each client goes on from, `[n]`; 0 for none. The clients keep the states."""

    def __init__(self, clients: int) -> None:
        self.folder: Path | None = None
        self._current: NDArray[np.int64] = np.zeros(clients, np.int64)
        self._committed, self._marked = self._current.copy(), self._current.copy()
        self._checkpoints = [self._current.copy(), self._current.copy()]

    def of(self, client: int) -> int:
        """Return the number of the state that a client goes on from."""
        return int(self._current[client])

    @property
    def largest(self) -> int:
        """The largest number of any client."""
        return int(self._current.max(initial=0))

    def oldest_needed(self, client: int) -> int:
        """Return the oldest number that may still be asked for.

        It is that of the last checkpoint but one, because the last one may turn out to be damaged.
        """
        return int(self._checkpoints[0][client])

    def update(self, client: int, number: int) -> None:
        """Note that a client has kept a state under a new number, or has lost all its states (0)."""
        self._current[client] = number

    def mark(self) -> None:
        self._marked = self._current.copy()

    @contextmanager
    def rewound(self) -> Iterator[None]:
        now, self._current = self._current, self._marked.copy()
        try:
            yield
        finally:
            self._current = now

    def commit(self) -> None:
        self._committed = self._current.copy()

    def roll_back(self) -> None:
        self._current = self._committed.copy()

    def to_checkpoint(self) -> dict[str, dict[str, Tensor]]:
        """Return the numbers for a checkpoint: `has` says which clients have one, `kept` which number."""
        self._checkpoints = [self._checkpoints[1], self._committed.copy()]
        has = np.flatnonzero(self._committed)
        if not len(has):
            return {"kept": {}, "has": {}}
        kept, who = torch.from_numpy(self._committed[has]), torch.from_numpy(has)
        return {"kept": {NUMBER: kept}, "has": {NUMBER: who}}

    def restore(self, kept: Mapping[str, Tensor], has: Mapping[str, Tensor]) -> None:
        self._committed[:] = 0
        if NUMBER in kept:
            self._committed[has[NUMBER].numpy()] = kept[NUMBER].numpy()
        self._current = self._committed.copy()
        # The checkpoint before this one may be asked for next, and its numbers are not known: delete nothing yet.
        self._checkpoints = [np.zeros_like(self._current), self._committed.copy()]


class RemoteRuntime(Runtime):
    """Carries orders to clients elsewhere. A subclass says how messages travel.

    Args:
        engine: knows the network, and computes for the server.
        bounds: `[n, 4]`, where the training, validation and test samples of each client begin and end (see
            `Population`); an answer that speaks of another number of samples is not believed.
        client_dropout: see `Runtime`; real clients vanish by themselves.
    """

    states: StateNumbers

    def __init__(self, engine: Engine, bounds: NDArray[np.int64], client_dropout: float = 0.0) -> None:
        self._sizes = np.diff(bounds)
        super().__init__(engine.layout, self._sizes[:, 0], engine.seed, client_dropout)
        self.engine = engine
        self.states = StateNumbers(len(bounds))
        self._step = 0
        self._started = int(time.time())

    @abstractmethod
    def post(self, messages: Mapping[int, Message]) -> Mapping[int, Message | Failure]:
        """Bring a message to each client and return the answers by client; one that is missing gave none."""

    def begin_round(self, round: int) -> None:
        super().begin_round(round)
        self._step = 0

    def outputs(self, ask: Outputs) -> Tensor:
        return compute_outputs(self.engine, ask)

    def deliver(self, orders: Sequence[Order], keep: bool) -> tuple[list[StoredAnswer | Failure], Rows[Tensor]]:
        self._step += 1
        if self._step >= EXCHANGES:
            raise ValueError(f"a round asks more than {EXCHANGES - 1} times; it must ask less often")
        started = max(
            self._started, self.states.largest // (ROUNDS * EXCHANGES)
        )  # the clock may have been set back
        number = (started * ROUNDS + self._round) * EXCHANGES + self._step
        replies = self.post({order.client: self._message(order, number, keep) for order in orders})
        room = allocate_rows(orders[0].rule, self.layout, len(orders), self.sketcher.width, keep)
        rows = replace(room, state_sketches=None)  # what a client keeps never comes here
        outcomes: list[StoredAnswer | Failure] = []
        for row, order in enumerate(orders):
            reply = replies.get(order.client, Failure("gave no answer"))
            answer = reply if isinstance(reply, Failure) else self._read(order, reply)
            if isinstance(answer, Failure):
                outcomes.append(answer)
                continue
            rows.write([Answered(row, order, answer, {})], self.sketcher)
            outcomes.append(StoredAnswer.of(answer, row, {}))
            if keep and isinstance(reply, Message) and reply.values.get("kept") is True:
                self.states.update(order.client, number)
        return outcomes, rows

    def _message(self, order: Order, number: int, keep: bool) -> Message:
        """Make the message of an order after which the client's state has that number."""
        states = {
            "state": self.states.of(order.client),
            "next_state": number,
            "oldest_state": self.states.oldest_needed(order.client),
        }
        return Message({"version": VERSION, "keep": keep, **states}, pack_order(order))

    def _read(self, order: Order, reply: Message) -> Answer | Failure:
        """Read and validate an answer: nothing that another machine sends is trusted."""
        if reply.refusal is not None:
            return Failure(reply.refusal)
        try:
            reply.check_version()
            if "lost_state" in reply.values:
                self.states.update(order.client, 0)
                number = reply.number("lost_state")
                round = number // EXCHANGES % ROUNDS
                return Failure(f"has lost what it kept in round {round}; it will begin anew")
            answer = validate(order, unpack_answer(order, reply.body, self.layout), self.layout)
            if isinstance(answer, Failure):
                return answer
            data, sizes = self.engine.data, self._sizes[order.client].tolist()
            wrong = validate_answer(order, answer, sizes, data.classes, data.task)
        except BadInput as error:
            return Failure("; ".join(error.problems))
        except Exception as error:  # noqa: BLE001  # whatever a client sends, the round goes on
            return Failure(f"{type(error).__name__}: {error}")
        return answer if wrong is None else Failure(wrong)
