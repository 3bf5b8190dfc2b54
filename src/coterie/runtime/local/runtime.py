"""The local runtime: all clients on this machine, one process a core, one thread each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.clients.engine.choice import LARGEST_CHUNK, choose_engine
from coterie.clients.engine.engine import Data, Engine, check_output_shape
from coterie.clients.engine.factory import engine_class
from coterie.clients.engine.private_steps import ExamplePrivacy
from coterie.clients.engine.upload_noise import UploadNoise
from coterie.clients.rules.rule import Answer, Order
from coterie.clients.rules.training import Training
from coterie.clients.tasks import Measure
from coterie.errors import BadInput
from coterie.grouping.exact_sums import ExactSums
from coterie.methods.exchange import Outputs
from coterie.models.networks import NETWORKS, Built, build_network, is_own
from coterie.models.origin import PLAIN, Origin
from coterie.plugins import give, import_modules
from coterie.runtime.dispatch import divide, divide_by_samples, ranges
from coterie.runtime.local.pool import Pool
from coterie.runtime.rows import Answered, Rows, StoredAnswer, allocate_rows, find_sums
from coterie.runtime.runtime import Failure, Runtime, answer_orders, compute_outputs
from coterie.runtime.shared_memory import Arena
from coterie.runtime.states import ClientStates
from coterie.runtime.tasks import TaskRunner
from coterie.runtime.threads import cores, one_thread

CHUNK_SCALARS = 1 << 24
"""Scalars of the models that one chunk trains: 64 MiB."""


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
    origin: Origin = PLAIN
    built: Built | None = None
    """The network, where it is somebody's own: it is built once, and other processes get copies of it."""
    imports: tuple[str, ...] = ()
    """Modules that register what the clients' work names, as metrics."""
    consent: frozenset[str] = frozenset()
    """What a person gave to the process that asks, and no other process could know (`coterie.plugins.consent`)."""
    metrics: tuple[Measure, ...] = ()
    """Of the task: a process that this reaches knows them by their names from then on."""
    upload_noise: UploadNoise | None = None
    """What clients do to the models that they send."""
    example_privacy: ExamplePrivacy | None = None
    """How clients hide any one training sample; None where they do not."""

    def build(self) -> Engine:
        """A fresh engine with a network of its own."""
        give(self.consent)
        import_modules(self.imports)
        built = self._build_network() if self.built is None else self.built.copy()
        check_output_shape(built.network, self.data, self.features)
        augmented = self.data.augment is not None
        privacy = self.example_privacy
        if privacy is not None:
            privacy.refuse(self.network, built.network, self.training)
        name, _ = choose_engine(
            built.network,
            built.layout,
            self.training,
            self.features,
            self.wanted,
            augmented,
            private=privacy is not None,
        )
        return engine_class(name, built.network, self.training)(
            built.network,
            built.layout,
            self.data,
            self.training,
            self.seed,
            built.initial,
            privacy,
            built.notes,
            self.upload_noise,
        )

    def prepared(self) -> EngineSpec:
        """The specification with the network built, where it is no registered one as it is registered.

        Whatever a class of somebody's own does when it is called, it does so once, and what is frozen is one memory
        for all processes of a machine.
        """
        if self.built is not None or not (is_own(self.network) or self.origin.weights):
            return self
        return replace(self, built=self._build_network())

    def target(self) -> Callable[..., nn.Module] | None:
        """What other processes must import to build the network; None where they get a copy."""
        return None if self.built is not None else NETWORKS[self.network].target

    def _build_network(self) -> Built:
        return build_network(
            self.network, self.settings, self.features, self.data.outputs, self.seed, 0, self.origin
        )


def _build(spec: EngineSpec, network: Callable[..., nn.Module] | None) -> Engine:
    """A fresh engine, also in a process that knows nothing yet: with `network` came the module that defines it."""
    if network is not None:
        NETWORKS.add_unless_known(spec.network, network)
    return spec.build()


class SimulatedRuntime(Runtime):
    """Has an engine that works for clients who are simulated; see `LocalRuntime` for the arguments."""

    def __init__(self, spec: EngineSpec, samples: NDArray[np.int64], client_dropout: float) -> None:
        with one_thread():
            self.spec = spec.prepared()
            self.engine = self.spec.build()
        super().__init__(self.engine.layout, samples, spec.seed, client_dropout)
        self.together = self.engine.together
        """The most clients that work in one kernel."""


class LocalRuntime(SimulatedRuntime):
    """Carries orders to clients simulated on this machine.

    Args:
        spec: how to build the engine that works for the clients.
        samples: training samples of each client `[n]`.
        client_dropout: see `Runtime`.
        workers: processes; None for one per core. With 1 and no timeout all happens in this process.
        timeout: seconds a client may take before it is left out of the round; None for no limit.
        states_mb: megabytes of clients' states in memory; see `ClientStates`.

    Raises:
        BadInput: the engine works in one process alone, and more is asked for.
    """

    def __init__(
        self,
        spec: EngineSpec,
        samples: NDArray[np.int64],
        client_dropout: float = 0.0,
        workers: int | None = None,
        timeout: float | None = None,
        states_mb: float = float("inf"),
    ) -> None:
        super().__init__(spec, samples, client_dropout)
        if self.engine.one_process:
            idle = [f"run.workers = {workers}"] * (workers not in (None, 1))
            idle += [f"run.client_timeout = {timeout}"] * (timeout is not None)
            if idle:
                raise BadInput(
                    f"{' with '.join(idle)} is not possible with run.engine = {spec.wanted!r}, which has one "
                    "process; leave it out"
                )
            workers = 1
        count = cores() if workers is None else workers
        alone = count == 1 and timeout is None
        self._worker_count = count
        self.tables = 1 if alone else count + 2
        """Tables of sums at a time, where sums are made: one a worker, one on its way, and the total."""
        # A client that takes too long costs its whole chunk the round's time: then chunks stay small.
        self._alike = self.engine.independent and self.together > 1 and timeout is None
        self.most = min(LARGEST_CHUNK, max(self.together, CHUNK_SCALARS // self.engine.layout.size))
        """The most clients of one chunk."""
        arena = None if alone else Arena()
        self.states: ClientStates = ClientStates(len(samples), arena, states_mb)
        self._pool: Pool | None = None
        if arena is not None:
            build = partial(_build, self.spec, self.spec.target())
            runner = TaskRunner(self.engine, self.sketcher)
            self._pool = Pool(runner, build, count, timeout, arena)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self.states.close()

    def outputs(self, ask: Outputs) -> Tensor:
        runs = ranges(len(ask.models), self.together)
        if self._pool is not None and runs:
            return self._pool.outputs(ask, runs)
        return compute_outputs(self.engine, ask)

    def deliver(self, orders: Sequence[Order], keep: bool) -> tuple[list[StoredAnswer | Failure], Rows[Tensor]]:
        chunks = self._chunks(orders)
        if self._pool is None:
            with one_thread():
                return self._answer_here(orders, chunks, keep)
        weights = [int(sum(self.samples[orders[i].client] for i in chunk)) for chunk in chunks]
        result = self._pool.distribute(orders, self.states, chunks, weights, keep, self.on_answers)
        self.notes += self._pool.notes
        self._pool.notes.clear()
        return result

    def _chunks(self, orders: Sequence[Order]) -> list[range]:
        """Who is asked together."""
        if self._alike:
            samples = self.samples[[order.client for order in orders]]
            return divide_by_samples(samples, self._worker_count, self.most)
        return divide(len(orders), self.together)

    def _answer_here(
        self, orders: Sequence[Order], chunks: Sequence[range], keep: bool
    ) -> tuple[list[StoredAnswer | Failure], Rows[Tensor]]:
        """Carry out orders in this process."""
        rows = allocate_rows(orders[0].rule, self.layout, len(orders), self.sketcher.width, keep)
        wanted = find_sums(orders, self.layout, self.tables)
        rows = replace(rows, sums={name: ExactSums.empty(self.layout.size, wanted[name]) for name in wanted})
        outcomes: list[StoredAnswer | Failure] = []
        for chunk in chunks:
            some = [orders[i] for i in chunk]
            states = [self.states.of(order.client) for order in some]
            answers = answer_orders(self.engine, some, states)
            good = [
                Answered(row, order, answer, state)
                for row, order, answer, state in zip(chunk, some, answers, states, strict=True)
                if isinstance(answer, Answer)
            ]
            rows.write(good, self.sketcher)
            for one in good if keep else ():
                self.states.update(one.order.client, one.answer.client_state)
            outcomes += [
                answer if isinstance(answer, Failure) else StoredAnswer.of(answer, row, {})
                for row, answer in zip(chunk, answers, strict=True)
            ]
            if self.on_answers is not None:
                self.on_answers(len(outcomes), len(orders))
        return outcomes, rows
