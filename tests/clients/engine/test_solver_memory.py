"""What the local solver remembers, carried over from one training to the next, and a learning rate by request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import Client, Train, Trained, Training
from coterie.clients.rules.training import solver_size
from tests.clients.engine.population import Population, population

Kind = type[Sequential] | type[Batched]

SOLVERS = {
    "sgd": Training(epochs=1, batch_size=10),
    "momentum": Training(epochs=1, batch_size=10, momentum=0.9, weight_decay=0.01),
    "adam": Training(epochs=1, batch_size=10, lr=0.01, optimizer="adam"),
    "adam and a momentum nobody uses": Training(epochs=1, batch_size=10, lr=0.01, optimizer="adam", momentum=0.5),
}


class InOrder(Client):
    """A client whose epochs are all alike."""

    def stream(self, purpose: str) -> Any:
        return self

    def permutation(self, count: int) -> np.ndarray:
        return np.arange(count)


def steady(people: Population) -> list[Client]:
    return [InOrder(**vars(c)) for c in people.clients]


def train(people: Population, requests: list[Train]) -> list[Trained]:
    found = people.engine.answer(steady(people), requests)
    assert all(isinstance(r, Trained) for r in found)
    return [r for r in found if isinstance(r, Trained)]


def solver(result: Trained) -> Tensor:
    assert result.solver is not None
    return result.solver


@pytest.mark.each_once
@pytest.mark.parametrize("layers", ["all", "last:1", "fc1"])
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("kind", [Sequential, Batched])
def test_one_epoch_and_one_more_are_two(kind: Kind, name: str, layers: str) -> None:
    training = SOLVERS[name]
    people = population(kind, training)
    part = None if layers == "all" else people.layout.select(layers)
    whole = train(people, [Train(m, epochs=2, part=part, keep_solver=True) for m in people.models])
    first = train(people, [Train(m, part=part, keep_solver=True) for m in people.models])
    second = train(people, [Train(r.model, part=part, solver=solver(r), keep_solver=True) for r in first])
    afresh = train(people, [Train(r.model, part=part) for r in first])
    size = solver_size(training, people.layout)
    # In its dual form a first layer's steps are added up over all epochs, and the sum's last digits are others.
    exact = kind is Sequential or name != "sgd" or layers == "last:1"
    for a, b, c in zip(whole, second, afresh, strict=True):
        torch.testing.assert_close(a.model, b.model, atol=0.0 if exact else 1e-6, rtol=0)
        assert a.loss == pytest.approx(b.loss, abs=0.0 if exact else 1e-6)
        assert solver(a).shape == (size,)
        assert torch.equal(solver(a), solver(b))
        assert c.solver is None
        assert torch.equal(c.model, b.model) == (name == "sgd")


@pytest.mark.parametrize("name", ["momentum", "adam"])
@pytest.mark.parametrize("kind", [Sequential, Batched])
def test_what_is_not_trained_keeps_its_memory(kind: Kind, name: str) -> None:
    people = population(kind, SOLVERS[name])
    layout = people.layout
    part = layout.last_layers(1)
    size = solver_size(SOLVERS[name], layout)
    given = torch.linspace(0.1, 0.2, size)
    found = train(people, [Train(m, part=part, solver=given, keep_solver=True) for m in people.models])
    for result in found:
        memory = solver(result)
        for a in range(0, size - layout.size + 1, layout.size):
            now, before = memory[a : a + layout.size], given[a : a + layout.size]
            rest = layout.everything - part
            assert torch.equal(rest.take(now), rest.take(before))
            assert not torch.equal(part.take(now), part.take(before))
    assert torch.equal(given, torch.linspace(0.1, 0.2, size))


@pytest.mark.each_once
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("kind", [Sequential, Batched])
def test_no_step_leaves_the_memory(kind: Kind, name: str) -> None:
    people = population(kind, SOLVERS[name], counts=[0, 12, 5])
    memory = torch.linspace(0.0, 1.0, solver_size(SOLVERS[name], people.layout))
    for asked in (
        [Train(m, solver=memory, keep_solver=True, epochs=0) for m in people.models],
        [Train(m, solver=memory, keep_solver=True, epochs=2) for m in people.models][:1] * 3,
    ):
        results = train(people, asked)
        assert torch.equal(solver(results[0]), memory)
    nothing = [Train(m, solver=memory, keep_solver=True, part=people.layout.nothing) for m in people.models]
    for result, model in zip(train(people, nothing), people.models, strict=True):
        assert torch.equal(result.model, model)


@pytest.mark.parametrize("kind", [Sequential, Batched])
def test_a_memory_of_another_size_is_refused(kind: Kind) -> None:
    people = population(kind, SOLVERS["adam"])
    size = 2 * people.layout.size + 1
    with pytest.raises(ValueError, match=rf"^solver .*\(3,\).*\({size},\)"):
        train(people, [Train(m, solver=torch.zeros(3)) for m in people.models])
