"""What a remote call of the Ray runtime does in its worker process, where nothing is left of it but an engine.

Nothing here knows Ray. What travels is plain values and arrays: Ray lays arrays into memory that all processes of a
machine see, so that they come as views that nobody may write to, without a copy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.clients.engine.engine import Engine
from coterie.grouping.exact_sums import ExactSums
from coterie.models.layout import Part
from coterie.models.networks import NETWORKS
from coterie.runtime.local.runtime import EngineSpec
from coterie.runtime.rows import Rows, StoredAnswer, allocate_rows, find_apart
from coterie.runtime.runtime import Failure
from coterie.runtime.tasks import Batch, Task, TaskRunner
from coterie.runtime.threads import one_thread

Array = NDArray[np.float32]
Thing = tuple[Array, Part | None]
"""An item as it travels."""


@dataclass(frozen=True, eq=False)
class Shipped:
    """An engine's specification as it travels: the tensors of its data as arrays, one copy a machine."""

    spec: EngineSpec
    network: Callable[..., nn.Module] | None
    """Comes with the module that registers it, or by itself from one that cannot be imported, as a notebook."""
    arrays: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, spec: EngineSpec) -> Shipped:
        data: Any = spec.data
        arrays: dict[str, NDArray[Any]] = {}
        if is_dataclass(data) and not isinstance(data, type):
            values = {field.name: getattr(data, field.name) for field in fields(data)}
            arrays = {name: as_array(value) for name, value in values.items() if isinstance(value, Tensor)}
            data = replace(data, **dict.fromkeys(arrays))
        return cls(replace(spec, data=data), spec.target(), arrays)

    def build(self) -> Engine:
        """The engine, with data that lie where they came."""
        if self.network is not None:
            NETWORKS.add_unless_known(self.spec.network, self.network)
        data: Any = self.spec.data
        if self.arrays:
            data = replace(data, **{name: as_tensor(array) for name, array in self.arrays.items()})
        return replace(self.spec, data=data).build()


_runners: dict[str, TaskRunner] = {}
"""The last that this process built, under its key."""


def runner_of(key: str, shipped: Shipped) -> TaskRunner:
    """Build a task runner from what was shipped under a key; this process may have it from an earlier task."""
    if key not in _runners:
        _runners.clear()  # one federation at a time
        with one_thread(blas=True):
            _runners[key] = TaskRunner.of(shipped.build())
    return _runners[key]


JobAnswer = tuple[list[StoredAnswer | Failure], Rows[Array]]
"""What came of the tasks of one job, and rows that hold one row for each of them, or for those not in sums.

The sums of a whole call are with its first job.
"""


def run_jobs(
    key: str, shipped: Shipped, batch: Batch, jobs: Sequence[Sequence[Task]], items: Sequence[int], *things: Thing
) -> list[JobAnswer]:
    """Carry out jobs, the tasks of each together.

    Args:
        key: of what was shipped.
        shipped: the engine's specification.
        batch: what the tasks have in common, but for its items.
        jobs: tasks.
        items: the numbers of the items that these tasks are sent.
        things: those items.
    """
    runner = runner_of(key, shipped)
    batch = replace(batch, items=dict(zip(items, things, strict=True)))
    answers: list[JobAnswer] = []
    layout, count = runner.engine.layout, sum(len(tasks) for tasks in jobs)
    wanted = {name: reduce for name, reduce in batch.reduce.items() if reduce.table_rows < count}
    sums = {name: ExactSums.empty(layout.size, reduce) for name, reduce in wanted.items()}
    empty = {name: ExactSums(made.table[:, -2:].clone(), made.reduce) for name, made in sums.items()}
    with one_thread(blas=True):
        for tasks in jobs:
            rows = allocate_rows(batch.rule, layout, len(tasks), runner.sketcher.width, batch.keep)
            rows = replace(rows, sums=sums)
            at = range(len(tasks))
            outcomes = runner.run_tasks(
                batch, tasks, rows, at, as_tensor, lambda task, name, values: as_array(values)
            )
            apart = {name: rows.uploads[name][find_apart(outcomes, name, made)] for name, made in sums.items()}
            rows = replace(rows, uploads={**rows.uploads, **apart}, sums=empty if answers else sums)
            answers.append((outcomes, rows.map(as_array)))
    return answers


def announce_and_run_jobs(
    key: str, shipped: Shipped, batch: Batch, jobs: Sequence[Sequence[Task]], items: Sequence[int], *things: Thing
) -> Iterator[list[JobAnswer] | None]:
    """Do the same; None comes first, when the engine is there: then the clients' time begins."""
    runner_of(key, shipped)
    yield None
    yield run_jobs(key, shipped, batch, jobs, items, *things)


def outputs(key: str, shipped: Shipped, inputs: Array, temperature: float, models: Sequence[Array]) -> list[Array]:
    """Compute softmax outputs `[k, samples, classes]` for each of some matrices of models `[k, P]`."""
    engine = runner_of(key, shipped).engine
    with one_thread(blas=True):
        return [as_array(engine.outputs(as_tensor(some), as_tensor(inputs), temperature)) for some in models]


def as_array(values: Tensor) -> NDArray[Any]:
    """Return the tensor as an array in the same memory."""
    return values.detach().numpy()


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return the array as a tensor in the same memory, also where that may not be written to."""
    with warnings.catch_warnings():
        # Nobody writes to it: rules that would are given copies (`runtime.answer_orders`), and data are only read.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
