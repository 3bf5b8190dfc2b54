"""The Ray runtime: all clients are simulated, in tasks on the machines of a Ray cluster.

Tasks keep nothing but an engine: what clients remember lies here and travels with their orders. So it does not
matter which machine answers, or that one is lost in mid-round, and the bits are those of the local runtime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rules.rule import Answer, Order
from coterie.errors import BadInput
from coterie.grouping.exact_sums import ExactSums
from coterie.methods.exchange import Outputs
from coterie.runtime.dispatch import Job, Setback, divide, ranges
from coterie.runtime.local.runtime import EngineSpec, SimulatedRuntime
from coterie.runtime.ray import calls
from coterie.runtime.ray.calls import Array, Shipped, Thing, as_array, as_tensor
from coterie.runtime.ray.cluster import Cluster
from coterie.runtime.ray.queue import Queue
from coterie.runtime.rows import (
    Answered,
    Rows,
    StoredAnswer,
    add_up,
    allocate_rows,
    find_apart,
    find_sums,
    is_added,
)
from coterie.runtime.runtime import Failure
from coterie.runtime.states import ClientStates
from coterie.runtime.tasks import Batch, Task, write_tasks


class RayRuntime(SimulatedRuntime):
    """Carries orders to clients simulated on a Ray cluster.

    Args:
        spec: how to build the engine that works for the clients; it is sent to each machine once, with the data.
        samples: training samples of each client `[n]`.
        client_dropout: see `Runtime`.
        address: of the cluster, `auto` or `HOST:PORT`; see `Cluster`.
        timeout: seconds a client may take before it is left out of the round; None for no limit.
        states_mb: megabytes of clients' states in memory; see `ClientStates`.

    Raises:
        BadInput: there is no such cluster (see `Cluster`), or the engine works in one process alone.
    """

    def __init__(
        self,
        spec: EngineSpec,
        samples: NDArray[np.int64],
        client_dropout: float = 0.0,
        address: str | None = None,
        timeout: float | None = None,
        states_mb: float = float("inf"),
    ) -> None:
        super().__init__(spec, samples, client_dropout)
        if self.engine.one_process:
            raise BadInput(
                f"run.engine = {spec.wanted!r} is not possible with run.runtime = 'ray', because it has one "
                "process; it must be auto, sequential or batched"
            )
        self.states: ClientStates = ClientStates(len(samples), None, states_mb)
        self._timeout = timeout
        self.cluster = Cluster(address)
        try:
            self._queue = Queue(self.cluster)
            self._ship(self.spec)
        except BaseException:
            self.close()
            raise

    def _ship(self, spec: EngineSpec) -> None:
        """Put the engine's specification where tasks find it, and say what a task is."""
        import ray

        remote = ray.remote(num_cpus=1, max_retries=0)  # the queue asks again by itself
        self._spec = ray.put(Shipped.of(spec))
        self._run_jobs = remote(calls.run_jobs if self._timeout is None else calls.announce_and_run_jobs)
        self._outputs = remote(calls.outputs)

    def close(self) -> None:
        self.cluster.close()
        self.states.close()

    def outputs(self, ask: Outputs) -> Tensor:
        import ray

        outputs = torch.empty(len(ask.models), len(ask.inputs), self.engine.distribution_size)
        models, inputs = ask.models.detach().numpy(), ray.put(ask.inputs.detach().numpy())

        def submit(jobs: Sequence[Job]) -> Any:
            some = [models[slice(*job.tasks[0])] for job in jobs]
            return self._outputs.remote(self._spec.hex(), self._spec, inputs, ask.temperature, some)

        jobs = [Job([some], some[1] - some[0]) for some in ranges(len(models), self.together)]
        for job, result in self._work_off(jobs, submit):
            if isinstance(result, Setback):
                raise RuntimeError(f"the outputs of models cannot be computed: {result.reason}")
            outputs.numpy()[slice(*job.tasks[0])] = result
        return outputs

    def deliver(self, orders: Sequence[Order], keep: bool) -> tuple[list[StoredAnswer | Failure], Rows[Tensor]]:
        rows = allocate_rows(orders[0].rule, self.layout, len(orders), self.sketcher.width, keep)
        wanted = find_sums(orders, self.layout, 1)
        rows = replace(rows, sums={name: ExactSums.empty(self.layout.size, wanted[name]) for name in wanted})
        outcomes: list[StoredAnswer | Failure] = [Failure("was not asked")] * len(orders)
        states = [self.states.of(order.client) for order in orders]
        tasks, batch = write_tasks(
            orders, states, [{}] * len(orders), keep, lambda some: [as_array(v) for v in some]
        )
        things, batch = _share(tasks, batch), replace(batch, items={}, reduce=wanted)

        def submit(jobs: Sequence[Job]) -> Any:
            some = [job.tasks for job in jobs]
            items = sorted({number for job in some for task in job for number in task.item_numbers})
            parts = {number for job in some for task in job for number in task.upload_part.values()}
            head = replace(batch, parts={number: batch.parts[number] for number in parts})
            sent = [things[number] for number in items]
            return self._run_jobs.remote(self._spec.hex(), self._spec, head, some, items, *sent)

        weights = self.samples[[order.client for order in orders]]
        chunks = divide(len(orders), self.together)
        jobs = [Job([tasks[i] for i in chunk], int(weights[chunk].sum())) for chunk in chunks]
        for job, result in self._work_off(jobs, submit, self._timeout):
            numbers = [task.row for task in job.tasks]
            if isinstance(result, Setback):
                some: list[StoredAnswer | Failure] = [Failure(result.reason)] * len(numbers)
            else:
                some, filled = result
                _take_in(filled, rows, some, [orders[number] for number in numbers], numbers)
            for number, outcome in zip(numbers, some, strict=True):
                outcomes[number] = outcome
                if isinstance(outcome, StoredAnswer):
                    new = outcome.client_state.items()
                    kept = {name: None if array is None else as_tensor(array) for name, array in new}
                    self.states.update(orders[number].client, kept)
        return outcomes, rows

    def _work_off(
        self, jobs: Sequence[Job], submit: Callable[[list[Job]], Any], timeout: float | None = None
    ) -> Iterator[tuple[Job, Any]]:
        yield from self._queue.work_off(jobs, submit, timeout)
        self.notes += self._queue.notes
        self._queue.notes.clear()


def _share(tasks: Sequence[Task], batch: Batch) -> dict[int, Thing]:
    """Return the items by number as calls take them: Ray holds one copy of what several clients are sent."""
    import ray

    uses = Counter(number for task in tasks for number in task.items.values())
    return {number: ray.put(item) if uses[number] > 1 else item for number, item in batch.items.items()}


def _take_in(
    source: Rows[Array],
    to: Rows[Tensor],
    outcomes: Sequence[StoredAnswer | Failure],
    orders: Sequence[Order],
    numbers: Sequence[int],
) -> None:
    """Copy matrices into the rows of these numbers, or add them to the sums."""
    at = np.asarray(numbers)
    for name, matrix in source.uploads.items():
        if (sums := to.sums.get(name)) is None:
            to.uploads[name].numpy()[at] = matrix
            continue
        apart = find_apart(outcomes, name, sums)
        if name in source.sums:
            sums.add_sums(source.sums[name])
        else:
            each = zip(numbers, orders, outcomes, matrix, strict=True)
            models = [(n, o, a, as_tensor(row)) for n, o, a, row in each if isinstance(a, StoredAnswer)]
            answers = [
                Answered(n, o, Answer({name: row}, a.numbers), {})
                for n, o, a, row in models
                if is_added(name, sums, a)
            ]
            add_up(answers, name, sums)
            matrix = matrix[apart]
        to.uploads[name].numpy()[at[apart]] = matrix
    for array, sketches in (
        (source.upload_sketches, to.upload_sketches),
        (source.state_sketches, to.state_sketches),
    ):
        if array is not None and sketches is not None:
            sketches.numpy()[at] = array
