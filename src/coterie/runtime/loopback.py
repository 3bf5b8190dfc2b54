"""A federation in one process in which every message is bytes, as between machines.

Each client has its own engine's view of the world: it builds the rule an order names, holds its own state, and
sends bytes back. What runs here and gives the local runtime's numbers can run on a real federation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rule import Answer, Order
from coterie.engine.engine import Engine
from coterie.exchange import Outputs
from coterie.problems import BadInput
from coterie.runtime.rows import Carried, matrices
from coterie.runtime.runtime import Failure, Runtime, carried_out, unsound
from coterie.runtime.threads import one_thread
from coterie.runtime.wire import pack_answer, pack_order, unpack_answer, unpack_order


class LoopbackRuntime(Runtime):
    """Carries every order and every answer as bytes."""

    def __init__(self, engine: Engine, samples: NDArray[np.int64], dropout: float = 0.0) -> None:
        super().__init__(engine.layout, samples, engine.seed, dropout)
        self.bytes = 0
        self._engine = engine
        self._homes: dict[int, dict[str, Tensor]] = {int(c): {} for c in range(len(samples))}

    def outputs(self, ask: Outputs) -> Tensor:
        with one_thread():
            return self._engine.outputs(ask.models, ask.inputs, ask.temperature)

    def carry(self, orders: Sequence[Order], keep: bool) -> list[Answer | Failure]:
        if not orders:
            return []
        rows = matrices(orders[0].rule, self.layout, len(orders), self.sketcher.width, keep, torch.empty)
        with one_thread():
            found = [self._carry(order, keep) for order in orders]
        for row, (order, answer) in enumerate(zip(orders, found, strict=True)):
            if isinstance(answer, Answer):
                # What a client keeps is its own; on this side nothing of it is known.
                rows.put(row, order, answer, {}, self.sketcher)
                send = {name: rows.sent[name][row] for name in answer.send}
                found[row] = Carried(send, answer.numbers, {}, answer.report, rows, row)
        return found

    def _carry(self, order: Order, keep: bool) -> Answer | Failure:
        message = pack_order(order)
        try:
            back = self._at_home(order.client, message, keep)
            self.bytes += len(message) + len(back)
            answer = unpack_answer(order, back, self.layout)
            # A client on another machine says what it likes: the server looks for itself.
            wrong = unsound(order, answer, self.layout)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a client does, the round goes on
            reason = str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
            return Failure(reason)
        return answer if wrong is None else Failure(wrong)

    def _at_home(self, client: int, message: bytes, keep: bool) -> bytes:
        """What happens on the client's own machine."""
        order = unpack_order(message)
        home = self._homes[client]
        (answer,) = carried_out(self._engine, [order], [home])
        if isinstance(answer, Failure):
            raise BadInput(answer.reason)
        if keep:
            for name, values in answer.keep.items():
                if values is None:
                    home.pop(name, None)
                else:
                    home[name] = values
        return pack_answer(order, answer)
