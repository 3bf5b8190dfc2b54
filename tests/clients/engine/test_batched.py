"""Perceptrons of many clients in one kernel: the answers of `Sequential`, whoever shares the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.choice import LARGEST_CHUNK, chunk_size
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import (
    Answer,
    ChooseThenTrain,
    Evaluate,
    Gradients,
    Item,
    LocalUpdate,
    Losses,
    Order,
    Score,
    Scored,
    Train,
    Trained,
    Training,
    TrainOwn,
)
from coterie.clients.rules.requests import Request, Result
from coterie.models.layout import Part
from tests.clients.engine.population import COUNTS, Population, population

SOLVERS = {
    "sgd": Training(epochs=5, batch_size=10, lr=0.1, lr_decay=0.9),
    "momentum": Training(epochs=5, batch_size=10, momentum=0.9),
    "decay": Training(epochs=5, batch_size=20, weight_decay=0.05, momentum=0.5),
    "adam": Training(epochs=3, batch_size=10, lr=0.01, weight_decay=0.01, optimizer="adam"),
    "large batches": Training(epochs=3, batch_size=200),
}


def requests(people: Population) -> dict[str, list[Request]]:
    """For every kind of work, a request of each client; what may differ between clients does."""
    layout, models = people.layout, people.models
    stacked = torch.stack(models)
    return {
        "plain": [Train(m) for m in models],
        "pull": [Train(m, pull=0.1 * (i % 3)) for i, m in enumerate(models)],
        "strong": [Train(m, pull=0.1 + 40 * (i % 3), anchor=models[i - 1]) for i, m in enumerate(models)],
        "anchor": [Train(m, pull=0.1 * i, anchor=models[i - 1]) for i, m in enumerate(models)],
        "linear": [Train(m, linear=0.1 * models[i - 1] if i % 2 else None) for i, m in enumerate(models)],
        "last": [Train(m, part=layout.last_layers(1), pull=0.1) for m in models],
        "first": [Train(m, part=layout.first_layers(1 + i % 2)) for i, m in enumerate(models)],
        "nothing": [Train(m, part=layout.nothing) for m in models],
        "epochs": [Train(m, epochs=i % 3, purpose=f"batches {i % 2}") for i, m in enumerate(models)],
        "losses": [Losses(stacked[: 2 + i % 2]) for i in range(len(models))],
        "fresh losses": [Losses(stacked[i:], "test", samples=6 + i) for i in range(len(models))],
        "gradients": [Gradients(m, batches=None if i % 2 else 2) for i, m in enumerate(models)],
        "no gradients": [Gradients(m, batches=0) for m in models],
        "full gradients": [Gradients(m, full=True) for m in models],
        "score": [Score(m, "test" if i % 2 else "train") for i, m in enumerate(models)],
    }


KINDS = list(requests(population(Sequential, Training())))


def numbers(result: Result) -> Tensor:
    """A result as one vector."""
    match result:
        case Trained(model, loss):
            return torch.cat([model, torch.tensor([loss])])
        case Scored(loss, actual, predicted, correct):
            return torch.tensor([loss, *actual, *predicted, *correct])
    assert isinstance(result, Tensor)
    return result


@pytest.mark.medium
@pytest.mark.thinned(4)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_answers_of_sequential(solver: str, kind: str) -> None:
    one, many = (population(engine, SOLVERS[solver]) for engine in (Sequential, Batched))
    expected = one.engine.answer(one.clients, requests(one)[kind])
    found = many.engine.answer(many.clients, requests(many)[kind])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(numbers(a), numbers(b), atol=1e-5, rtol=0, equal_nan=True)


@pytest.mark.parametrize("features", [(61,), (5, 3), (6, 6, 2)])
@pytest.mark.parametrize("hidden", [(), (7, 5)])
def test_every_shape_of_samples(features: tuple[int, ...], hidden: tuple[int, ...]) -> None:
    one, many = (population(e, SOLVERS["sgd"], features=features, hidden=hidden) for e in (Sequential, Batched))
    for kind in ("plain", "losses", "gradients"):
        expected = one.engine.answer(one.clients, requests(one)[kind])
        found = many.engine.answer(many.clients, requests(many)[kind])
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(numbers(a), numbers(b), atol=1e-5, rtol=0)


@pytest.mark.parametrize("solver", ["decay", "adam"])
def test_what_is_not_trained_stays_to_the_bit(solver: str) -> None:
    people = population(Batched, SOLVERS[solver])
    part = people.layout.last_layers(1)
    rest = people.layout.everything - part
    found = people.engine.answer(people.clients, [Train(m, part=part, pull=0.3) for m in people.models])
    for result, start in zip(found, people.models, strict=True):
        assert isinstance(result, Trained)
        assert torch.equal(rest.take(result.model), rest.take(start))
        assert not torch.equal(part.take(result.model), part.take(start))


def test_what_is_asked_is_not_changed() -> None:
    people = population(Batched, SOLVERS["sgd"])
    before = [m.clone() for m in people.models]
    for asked in requests(people).values():
        people.engine.answer(people.clients, asked)
    assert all(torch.equal(a, b) for a, b in zip(before, people.models, strict=True))


def test_clients_without_samples() -> None:
    training = Training(epochs=2, batch_size=10, momentum=0.5, weight_decay=0.1)
    for counts in ([0], [0, 0, 0], [0, 12, 0, 1]):
        one, many = (population(engine, training, counts=counts) for engine in (Sequential, Batched))
        for kind in KINDS:
            expected = one.engine.answer(one.clients, requests(one)[kind])
            found = many.engine.answer(many.clients, requests(many)[kind])
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(numbers(a), numbers(b), atol=1e-5, rtol=0, equal_nan=True)


def shared_by(people: Population, asked: Sequence[Request], ids: Sequence[int]) -> None:
    """Whatever clients `ids` are answered together is what they are answered among all, to the bit."""
    everybody = people.engine.answer(people.clients, asked)
    some = people.engine.answer([people.clients[i] for i in ids], [asked[i] for i in ids])
    for i, result in zip(ids, some, strict=True):
        assert np.array_equal(numbers(result).numpy(), numbers(everybody[i]).numpy(), equal_nan=True)


@pytest.mark.medium
@pytest.mark.thinned(4)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_depends_on_who_shares_the_kernel(solver: str, kind: str) -> None:
    people = population(Batched, SOLVERS[solver], counts=(*COUNTS, 0, 41, 64))
    for ids in ([0], [3], [7], [9, 1], [4, 3, 9], [8, 2, 5, 0, 1], list(range(9, -1, -1))):
        shared_by(people, requests(people)[kind], ids)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    features=st.sampled_from([1, 3, 8, 13, 30, 61, 64]),
    hidden=st.lists(st.sampled_from([1, 3, 7, 10, 16, 30, 33]), max_size=2),
    classes=st.sampled_from([2, 3, 5, 10, 26]),
    batch_size=st.sampled_from([1, 2, 3, 7, 10, 20, 32, 50]),
    counts=st.lists(st.integers(1, 60), min_size=2, max_size=7),
    chosen=st.randoms(use_true_random=False),
)
def test_nobody_depends_on_it_at_any_size(
    features: int, hidden: list[int], classes: int, batch_size: int, counts: list[int], chosen: Any
) -> None:
    training = Training(epochs=1, batch_size=batch_size)
    people = population(
        Batched, training, counts=counts, features=(features,), classes=classes, hidden=tuple(hidden)
    )
    ids = chosen.sample(range(len(counts)), chosen.randint(1, len(counts)))
    for kind in ("plain", "losses", "full gradients", "score"):
        shared_by(people, requests(people)[kind], ids)


def test_more_clients_than_one_kernel_takes() -> None:
    """A population of several chunks, the last of which is one client alone."""
    training = Training(epochs=1, batch_size=10)
    counts = [12] * (LARGEST_CHUNK + 1)
    people = population(Batched, training, counts=counts, features=(5,))
    assert chunk_size(people.layout, 10) == LARGEST_CHUNK
    shared_by(people, [Train(m) for m in people.models], [LARGEST_CHUNK, 0, 1])
    shared_by(people, [Train(m) for m in people.models], list(range(LARGEST_CHUNK, -1, -1)))


def test_outputs() -> None:
    one, many = (population(engine, Training(), counts=(150, 3, 2)) for engine in (Sequential, Batched))
    x, _ = one.data.slice(0, "train")
    models = torch.stack(one.models)
    found = many.engine.outputs(models, x)
    assert torch.allclose(found, one.engine.outputs(models, x), atol=1e-6)
    assert torch.equal(many.engine.outputs(models[1:2], x), found[1:2])


def mixed(people: Population) -> tuple[list[Order], list[Mapping[str, Tensor]]]:
    """Orders of four rules that ask for different work in different order, and the clients' states."""
    models = torch.stack(people.models[:3])
    orders = []
    for i, model in enumerate(people.models):
        rule, items = [
            (LocalUpdate(), {"model": Item(model)}),
            (ChooseThenTrain(), {"models": Item(models)}),
            (TrainOwn(), {}),
            (Evaluate(), {"models": Item(models)}),
        ][i % 4]
        orders.append(Order(i, 2, rule, items, settings={"mu": 0.1} if i % 2 else {}))
    return orders, [{"model": people.models[2]} if i == 6 else {} for i in range(len(orders))]


def crossing(answer: Answer) -> dict[str, Any]:
    """All tensors and numbers of an answer."""
    found = {**answer.uploads, **answer.client_state, **answer.numbers, **answer.report}
    return {k: numbers(v) if isinstance(v, Scored) else v for k, v in found.items() if v is not None}


def test_rules_in_step() -> None:
    one, many = (population(engine, Training(epochs=2, batch_size=10)) for engine in (Sequential, Batched))
    together = one.engine.carry_out(*mixed(one))
    batched = many.engine.carry_out(*mixed(many))
    for i, (order, state) in enumerate(zip(*mixed(one), strict=True)):
        (alone,) = one.engine.carry_out([order], [state])
        expected = crossing(alone)
        assert expected
        for found, tolerance in ((together[i], 0.0), (batched[i], 1e-5)):
            assert crossing(found).keys() == expected.keys()
            for name, value in crossing(found).items():
                torch.testing.assert_close(value, expected[name], atol=tolerance, rtol=0)


@pytest.mark.parametrize("engine", [Sequential, Batched])
def test_a_part_trains_whole_tensors(engine: type[Sequential] | type[Batched]) -> None:
    people = population(engine, Training())
    bias = people.layout.tensors[1]
    part = Part.of([(0, people.layout.tensors[0].stop + 3)])
    with pytest.raises(ValueError, match=f"holds 3 of the {bias.size} scalars of {bias.name}; it must hold all or"):
        people.engine.answer(people.clients[:2], [Train(m, part=part) for m in people.models[:2]])


@pytest.mark.parametrize("features", [(8, 8, 1), (6, 6, 2), (61,)])
def test_one_model_for_many_is_scored_as_a_copy_for_each(features: tuple[int, ...]) -> None:
    """To the bit, whether clients are handed the very same tensor, views of one memory, or copies of it."""
    people = population(Batched, Training(), counts=(*COUNTS, 0, 41, 150), features=features, hidden=(7, 5))
    two = torch.stack(people.models[:2])
    ids = range(len(people.clients))

    def answered(model: Any, models: Any) -> list[Tensor]:
        asked: list[Request] = [Score(model(i), "test") for i in ids]
        asked += [Losses(models(i), samples=None if i % 2 else 6 + i) for i in ids]
        return [numbers(r) for r in people.engine.answer([*people.clients] * 2, asked)]

    expected = answered(lambda i: two[i % 2].clone(), lambda i: two.clone())
    halves = two[0], two[1]
    for model, models in ((lambda i: halves[i % 2], lambda i: two), (lambda i: two[i % 2], lambda i: two[:])):
        for found, wanted in zip(answered(model, models), expected, strict=True):
            assert np.array_equal(found.numpy(), wanted.numpy(), equal_nan=True)


@settings(max_examples=40)
@given(
    features=st.sampled_from([1, 3, 13, 61, 64, 784]),
    hidden=st.lists(st.sampled_from([1, 3, 10, 33, 64]), max_size=2),
    counts=st.lists(st.integers(0, 90), min_size=1, max_size=7),
    same=st.lists(st.booleans(), min_size=7, max_size=7),
)
def test_nobody_depends_on_who_is_served_the_same_model(
    features: int, hidden: list[int], counts: list[int], same: list[bool]
) -> None:
    people = population(Batched, Training(), counts=counts, features=(features,), hidden=tuple(hidden))
    model = people.models[0]
    shared = [Score(model if alike else model.clone()) for alike, _ in zip(same, counts, strict=False)]
    together = people.engine.answer(people.clients, shared)
    for client, found in zip(people.clients, together, strict=True):
        (alone,) = people.engine.answer([client], [Score(model.clone())])
        assert np.array_equal(numbers(found).numpy(), numbers(alone).numpy(), equal_nan=True)


@pytest.mark.parametrize("features", [(8, 8, 1), (5, 3), (61,)])
def test_clients_in_one_memory_are_computed_as_clients_apart(features: tuple[int, ...]) -> None:
    """A federation's clients are rows of one tensor, which is not copied; to the bit what copies of them give."""
    apart = population(Batched, Training(epochs=2, batch_size=10), counts=(*COUNTS, 0), features=features)
    held = [apart.data.slice(c.id, "train") for c in apart.clients]
    inputs, labels = torch.cat([x for x, _ in held]), torch.cat([y for _, y in held])
    ends = np.cumsum([len(y) for _, y in held])

    class Together:
        classes, outputs, task = apart.data.classes, apart.data.outputs, apart.data.task
        augment = None

        def slice(self, client: int, split: str) -> tuple[Tensor, Tensor]:
            rows = slice(int(ends[client]) - len(held[client][1]), int(ends[client]))
            return inputs[rows], labels[rows]

        def to_numbers(self, stored: Tensor) -> Tensor:
            return stored

    engine = apart.engine
    together = Batched(
        apart.network, engine.layout, Together(), engine.training, engine.seed, torch.zeros(engine.layout.size)
    )
    for kind in ("plain", "epochs", "losses", "gradients", "full gradients"):
        asked = requests(apart)[kind]
        for one, two in zip(
            engine.answer(apart.clients, asked), together.answer(apart.clients, asked), strict=True
        ):
            assert np.array_equal(numbers(one).numpy(), numbers(two).numpy(), equal_nan=True)
