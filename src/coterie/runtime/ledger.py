"""Every transfer, counted from the message itself (docs/methods/conventions.md, convention 10)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from coterie.clients.rules.rule import Order
from coterie.models.layout import BYTES_PER_SCALAR
from coterie.runtime.rows import Rows, StoredAnswer

Direction = Literal["down", "up"]

FROZEN = "frozen parameters"
"""How the ledger calls what is frozen in a network."""

SUMS = "sums for standardising"
"""How the ledger calls what clients tell, and hear, so that inputs are standardised alike."""


@dataclass
class Ledger:
    """The transfers of the current round, one row each: (client, direction, what, scalars)."""

    rows: list[tuple[int, Direction, str, int]] = field(default_factory=list)

    def clear(self) -> None:
        self.rows.clear()

    def count_order(self, order: Order) -> None:
        """Count what the server sends a client: the scalars of every item. Settings are not traffic."""
        for what, item in order.items.items():
            self.rows.append((order.client, "down", what, item.values.numel()))

    def count_frozen(self, client: int, scalars: int) -> None:
        """Count what of a network never changes, which a client downloads once, before its first order."""
        self.rows.append((client, "down", FROZEN, scalars))

    def count_sums(self, client: int, channels: int) -> None:
        """Count what is told once so that all standardise alike; each number is of twice the bytes of a scalar.

        Count, sum and sum of squares of each channel go up, its mean and deviation come down.
        """
        self.rows.append((client, "up", SUMS, 2 * 3 * channels))
        self.rows.append((client, "down", SUMS, 2 * 2 * channels))

    def count_answer(self, order: Order, outcome: StoredAnswer, rows: Rows[Tensor]) -> None:
        """Count what a client sends back: the part of every vector that crosses, and its numbers."""
        for what in order.rule.uploads:  # in this order, whichever way the answer came
            if what in outcome.uploads:
                part = order.upload_part.get(what)
                scalars = rows.uploads[what].shape[1:].numel() if part is None else part.size
                self.rows.append((order.client, "up", what, scalars))
        for what in outcome.numbers:
            self.rows.append((order.client, "up", what, 1))

    def bytes(self, direction: Direction) -> dict[int, int]:
        """Bytes of this round by client."""
        found: dict[int, int] = defaultdict(int)
        for client, way, _, scalars in self.rows:
            if way == direction:
                found[client] += scalars * BYTES_PER_SCALAR
        return dict(found)

    def seconds(self, link_mbit: float, compute: dict[int, float]) -> float:
        """Simulated seconds of the round: the slowest client's computing and its transfers, one after the other.

        `T = max_i [T_cmp,i + 8 up_i / R + 8 down_i / R]` with R = `link_mbit` (docs/methods/conventions.md,
        convention 11).
        """
        up, down = self.bytes("up"), self.bytes("down")
        clients = {*up, *down, *compute}
        rate = link_mbit * 1e6 / 8
        return max((compute.get(c, 0.0) + (up.get(c, 0) + down.get(c, 0)) / rate for c in clients), default=0.0)
