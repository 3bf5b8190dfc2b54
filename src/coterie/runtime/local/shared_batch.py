"""What worker processes are asked, written into memory that they share with their parent, and room for answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.clients.open_files import remove_when_unmapped
from coterie.clients.rules.rule import Order
from coterie.methods.exchange import Outputs
from coterie.models.layout import BYTES_PER_SCALAR, Layout
from coterie.runtime.rows import Rows, StoredAnswer, allocate_rows, vector_shapes
from coterie.runtime.runtime import Failure
from coterie.runtime.shared_memory import Arena, Paths, Place, map_file
from coterie.runtime.states import ClientStates
from coterie.runtime.tasks import Batch, Task, TaskRunner, write_tasks

LARGE_MATRIX_BYTES = 1 << 20
"""A matrix of answers of at least this size is not copied for the method, but lies in memory of its own."""

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
    def work(self, runner: TaskRunner, pieces: MappedPieces, tasks: Sequence[Any]) -> list[StoredAnswer | Failure]:
        """Do one job in a worker."""


@dataclass(frozen=True, eq=False)
class SharedBatch(Question):
    """The orders of one exchange. A job is some of its tasks."""

    batch: Batch
    rows: Rows[Place]

    def work(self, runner: TaskRunner, pieces: MappedPieces, tasks: Sequence[Task]) -> list[StoredAnswer | Failure]:
        """Carry out tasks together; what is sent and kept is written to its place."""

        def keep(task: Task, name: str, values: Tensor) -> Place:
            place: Place = task.room[name]
            pieces.view(place).copy_(values)
            return place

        rows = self.rows.map(pieces.view)
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
        self, runner: TaskRunner, pieces: MappedPieces, tasks: Sequence[tuple[int, int]]
    ) -> list[StoredAnswer | Failure]:
        """Write the outputs of some models to their places."""
        for start, end in tasks:
            models, inputs = pieces.view(self.models)[start:end], pieces.view(self.inputs)
            inputs = inputs.long() if self.tokens else inputs
            pieces.view(self.outputs)[start:end] = runner.engine.outputs(models, inputs, self.temperature)
        return []


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
        self, orders: Sequence[Order], states: ClientStates, room: Room, keep: bool
    ) -> tuple[list[Task], SharedBatch, Rows[Tensor]]:
        """Write orders of one exchange: a task each, what they share, and the rows for their answers.

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
        return tasks, SharedBatch(self._arena.paths(), batch, rows.map(self._place)), rows

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
                places[i] = self._place(mine.copy_(values))
        return [place for place in places if place is not None]

    def _place(self, values: Tensor) -> Place:
        place = self._arena.place(values)
        assert place is not None, "what workers shall see must lie in the arena"
        return place


def copy_small(rows: Rows[Tensor]) -> Rows[Tensor]:
    """Copy what lies in memory that the next question is answered in: every small matrix."""
    return rows.map(lambda matrix: matrix if matrix.nbytes >= LARGE_MATRIX_BYTES else matrix.clone())
