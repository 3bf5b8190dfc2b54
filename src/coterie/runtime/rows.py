"""Where the answers to one exchange are put: matrices with one row for each client that is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.clients.rules.rule import Answer, Order, Rule
from coterie.grouping.exact_sums import BOUND, ExactSums, Reduce, as_matrix
from coterie.models.layout import Layout, Part
from coterie.models.sketch import Sketch

MODEL = "model"
"""The name under which a rule sends or keeps the model whose sketch is made."""

V = TypeVar("V")
W = TypeVar("W")


class StoredAnswer(NamedTuple):
    """What is left of an answer once its vectors lie elsewhere: its uploads in their row of `Rows`.

    Attributes:
        row: the number of that row.
        uploads: the names of the vectors that are there.
        numbers: as in `Answer`.
        report: as in `Answer`.
        client_state: where each vector of the client's new state lies, None for one that is deleted; empty where
            nothing is kept.
        update_lengths: as in `Answer`.
    """

    row: int
    uploads: tuple[str, ...]
    numbers: Mapping[str, float]
    report: Mapping[str, Any]
    client_state: Mapping[str, Any]
    update_lengths: Mapping[str, float] = {}

    @classmethod
    def of(cls, answer: Answer, row: int, client_state: Mapping[str, Any]) -> StoredAnswer:
        """What is left of an answer whose uploads are in a row."""
        return cls(row, tuple(answer.uploads), answer.numbers, answer.report, client_state, answer.update_lengths)


class Answered(NamedTuple):
    """An answer, and what is needed to write it into its row."""

    row: int
    order: Order
    answer: Answer
    state: Mapping[str, Tensor]
    """What the client had kept before."""


@dataclass(frozen=True, eq=False)
class Rows(Generic[V]):
    """Matrices `[m, ...]` over the clients of an exchange, in their order: as tensors, or where each lies.

    Attributes:
        uploads: what they sent, `[m, *shape]` by name; NaN where nothing crossed.
        upload_sketches: sketches `[m, width]` of the models that they sent, 0 counting for what did not cross.
        state_sketches: sketches `[m, width]` of the models that they keep.
        sums: what is added up of uploads, by name; of such a one only those have a row that are too long.
    """

    uploads: Mapping[str, V]
    upload_sketches: V | None = None
    state_sketches: V | None = None
    sums: Mapping[str, ExactSums] = field(default_factory=dict)

    def map(self, change: Callable[[V], W]) -> Rows[W]:
        """Apply `change` to every matrix."""
        sent, kept = (None if m is None else change(m) for m in (self.upload_sketches, self.state_sketches))
        return Rows({name: change(matrix) for name, matrix in self.uploads.items()}, sent, kept, self.sums)

    def write(self: Rows[Tensor], answers: Sequence[Answered], sketcher: Sketcher) -> None:
        """Write what clients sent into their rows or add it up, and write the sketches of their models beside it.

        Sketches of whole models in rows that follow one another are made together, which takes half the time.
        """
        whole = all(MODEL in one.answer.uploads and MODEL not in one.order.upload_part for one in answers)
        follow = all(two.row == one.row + 1 for one, two in pairwise(answers))
        together = answers and whole and follow and self.state_sketches is None
        for one in answers:
            self._write_uploads(one)
            if not together:
                self._write_sketches(one, sketcher)
        for name, sums in self.sums.items():
            add_up([one for one in answers if is_added(name, sums, one.answer)], name, sums)
        if together and self.upload_sketches is not None:
            rows = slice(answers[0].row, answers[-1].row + 1)
            apart = MODEL in self.sums
            models = (
                as_matrix([one.answer.uploads[MODEL] for one in answers]) if apart else self.uploads[MODEL][rows]
            )
            self.upload_sketches[rows] = sketcher.each(models)

    def _write_uploads(self: Rows[Tensor], one: Answered) -> None:
        for name, matrix in self.uploads.items():
            place, part = matrix[one.row], one.order.upload_part.get(name)
            values = one.answer.uploads.get(name)
            if name in self.sums and is_added(name, self.sums[name], one.answer):
                continue
            if values is None:
                place.fill_(float("nan"))
            elif part is None:
                place.copy_(values)
            else:
                part.copy(place.fill_(float("nan")), values)

    def _write_sketches(self: Rows[Tensor], one: Answered, sketcher: Sketcher) -> None:
        sent, part = one.answer.uploads.get(MODEL), one.order.upload_part.get(MODEL)
        kept = one.answer.client_state.get(MODEL, one.state.get(MODEL))
        if self.upload_sketches is not None:
            self.upload_sketches[one.row] = 0.0 if sent is None else sketcher(sent, part)
        if self.state_sketches is not None:
            if self.upload_sketches is not None and kept is sent and part is None:
                self.state_sketches[one.row] = self.upload_sketches[one.row]
            else:
                self.state_sketches[one.row] = 0.0 if kept is None else sketcher(kept)


def is_added(name: str, sums: ExactSums, answer: Answer | StoredAnswer) -> bool:
    """Whether an upload of which sums are made is added to one: not where it is so long that it has its row."""
    return name in answer.uploads and answer.update_lengths[name] <= sums.reduce.row_limit


def find_apart(outcomes: Sequence[object], name: str, sums: ExactSums) -> list[int]:
    """Return the positions of the answers that have a row of an upload of which sums are made."""
    return [i for i, one in enumerate(outcomes) if isinstance(one, StoredAnswer) and not is_added(name, sums, one)]


def add_up(answers: Sequence[Answered], name: str, sums: ExactSums) -> None:
    """Add an upload of all these answers to the sums of their groups."""
    clients, reduce = np.array([one.order.client for one in answers], np.int64), sums.reduce
    numbers = {}
    if answers and isinstance(reduce.groups, str):
        numbers[reduce.groups] = np.array([one.answer.numbers[reduce.groups] for one in answers])
    groups, weights = reduce.groups_of(clients, numbers), reduce.weights_of(clients)
    uploads = (one.answer.uploads[name] for one in answers)
    sent = [model for upload in uploads for model in (upload.unbind() if upload.dim() > 1 else (upload,))]
    for group in np.unique(groups).tolist():
        members = np.flatnonzero(groups == group).tolist()
        models = [sent[i] for i in members]
        crossed = models if reduce.part is None else [reduce.part.take(model) for model in models]
        sums.add(group, crossed, weights[members].tolist())


def find_sums(orders: Sequence[Order], layout: Layout, tables: int) -> dict[str, Reduce]:
    """Return of which uploads to make sums, by name: where that takes less memory than rows.

    Updates are so short there that no value exceeds what sums take, and what crosses is one part of all.

    Args:
        orders: of one exchange, at least one.
        layout: of the network.
        tables: how many tables of sums there are at a time.
    """
    reduces, room = orders[0].reduce, BOUND / 4
    if not reduces:
        return {}
    starts = {id(item): item.values for order in orders for sent in order.sent for item in sent.values()}
    if not all(float(values.abs().max()) <= 2 * room for values in starts.values() if values.numel()):
        return {}
    parts = {name: {order.upload_part.get(name) for order in orders} for name in reduces}
    limits = {
        name: replace(
            reduce,
            row_limit=min(reduce.row_limit, room if name == MODEL else reduce.grid.bound),
            part=next(iter(parts[name])),
        )
        for name, reduce in reduces.items()
        if len(parts[name]) == 1
    }
    shapes = vector_shapes(orders[0].rule, layout)
    return {
        name: reduce
        for name, reduce in limits.items()
        if shapes[name] == ((layout.size,) if reduce.groups is not None else (reduce.count, layout.size))
        and reduce.row_limit > 0
        and reduce.table_rows * tables < len(orders)
    }


class Sketcher:
    """Makes sketches of the trainable part of models."""

    def __init__(self, layout: Layout, seed: int) -> None:
        self._seen = layout.trainable
        self._sketch = Sketch(self._seen.size, seed)
        self.width = self._sketch.width

    def __call__(self, model: Tensor, part: Part | None = None) -> Tensor:
        """The sketch `[width]` of a model `[P]`; outside `part`, where there is one, it counts as 0."""
        values = model if part is None else part.copy(torch.zeros_like(model), model)
        return self.each(values[None])[0]

    def each(self, models: Tensor) -> Tensor:
        """The sketches `[n, width]` of models `[n, P]`, each as if it were alone."""
        return self._sketch(self._seen.take(models))


def allocate_rows(
    rule: Rule,
    layout: Layout,
    count: int,
    width: int,
    keep: bool,
    make: Callable[[tuple[int, ...]], Tensor] = torch.empty,
) -> Rows[Tensor]:
    """Make room for the answers of `count` clients to an exchange.

    Args:
        rule: what they run.
        layout: of their network.
        count: how many they are.
        width: numbers in a sketch.
        keep: whether they keep what they answer; sketches are made of nothing else.
        make: allocates a matrix of a shape.
    """
    shapes = vector_shapes(rule, layout)
    return Rows(
        {name: make((count, *shapes[name])) for name in rule.uploads},
        make((count, width)) if keep and MODEL in rule.uploads else None,
        make((count, width)) if keep and MODEL in rule.client_state else None,
    )


def vector_shapes(rule: Rule, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Return the shape of every vector that a rule sends or keeps, by name: `(P,)`, or what the rule says."""
    return {**dict.fromkeys((*rule.uploads, *rule.client_state), (layout.size,)), **rule.shapes(layout)}


def close_gaps(matrix: Tensor, numbers: Sequence[int]) -> Tensor:
    """Return the rows of these numbers. Ascending ones are moved up in place, so that nothing large is copied."""
    if all(a < b for a, b in pairwise(numbers)):
        for to, number in enumerate(numbers):
            if to != number:
                matrix[to] = matrix[number]
        return matrix[: len(numbers)]
    return matrix[torch.tensor(numbers)]
