"""The first layer in its dual form: when it is taken, whatever was kept and wherever the samples lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.clients.engine import dual_perceptron
from coterie.clients.engine.batched import Batched
from coterie.clients.engine.batched_steps import Descent
from coterie.clients.engine.dual_perceptron import Dual
from coterie.clients.rules import Train, Trained, Training
from tests.clients.engine.population import Population, population

COUNTS = (40, 40, 33, 64, 7, 1)
FEATURES = (12, 12, 1)


def people() -> Population:
    return population(
        Batched, Training(epochs=2, batch_size=10, lr=0.1), counts=COUNTS, features=FEATURES, hidden=(40,)
    )


def trained(some: Population, ids: Sequence[int] | None = None) -> list[Trained]:
    ids = range(len(some.clients)) if ids is None else ids
    asked = [Train(some.models[i]) for i in ids]
    found = some.engine.answer([some.clients[i] for i in ids], asked)
    return [f for f in found if isinstance(f, Trained)]


def assert_same(found: Sequence[Trained], expected: Sequence[Trained]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.model, b.model)
        assert a.loss == b.loss


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients each kernel took that trained in the dual form."""
    counts: list[int] = []
    descend = Dual.descend

    def counted(self: Dual, task: Descent, room: int, classes: int) -> Tensor:
        counts.append(len(task.clients))
        return descend(self, task, room, classes)

    monkeypatch.setattr(Dual, "descend", counted)
    return counts


def test_what_was_kept_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    some = people()
    expected = trained(some)
    assert_same(trained(some), expected)
    monkeypatch.setattr(dual_perceptron, "KEPT", 1)
    scarce = people()
    for _ in range(2):
        assert_same(trained(scarce), expected)


def test_other_samples_are_seen(taken: list[int]) -> None:
    some, other = people(), people()
    trained(some)
    for each in (some, other):
        each.data.inputs[0] = each.data.inputs[0].flip(1).contiguous()
    assert_same(trained(some), trained(other))
    assert sum(taken) >= 3 * len(COUNTS)


def test_where_the_samples_lie_changes_nothing() -> None:
    expected = trained(people())
    moved = people()
    for i, x in enumerate(moved.data.inputs):
        moved.data.inputs[i] = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    assert_same(trained(moved), expected)


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, True), ({"pull": 9.0}, True), ({"pull": 10.0}, False), ({"clip": 1.0}, False)]
)
def test_plain_steps_are_taken_in_it(taken: list[int], settings: dict[str, Any], expected: bool) -> None:
    """But where lr pull is 1: no step without the pull and what is left of the way make that one."""
    some = people()
    some.engine.answer(some.clients, [Train(m, **settings) for m in some.models])
    assert bool(taken) == expected
