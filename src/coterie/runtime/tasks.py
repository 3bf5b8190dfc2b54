"""Orders and answers as they travel to other processes, and what such a process does with them.

All orders of an exchange share one `Batch`; each order is a `Task`, and each answer a `StoredAnswer`. Vectors do
not travel in them. They lie in shared memory (worker processes) or in Ray's object store (Ray), and a task says
where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from coterie.clients.engine.engine import Engine
from coterie.clients.rules.rule import Item, Order, Rule
from coterie.grouping.exact_sums import Reduce
from coterie.models.layout import Part
from coterie.runtime.rows import Answered, Rows, Sketcher, StoredAnswer
from coterie.runtime.runtime import Failure, answer_orders

Vector = Any
"""Where a vector lies: a `Place` in shared memory, or an array in Ray's object store."""


class Task(NamedTuple):
    """One order: what is not in its batch.

    Attributes:
        row: its number among the orders of the exchange.
        client: who is asked.
        items: the numbers of what it is sent, by name.
        settings: as in `Order`.
        upload_part: the numbers of the parts, by name.
        state: what the client keeps so far.
        room: where what it keeps from now on is to be put; empty where it comes back with the outcome.
        earlier: the numbers of what it was sent earlier in the round, as in `Order`.
    """

    row: int
    client: int
    items: Mapping[str, int]
    settings: Mapping[str, float]
    upload_part: Mapping[str, int]
    state: Mapping[str, Vector]
    room: Mapping[str, Vector]
    earlier: tuple[Mapping[str, int], ...]

    @property
    def item_numbers(self) -> set[int]:
        """The numbers of all that the client was sent."""
        return {number for items in (*self.earlier, self.items) for number in items.values()}


@dataclass(frozen=True, eq=False)
class Batch:
    """What the orders of one exchange have in common.

    Attributes:
        round: its number.
        rule: what every client runs.
        keep: whether clients keep what they answer.
        items: what clients are sent, each once, however many are sent it.
        parts: the parts of vectors that they send back, each once.
        reduce: of which of them sums are made, by name.
    """

    round: int
    rule: Rule
    keep: bool
    items: Mapping[int, tuple[Vector, Part | None]]
    parts: Mapping[int, Part]
    reduce: Mapping[str, Reduce] = field(default_factory=dict)


def write_tasks(
    orders: Sequence[Order],
    states: Sequence[Mapping[str, Tensor]],
    rooms: Sequence[Mapping[str, Vector]],
    keep: bool,
    share: Callable[[Sequence[Tensor]], Sequence[Vector]],
) -> tuple[list[Task], Batch]:
    """Write the orders of one exchange as tasks.

    Args:
        orders: at least one.
        states: what each client keeps.
        rooms: where each client's new state is to be put.
        keep: whether clients keep what they answer.
        share: puts vectors where other processes find them, and says where.
    """
    numbers: dict[object, int] = {}
    items: list[Item] = []
    parts: dict[Part, int] = {}

    def number(item: Item) -> int:
        key = id(item) if item.key is None else item.key
        if key not in numbers:
            numbers[key] = len(items)
            items.append(item)
        return numbers[key]

    sent = [[{n: number(item) for n, item in items.items()} for items in order.sent] for order in orders]
    vectors = [item.values for item in items] + [values for state in states for values in state.values()]
    places = iter(share(vectors))
    shared = {i: (next(places), item.part) for i, item in enumerate(items)}
    tasks = [
        Task(
            row,
            order.client,
            sent[row][-1],
            order.settings,
            {name: parts.setdefault(part, len(parts)) for name, part in order.upload_part.items()},
            {name: next(places) for name in states[row]},
            rooms[row],
            tuple(sent[row][:-1]),
        )
        for row, order in enumerate(orders)
    ]
    first = orders[0]
    return tasks, Batch(first.round, first.rule, keep, shared, {number: part for part, number in parts.items()})


class TaskRunner(NamedTuple):
    """What a process needs to carry out tasks."""

    engine: Engine
    sketcher: Sketcher

    @classmethod
    def of(cls, engine: Engine) -> TaskRunner:
        """A task runner with a sketcher for the engine's network."""
        return cls(engine, Sketcher(engine.layout, engine.seed))

    def run_tasks(
        self,
        batch: Batch,
        tasks: Sequence[Task],
        rows: Rows[Tensor],
        at: Sequence[int],
        view: Callable[[Vector], Tensor],
        keep: Callable[[Task, str, Tensor], Vector],
    ) -> list[StoredAnswer | Failure]:
        """Carry out tasks together, write what they send into `rows`, and return what else came of them.

        Args:
            batch: what the tasks have in common.
            tasks: some of its tasks.
            rows: where their uploads are put.
            at: the row of each task.
            view: returns the vector that lies somewhere.
            keep: puts a vector of a client's new state where the server finds it, and says where.
        """
        items: dict[int, Item] = {}
        for number in {number for task in tasks for number in task.item_numbers}:
            place, part = batch.items[number]
            items[number] = Item(view(place), part)
        orders = [_order(task, batch, items) for task in tasks]
        states = [{name: view(place) for name, place in task.state.items()} for task in tasks]
        # Ctrl-C does not reach this process: an interrupt comes from a rule, and is its client's failure.
        answers = answer_orders(self.engine, orders, states, blame=BaseException)
        good = []
        outcomes: list[StoredAnswer | Failure] = []
        for task, row, order, state, answer in zip(tasks, at, orders, states, answers, strict=True):
            if isinstance(answer, Failure):
                outcomes.append(answer)
                continue
            good.append(Answered(row, order, answer, state))
            kept: dict[str, Vector] = {}
            if batch.keep:
                new = answer.client_state.items()
                kept = {name: None if values is None else keep(task, name, values) for name, values in new}
            outcomes.append(StoredAnswer.of(answer, task.row, kept))
        rows.write(good, self.sketcher)
        return outcomes


def _order(task: Task, batch: Batch, items: Mapping[int, Item]) -> Order:
    *earlier, sent = [{n: items[number] for n, number in some.items()} for some in (*task.earlier, task.items)]
    parts = {name: batch.parts[number] for name, number in task.upload_part.items()}
    return Order(task.client, batch.round, batch.rule, sent, task.settings, parts, tuple(earlier))
