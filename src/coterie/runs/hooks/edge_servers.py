"""Edge servers between clients and server: what crosses the links behind them, round by round.

An edge receives once what the server sends to several of its clients, and hands it on. It adds up uploads of which
the method wants only means, and passes all others on as they came. Sums are exact, so a run has the same bits with
edge servers and without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.errors import BadInput
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Log, Replies
from coterie.models.layout import BYTES_PER_SCALAR
from coterie.runs.hooks.hook import Hook
from coterie.runs.record import RoundResult
from coterie.runtime.ledger import FROZEN

if TYPE_CHECKING:
    from coterie.runs.session import Session

EDGE_BYTES = "edge bytes"
"""The name in a run's log of what went between edge servers and the server, up and down."""

BYTES_PER_SUM = 8
"""Of a number of a sum; so many have its weight and its count, too."""


class EdgeServers(Hook):
    """Counts what edge servers exchange with the server. Each has as many clients as the others, in their order."""

    def __init__(self, run: Session) -> None:
        super().__init__(run)
        count, n = run.experiment.run.edge_servers, run.server.n
        assert count is not None
        if count > n:
            raise BadInput(
                f"run.edge_servers = {count:,} is more than the clients in training; it must be at most {n}"
            )
        self._edge: list[int] = (np.arange(n) * count // n).tolist()
        self._up = self._down = 0

    @classmethod
    def is_on(cls, run: Session) -> bool:
        return run.experiment.run.edge_servers is not None

    def ask(self, exchange: Exchange) -> None:
        self._counted = len(self.run.runtime.ledger.rows)
        self._equipped = {self._edge[client] for client in self.run.runtime.equipped}

    def row_limit(self, exchange: Exchange, name: str, number: int) -> float:
        return inf

    def reply(self, exchange: Exchange, replies: Replies, result: RoundResult) -> Replies:
        crossed = self.run.runtime.ledger.rows[self._counted :]
        items = {order.client: order.items for order in exchange.orders(result.number)}
        sent: dict[Hashable, int] = {}
        added = Counter[tuple[int, str, int]]()
        sizes: dict[str, int] = {}
        groups = {
            name: _find_groups(exchange.reduce[name], replies, sums.rows) for name, sums in replies.sums.items()
        }
        for client, direction, what, scalars in crossed:
            edge = self._edge[client]
            if direction == "down":
                if what != FROZEN:
                    sent[edge, what, items[client][what].key] = scalars
                elif edge not in self._equipped:
                    sent[edge, what] = scalars
            elif client in groups.get(what, ()):
                added[edge, what, groups[what][client]] += 1
                sizes[what] = scalars
            else:
                self._up += scalars * BYTES_PER_SCALAR
        self._down += sum(sent.values()) * BYTES_PER_SCALAR
        for (_, what, _), clients in added.items():
            reduce, alone = exchange.reduce[what], sizes[what] * BYTES_PER_SCALAR
            sums = reduce.count if reduce.groups is None else 1
            self._up += (sizes[what] + 2 * sums) * BYTES_PER_SUM if clients > 1 else alone
        return replies

    def round_played(self, result: RoundResult) -> None:
        self.run.runtime.logged.append(Log(EDGE_BYTES, {"up": self._up, "down": self._down}))
        self._up = self._down = 0

    def run_ended(self) -> Sequence[str]:
        folder = self.run.folder
        if folder is not None:
            log = folder.log().filter(pl.col("name") == EDGE_BYTES)
            up, down = (float(log.filter(pl.col("of") == way)["value"].sum()) for way in ("up", "down"))
            count = len(set(self._edge))
            self.run.tell(
                [f"the edge servers ({count}) sent the server {up / 1e6:,.2f} MB and received {down / 1e6:,.2f} MB"]
            )
        return ()


def _find_groups(reduce: Reduce, replies: Replies, apart: NDArray[np.int64]) -> dict[int, int]:
    """Return in which sum each client's upload is; those `apart`, positions among the replies, are in none.

    Who sends a model for every group adds to all sums, which cross together.
    """
    clients = replies.clients
    every = reduce.groups is None
    groups = np.zeros(len(clients), np.int64) if every else reduce.groups_of(clients, replies.numbers)
    alone = set(clients[apart].tolist())
    return {c: group for c, group in zip(clients.tolist(), groups.tolist(), strict=True) if c not in alone}
