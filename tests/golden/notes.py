"""What scripts that run an original note down: in which order a client meets its samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class NotedLoader:
    """Their loader, which also notes in which order it hands out the rows of `inputs`."""

    def __init__(self, loader: Any, inputs: NDArray[np.float32], passes: list[list[int]]) -> None:
        self._loader = loader
        self._rows = {row.tobytes(): number for number, row in enumerate(inputs)}
        self.passes = passes

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        order: list[int] = []
        self.passes.append(order)
        for x, y in self._loader:
            order += [self._rows[row.tobytes()] for row in x.numpy()]
            yield x, y


def pad_orders(rounds: Sequence[Sequence[Sequence[Sequence[int]]]]) -> NDArray[np.int8]:
    """Return `[rounds, clients, passes, samples]` of rounds, clients and passes; -1 where there is nothing."""
    passes = [[len(of) for of in clients] for clients in rounds]
    samples = max(len(order) for clients in rounds for of in clients for order in of)
    orders = np.full((len(rounds), len(rounds[0]), np.max(passes), samples), -1, np.int8)
    for number, clients in enumerate(rounds):
        for client, of in enumerate(clients):
            for index, order in enumerate(of):
                orders[number, client, index, : len(order)] = order
    return orders
