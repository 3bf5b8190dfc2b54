"""What worker processes are asked, written into memory that they share with their parent, and room for answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.clients.open_files import remove_when_unmapped
from coterie.clients.rules.rule import Order
from coterie.grouping.exact_sums import ExactSums, Reduce
from coterie.methods.exchange import Outputs
from coterie.models.layout import BYTES_PER_SCALAR, Layout
from coterie.runtime.rows import Rows, StoredAnswer, allocate_rows, find_sums, vector_shapes
from coterie.runtime.runtime import Failure
from coterie.runtime.shared_memory import Arena, Paths, Place, map_file
from coterie.runtime.states import ClientStates
from coterie.runtime.tasks import Batch, Task, TaskRunner, write_tasks

LARGE_MATRIX_BYTES = 1 << 20
"""A matrix of answers of at least this size is not copied for the method, but lies in memory of its own."""

Slot = Mapping[str, Place]
"""Where a message's sums are made, by name; empty where none are."""

Room = Mapping[str, dict[int, Tensor]]
"""Memory for each client's new state, by name and by the number of its order."""


class MappedPieces:
    """The parent's memory as a worker sees it: each piece is mapped when it is first looked at."""

    def __init__(self) -> None:
        self._paths: Paths = {}
        self._mapped: dict[int, Tensor] = {}

    def update(self, paths: Paths) -> None:
        """Learn which pieces there are now, and unmap all others."""
        self._paths = paths
        self._mapped = {number: memory for number, memory in self._mapped.items() if number in paths}

    def view(self, place: Place) -> Tensor:
        """The tensor that lies at a place."""
        if place.piece not in self._mapped:
            self._mapped[place.piece] = map_file(*self._paths[place.piece])
        return place.view(self._mapped[place.piece])

    def remove_files(self) -> None:
        """Remove the files that have a name, when their owner has gone."""
        for path, _ in self._paths.values():
            if not path.startswith("/proc/"):
                remove_when_unmapped(Path(path))


@dataclass(frozen=True, eq=False)
class Question(ABC):
    """What all jobs of one question to worker processes have in common."""

    paths: Paths

    @abstractmethod
    def work(
        self, runner: TaskRunner, pieces: MappedPieces, tasks: Sequence[Any], slot: Slot
    ) -> list[StoredAnswer | Failure]:
        """Do one job of a message in a worker."""


@dataclass(frozen=True, eq=False)
class SharedBatch(Question):
    """The orders of one exchange. A job is some of its tasks."""

    batch: Batch
    rows: Rows[Place]

    def work(
        self, runner: TaskRunner, pieces: MappedPieces, tasks: Sequence[Task], slot: Slot
    ) -> list[StoredAnswer | Failure]:
        """Carry out tasks together; what is sent and kept is written to its place, or added to the sums there."""

        def keep(task: Task, name: str, values: Tensor) -> Place:
            place: Place = task.room[name]
            pieces.view(place).copy_(values)
            return place

        sums = {name: _sums_at(pieces.view(place), self.batch.reduce[name]) for name, place in slot.items()}
        rows = replace(self.rows.map(pieces.view), sums=sums)
        return runner.run_tasks(self.batch, tasks, rows, [task.row for task in tasks], pieces.view, keep)


@dataclass(frozen=True, eq=False)
class SharedModels(Question):
    """Models whose outputs are wanted. A job is a range of them."""

    models: Place
    inputs: Place
    temperature: float
    outputs: Place
    tokens: bool = False
    """Whether the inputs are tokens, which this memory holds as float32 (exact below 2^24)."""

    def work(
        self, runner: TaskRunner, pieces: MappedPieces, tasks: Sequence[tuple[int, int]], slot: Slot
    ) -> list[StoredAnswer | Failure]:
        """Write the outputs of some models to their places."""
        for start, end in tasks:
            models, inputs = pieces.view(self.models)[start:end], pieces.view(self.inputs)
            inputs = inputs.long() if self.tokens else inputs
            pieces.view(self.outputs)[start:end] = runner.engine.outputs(models, inputs, self.temperature)
        return []


def _sums_at(memory: Tensor, reduce: Reduce) -> ExactSums:
    """The sums that lie in memory `[K, 2 (P + 2)]` of float32, two of which hold a number."""
    return ExactSums(memory.view(torch.int64), reduce)


class SumSlots:
    """Memory for the sums that workers make: a slot for each message that is on its way.

    What a message brings counts once it is done, and whole. A slot of a worker that died is written anew.

    Args:
        tables: for each slot a table of sums by name; see `_sums_at`.
        reduce: what is added up, by name.
        place: says where a table lies.
    """

    def __init__(
        self,
        tables: Sequence[Mapping[str, Tensor]],
        reduce: Mapping[str, Reduce],
        place: Callable[[Tensor], Place],
    ) -> None:
        self._free = list(tables)
        self._done: list[Mapping[str, Tensor]] = []
        self.reduce = reduce
        self._place = place
        self._taken: dict[int, Mapping[str, Tensor]] = {}
        self.total = {name: ExactSums.empty(t.shape[1] // 2 - 2, reduce[name]) for name, t in tables[0].items()}

    def has_room(self) -> bool:
        """Whether another message may be on its way."""
        return bool(self._free or self._done)

    def take(self) -> Slot:
        """Take a free slot, empty its sums, and say where they lie."""
        if not self._free:
            self.add_up()
        tables = self._free.pop()
        for name, table in tables.items():
            _sums_at(table, self.reduce[name]).clear()
        slot = {name: self._place(table) for name, table in tables.items()}
        self._taken[id(slot)] = tables
        return slot

    def give_back(self, slot: Slot, is_done: bool) -> None:
        """Take back a slot, and what it holds where its message is done."""
        (self._done if is_done else self._free).append(self._taken.pop(id(slot)))

    def add_up(self) -> None:
        """Add what the messages have brought that are done."""
        for tables in self._done:
            for name, table in tables.items():
                self.total[name].add_sums(_sums_at(table, self.reduce[name]))
        self._free += self._done
        self._done.clear()


class QuestionWriter:
    """Writes questions into shared memory, one at a time.

    Args:
        arena: the memory that is shared.
        layout: of the network.
        classes: of the data.
        width: numbers in a sketch.
    """

    def __init__(self, arena: Arena, layout: Layout, classes: int, width: int) -> None:
        self._arena = arena
        self._layout = layout
        self._classes = classes
        self._width = width
        self._inbox = self._small = torch.empty(0)

    def write_orders(
        self, orders: Sequence[Order], states: ClientStates, room: Room, keep: bool, workers: int
    ) -> tuple[list[Task], SharedBatch, Rows[Tensor], SumSlots | None]:
        """Write orders of one exchange: a task each, what they share, the rows for their answers, slots for sums.

        No worker may be busy: what the last question carried is overwritten.

        Raises:
            BadInput: there is no room.
        """
        rule = orders[0].rule
        make = self._allocator(len(rule.uploads) + 2)
        rows = allocate_rows(rule, self._layout, len(orders), self._width, keep, make)
        rooms = [{name: self._place(given[row]) for name, given in room.items()} for row in range(len(orders))]
        own = [states.of(order.client) for order in orders]
        tasks, batch = write_tasks(orders, own, rooms, keep, self._write)
        wanted = find_sums(orders, self._layout, workers + 2)
        slots = self._make_slots(wanted, workers + 1)
        batch = replace(batch, reduce={} if slots is None else slots.reduce)
        return tasks, SharedBatch(self._arena.paths(), batch, rows.map(self._place)), rows, slots

    def _make_slots(self, wanted: Mapping[str, Reduce], count: int) -> SumSlots | None:
        """Return as many slots for the sums that are wanted; None where none are."""
        if not wanted:
            return None
        sizes = {n: self._layout.size if r.part is None else r.part.size for n, r in wanted.items()}
        shapes = {name: (reduce.count, 2 * (sizes[name] + 2)) for name, reduce in wanted.items()}
        tables = [
            {name: self._arena.lease(torch.Size(shape).numel()).view(shape) for name, shape in shapes.items()}
            for _ in range(count)
        ]
        return SumSlots(tables, wanted, self._place)

    def write_models(self, ask: Outputs) -> tuple[SharedModels, Tensor]:
        """Write models whose outputs are wanted; also return the tensor that will hold the outputs.

        Raises:
            BadInput: there is no room.
        """
        outputs = self._allocator(1)((len(ask.models), len(ask.inputs), self._classes))
        models, inputs = self._write([ask.models, ask.inputs.float()])
        tokens = not ask.inputs.is_floating_point()
        paths, place = self._arena.paths(), self._place(outputs)
        return SharedModels(paths, models, inputs, ask.temperature, place, tokens), outputs

    def make_room(self, orders: Sequence[Order], states: ClientStates) -> Room:
        """Allocate memory for all that the clients may keep: in their states' own memory where workers see that.

        Raises:
            BadInput: there is no room.
        """
        rule, shapes, rooms = orders[0].rule, vector_shapes(orders[0].rule, self._layout), {}
        for name in rule.client_state:
            if states.shared:
                room = states.reserve(name, shapes[name], len(orders))
            else:
                shape = (len(orders), *shapes[name])
                room = list(self._arena.lease(torch.Size(shape).numel()).view(shape).unbind())
            rooms[name] = dict(enumerate(room))
        return rooms

    def close(self) -> None:
        """Give everything back."""
        self._inbox = self._small = torch.empty(0)
        self._arena.close()

    def _allocator(self, matrices: int) -> Callable[[tuple[int, ...]], Tensor]:
        """Return what allocates at most so many matrices of answers: large ones apart, small ones side by side."""
        if len(self._small) * BYTES_PER_SCALAR < matrices * LARGE_MATRIX_BYTES:
            self._small = self._arena.block(matrices * LARGE_MATRIX_BYTES // BYTES_PER_SCALAR)
        used = 0

        def make(shape: tuple[int, ...]) -> Tensor:
            nonlocal used
            size = torch.Size(shape).numel()
            if size * BYTES_PER_SCALAR >= LARGE_MATRIX_BYTES:
                return self._arena.lease(size).view(shape)
            used += size
            return self._small[used - size : used].view(shape)

        return make

    def _write(self, vectors: Sequence[Tensor]) -> list[Place]:
        """Write vectors that lie elsewhere into the arena, and return where all lie. No worker may be busy."""
        places = [self._arena.place(values) for values in vectors]
        new = [values for values, place in zip(vectors, places, strict=True) if place is None]
        size = sum(values.numel() for values in new)
        if size > len(self._inbox):
            self._inbox = torch.empty(0)  # so that both are not there at a time
            self._inbox = self._arena.block(int(size * 1.25) + 1024)
        end = 0
        for i, values in enumerate(vectors):
            if places[i] is None:
                mine = self._inbox[end : end + values.numel()].view(values.shape)
                end += values.numel()
                np.copyto(
                    mine.numpy(), values.detach().numpy()
                )  # PyTorch's threads would wait for the workers' cores
                places[i] = self._place(mine)
        return [place for place in places if place is not None]

    def _place(self, values: Tensor) -> Place:
        place = self._arena.place(values)
        assert place is not None, "what workers shall see must lie in the arena"
        return place


def copy_small(rows: Rows[Tensor]) -> Rows[Tensor]:
    """Copy what lies in memory that the next question is answered in: every small matrix."""
    return rows.map(lambda matrix: matrix if matrix.nbytes >= LARGE_MATRIX_BYTES else matrix.clone())
