"""A federation in one process in which every message is bytes, as between machines.

Each client builds the rule that an order names, keeps its own state, and sends bytes back. A method that gives the
local runtime's numbers here can run on a real federation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.engine.engine import Engine
from coterie.runtime.remote.client_runner import ClientRunner, StateStore
from coterie.runtime.remote.message import Message
from coterie.runtime.remote.runtime import RemoteRuntime
from coterie.runtime.runtime import Failure


class MemoryStateStore(StateStore):
    """States of a client that lives as long as this process."""

    def __init__(self) -> None:
        super().__init__(Path())
        self._states: dict[int, dict[str, Tensor]] = {}

    def load(self, number: int) -> dict[str, Tensor] | None:
        return self._states.get(number)

    def save(self, number: int, state: Mapping[str, Tensor]) -> None:
        self._states[number] = {name: values.clone() for name, values in state.items()}

    def delete_before(self, number: int) -> None:
        for old in [n for n in self._states if n < number]:
            del self._states[old]


class LoopbackRuntime(RemoteRuntime):
    """Carries every order and every answer as bytes to clients in this process."""

    def __init__(self, engine: Engine, bounds: NDArray[np.int64], client_dropout: float = 0.0) -> None:
        super().__init__(engine, bounds, client_dropout)
        self.bytes = 0
        self._stores = [MemoryStateStore() for _ in range(len(bounds))]
        self._runners = [ClientRunner(engine, store) for store in self._stores]

    def kept(self, client: int) -> Mapping[str, Tensor]:
        """The state that a client goes on from, by name."""
        return self._stores[client].load(self.states.of(client)) or {}

    def post(self, messages: Mapping[int, Message]) -> Mapping[int, Message | Failure]:
        replies: dict[int, Message | Failure] = {}
        for client, message in messages.items():
            reply = self._runners[client].answer(message)
            self.bytes += len(message.body) + len(reply.body)
            replies[client] = reply
        return replies
