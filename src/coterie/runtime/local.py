"""The local runtime: all clients on this machine, one process a core, one thread each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rule import Answer, Order
from coterie.clients.training import Training
from coterie.engine.batched import Batched
from coterie.engine.choice import choose_engine, chunk_size
from coterie.engine.engine import Data, Engine
from coterie.engine.sequential import Sequential
from coterie.exchange import Outputs
from coterie.models.networks import build, initialise
from coterie.runtime.runtime import Failure, Runtime, carried_out
from coterie.runtime.threads import one_thread
from coterie.runtime.workers import Pool, cores


@dataclass(frozen=True, eq=False)
class EngineSpec:
    """All that is needed to build an engine, here or in a worker."""

    network: str
    settings: Mapping[str, Any]
    features: tuple[int, ...]
    data: Data
    training: Training
    seed: int
    wanted: str = "auto"

    def build(self) -> Engine:
        """A fresh engine with a network of its own."""
        network, layout = build(self.network, self.settings, self.features, self.data.classes, self.seed)
        initial = initialise(network, layout, self.seed)
        name, _ = choose_engine(network, layout, self.training, self.features, self.wanted)
        kind = Batched if name == "batched" else Sequential
        return kind(network, layout, self.data, self.training, self.seed, initial)


class LocalRuntime(Runtime):
    """Carries orders to clients simulated on this machine.

    Args:
        spec: how to build the engine that works for the clients.
        samples: training samples of each client `[n]`.
        dropout: see `Runtime`.
        workers: processes; None for one per core. With 1 and no timeout all happens in this process.
        timeout: seconds a client may take before it is left out of the round; None for no limit.
    """

    def __init__(
        self,
        spec: EngineSpec,
        samples: NDArray[np.int64],
        dropout: float = 0.0,
        workers: int | None = None,
        timeout: float | None = None,
    ) -> None:
        with one_thread():
            self.engine = spec.build()
        super().__init__(self.engine.layout, samples, spec.seed, dropout)
        self.states = ClientStates(len(samples))
        batched = isinstance(self.engine, Batched)
        self._chunk = chunk_size(self.layout, spec.training.batch_size) if batched else 1
        count = cores() if workers is None else workers
        alone = count == 1 and timeout is None
        self._pool = None if alone else Pool(self.engine, spec.build, count, timeout)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def outputs(self, ask: Outputs) -> Tensor:
        with one_thread():
            return self.engine.outputs(ask.models, ask.inputs, ask.temperature)

    def carry(self, orders: Sequence[Order], keep: bool) -> list[Answer | Failure]:
        # Chunks depend on who takes part alone, never on the number of workers: a kernel's last digits may
        # depend on who shares it. Eight chunks or so keep the usual number of cores busy.
        size = min(self._chunk, max(8, -(-len(orders) // 8)))
        chunks = [list(range(a, min(a + size, len(orders)))) for a in range(0, len(orders), size)]
        states = [self.states.of(order.client) for order in orders]
        if self._pool is None:
            with one_thread():
                found = self._here(orders, states, chunks)
        else:
            weights = [int(sum(self.samples[orders[i].client] for i in chunk)) for chunk in chunks]
            found = self._pool.carry_out(orders, states, chunks, weights)
        for order, answer in zip(orders, found, strict=True):
            if keep and isinstance(answer, Answer):
                self.states.update(order.client, answer.keep)
        return found

    def _here(
        self, orders: Sequence[Order], states: Sequence[Mapping[str, Tensor]], chunks: list[list[int]]
    ) -> list[Answer | Failure]:
        found: list[Answer | Failure] = [Failure("was not asked")] * len(orders)
        queue = list(chunks)
        while queue:
            chunk = queue.pop(0)
            try:
                answers = carried_out(self.engine, [orders[i] for i in chunk], [states[i] for i in chunk])
            except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a rule does, the round goes on
                if len(chunk) > 1:  # one of them failed: find out which, and keep the others
                    queue[:0] = [[i] for i in chunk]
                    continue
                answers = [Failure(f"{type(error).__name__}: {error}")]
            for i, answer in zip(chunk, answers, strict=True):
                found[i] = answer
        return found


class ClientStates:
    """What the clients keep, `[n, *shape]` by name: allocated when first kept, given back when all forgot it."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self.kept: dict[str, Tensor] = {}
        self.has: dict[str, Tensor] = {}
        self._before: dict[tuple[str, int], Tensor | None] = {}

    def commit(self) -> None:
        """Keep what was updated since the last commit for good."""
        self._before.clear()
        self._give_back()

    def roll_back(self) -> None:
        """Undo every update since the last commit."""
        for (name, client), values in self._before.items():
            self._set(name, client, values)
        self._before.clear()
        self._give_back()

    def of(self, client: int) -> dict[str, Tensor]:
        """The state of one client, as views."""
        return {name: rows[client] for name, rows in self.kept.items() if self.has[name][client]}

    def update(self, client: int, keep: Mapping[str, Tensor | None]) -> None:
        """Replace what one client keeps under the given names; None forgets it.

        Raises:
            ValueError: others keep something of another shape under a name.
        """
        for name, values in keep.items():
            if name not in self.kept:
                if values is None:
                    continue
                self.kept[name] = torch.zeros(self._clients, *values.shape)
                self.has[name] = torch.zeros(self._clients, dtype=torch.bool)
            shape = self.kept[name].shape[1:]
            if values is not None and values.shape != shape:
                own = tuple(values.shape)
                raise ValueError(f"client {client} keeps a {name} of the shape {own}; others keep {tuple(shape)}")
            if (name, client) not in self._before:
                self._before[name, client] = self.kept[name][client].clone() if self.has[name][client] else None
            self._set(name, client, values)

    def _set(self, name: str, client: int, values: Tensor | None) -> None:
        self.has[name][client] = values is not None
        self.kept[name][client] = 0.0 if values is None else values

    def _give_back(self) -> None:
        """The memory of what nobody has any more; before a commit it may be needed to go back."""
        for name in [name for name, has in self.has.items() if not has.any()]:
            del self.kept[name], self.has[name]
