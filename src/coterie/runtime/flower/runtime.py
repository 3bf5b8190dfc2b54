"""The runtime for the nodes of a Flower federation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from coterie.clients.engine.engine import Engine
from coterie.runtime.flower.roster import Roster
from coterie.runtime.flower.transport import POLL_SECONDS, TRAIN, Absent, send_and_wait
from coterie.runtime.remote.message import Message, Value
from coterie.runtime.remote.runtime import RemoteRuntime
from coterie.runtime.runtime import Failure


class FlowerRuntime(RemoteRuntime):
    """Carries orders to the nodes of a Flower federation.

    Args:
        engine: see `RemoteRuntime`.
        bounds: see `RemoteRuntime`.
        roster: knows which node is which client.
        context: the values that every message holds beside its order.
        seconds: how long a client may take for an answer; None for as long as its node is connected.
        wait: seconds that a round waits for any client to be connected.
        client_dropout: see `Runtime`.
    """

    remedy = "see that their nodes run and reach the server, and go on with the run"

    def __init__(
        self,
        engine: Engine,
        bounds: NDArray[np.int64],
        roster: Roster,
        context: Mapping[str, Value],
        seconds: float | None = None,
        wait: float = 0.0,
        client_dropout: float = 0.0,
    ) -> None:
        super().__init__(engine, bounds, client_dropout)
        self.roster = roster
        self._context = context
        self._seconds = seconds
        self._wait = wait
        self._absent: set[int] = set()
        """Clients that were found absent in this round."""
        self.channels = 0
        """Inputs that were standardised alike before the first round, by sums that every client told."""
        self.on_roster_change: Callable[[], None] = lambda: None
        """Called whenever clients have answered, or the roster was brought up to date."""

    def begin_round(self, round: int) -> None:
        super().begin_round(round)
        self._absent.clear()
        if round == 1 and self.channels:
            for client in range(len(self.samples)):
                self.ledger.count_sums(client, self.channels)
        self.notes += self.roster.refresh()
        deadline = time.monotonic() + self._wait
        # The server's own link may be down, and a round without any client teaches nothing.
        while not self.roster.anyone_present and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self.notes += self.roster.refresh()
        self.on_roster_change()

    def post(self, messages: Mapping[int, Message]) -> Mapping[int, Message | Failure]:
        nodes = {client: None if client in self._absent else self.roster.node(client) for client in messages}
        present = {
            node: Message(
                {**self._context, **messages[client].values, "digest": self.roster.digest(client)},
                messages[client].body,
            )
            for client, node in nodes.items()
            if node is not None
        }
        replies = send_and_wait(self.roster.grid, present, TRAIN, str(self._round), self._seconds)
        answers: dict[int, Message | Failure] = {}
        for client, node in nodes.items():
            if client in self._absent:
                answers[client] = Absent("left earlier in the round", is_fault=False)
                continue
            reply = Absent("is not connected", is_fault=False) if node is None else replies[node]
            answers[client] = reply
            if isinstance(reply, Absent):
                self._absent.add(client)
            problem = reply.reason if isinstance(reply, Failure) else reply.refusal
            self.roster.record_answer(client, self._round, problem)
        self.on_roster_change()
        return answers
