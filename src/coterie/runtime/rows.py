"""Where the answers to one exchange are put: matrices with one row for each client that is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from coterie.clients.rules.rule import Answer, Order, Rule
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
    """

    uploads: Mapping[str, V]
    upload_sketches: V | None = None
    state_sketches: V | None = None

    def map(self, change: Callable[[V], W]) -> Rows[W]:
        """Apply `change` to every matrix."""
        sketches = (self.upload_sketches, self.state_sketches)
        return Rows(
            {name: change(matrix) for name, matrix in self.uploads.items()},
            *(None if matrix is None else change(matrix) for matrix in sketches),
        )

    def write(self: Rows[Tensor], answers: Sequence[Answered], sketcher: Sketcher) -> None:
        """Write what clients sent into their rows, and the sketches of their models beside it.

        Sketches of whole models in rows that follow one another are made together, which takes half the time.
        """
        whole = all(MODEL in one.answer.uploads and MODEL not in one.order.upload_part for one in answers)
        follow = all(two.row == one.row + 1 for one, two in pairwise(answers))
        together = answers and whole and follow and self.state_sketches is None
        for one in answers:
            self._write_uploads(one)
            if not together:
                self._write_sketches(one, sketcher)
        if together and self.upload_sketches is not None:
            rows = slice(answers[0].row, answers[-1].row + 1)
            self.upload_sketches[rows] = sketcher.each(self.uploads[MODEL][rows])

    def _write_uploads(self: Rows[Tensor], one: Answered) -> None:
        for name, matrix in self.uploads.items():
            place, part = matrix[one.row], one.order.upload_part.get(name)
            values = one.answer.uploads.get(name)
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
