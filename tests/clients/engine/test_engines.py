"""Every engine against plain loops of PyTorch: training, losses, gradients and scores, on a few networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.choice import LARGEST_CHUNK, chunk_size
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import (
    Gradients,
    Losses,
    Score,
    Scored,
    TaskLoss,
    Train,
    Trained,
    Training,
)
from coterie.clients.rules.requests import Request, Result
from coterie.models.layout import Part
from coterie.models.networks import channels_first
from coterie.randomness import stream
from tests.clients.engine.networks import CHAINS, LISTED, OWN
from tests.clients.engine.population import COUNTS, SEED, Population, population

SOLVERS = {
    "sgd": Training(epochs=2, batch_size=10, lr=0.1, lr_decay=0.9),
    "momentum": Training(epochs=2, batch_size=10, lr=0.05, momentum=0.9, weight_decay=0.05),
    "adam": Training(epochs=2, batch_size=10, lr=0.01, weight_decay=0.01, optimizer="adam"),
    "large batches": Training(epochs=3, batch_size=200),
}
FEW = (23, 40, 1, 0, 12, 33)
"""Samples of the clients."""


def people_of(kind: type[Sequential] | type[Batched], name: str, training: Training, **more: Any) -> Population:
    """Clients who train a network of that name."""
    more = {"counts": FEW, **more}
    if name in LISTED:
        listed, features, own = LISTED[name]
        return population(kind, training, listed, features=features, **{**own, **more})
    make, features = (OWN | CHAINS)[name]
    torch.manual_seed(0)
    return population(kind, training, make(), features=features, **more)


def minibatches(order: np.ndarray, size: int) -> list[Tensor]:
    return [torch.from_numpy(order[a : a + size]) for a in range(0, len(order), size)]


# ---- what PyTorch makes of it


def trained_by_hand(people: Population, client: int, training: Training, request: Train) -> Trained:
    """The loop that a textbook would write: an `nn.Module`, an optimiser of PyTorch, terms added to the loss."""
    network, layout = people.network, people.layout
    layout.bind(network, request.start.clone())
    network.train()
    parameters = {e.name: network.get_parameter(e.name) for e in layout.tensors}
    part = layout.everything if request.part is None else request.part
    moving = {e.name: parameters[e.name] for e in layout.tensors if not Part.of([(e.start, e.stop)]) - part}
    anchor = request.start if request.anchor is None else request.anchor
    lr = training.lr * training.lr_decay if request.lr is None else request.lr  # round 2
    implicit = training.optimizer == "sgd" and lr * request.pull > 1
    decay = training.weight_decay
    solver: torch.optim.Optimizer | None = None
    if moving and training.optimizer == "adam":
        solver = torch.optim.Adam(moving.values(), lr=lr, weight_decay=decay)
    elif moving:
        solver = torch.optim.SGD(moving.values(), lr=lr, momentum=training.momentum, weight_decay=decay)
    x, y = people.data.slice(client, "train")
    weights = torch.ones(len(y)) if request.weights is None else request.weights
    order = stream(SEED, request.purpose, client, 2)
    mean = nan
    for _ in range(training.epochs if request.epochs is None else request.epochs):
        losses: list[float] = []
        for rows in minibatches(order.permutation(len(y)), training.batch_size):
            each = cross_entropy(network(channels_first(x[rows])), y[rows], reduction="none")
            loss = (each * weights[rows]).mean()
            losses.append(float(loss.detach()) * len(rows))
            for entry in layout.tensors:
                parameter = parameters[entry.name]
                if request.pull and not implicit:
                    loss = loss + request.pull / 2 * (parameter - entry.view(anchor)).square().sum()
                if request.linear is not None:
                    loss = loss + (parameter * entry.view(request.linear)).sum()
            if solver is None:
                continue
            solver.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if request.clip:
                nn.utils.clip_grad_norm_(moving.values(), request.clip)
            solver.step()
            for entry in layout.tensors if implicit else ():
                if entry.name in moving:
                    held, middle = moving[entry.name].data, entry.view(anchor)
                    held.copy_(middle + (held - middle) / (1 + lr * request.pull))
        mean = sum(losses) / len(y) if len(y) else nan
    memory = remembered(people, training, solver) if request.keep_solver else None
    return Trained(layout.flatten(network), mean, memory)


def remembered(people: Population, training: Training, solver: torch.optim.Optimizer | None) -> Tensor:
    """Velocity, or first and second moment and the count of steps, as an optimiser of PyTorch has them."""
    adam, layout = training.optimizer == "adam", people.layout
    names = ["exp_avg", "exp_avg_sq"] if adam else ["momentum_buffer"] if training.momentum else []
    state = {} if solver is None else solver.state
    rows, steps = torch.zeros(len(names), layout.size), torch.zeros(int(adam))
    for entry in layout.tensors:
        known = state.get(people.network.get_parameter(entry.name), {})
        for row, name in zip(rows, names if known else (), strict=False):
            entry.view(row).copy_(known[name])
        steps = known.get("step", steps)
    return torch.cat([rows.flatten(), *([steps.view(1)] if adam else [])])


def logits(people: Population, model: Tensor, x: Tensor) -> Tensor:
    people.layout.bind(people.network, model.clone())
    people.network.eval()
    with torch.no_grad():
        found: Tensor = people.network(channels_first(x))
    return found


def losses_by_hand(people: Population, client: int, request: Losses) -> Tensor:
    x, y = people.data.slice(client, request.split)
    if request.samples is not None and request.samples < len(y):
        picked = np.sort(stream(SEED, request.purpose, client, 2).permutation(len(y))[: request.samples])
        x, y = x[picked], y[picked]
    if not len(y):
        return torch.zeros(len(request.models))
    return torch.stack([cross_entropy(logits(people, m, x), y) for m in request.models])


def gradients_by_hand(people: Population, client: int, request: Gradients, size: int) -> Tensor:
    x, y = people.data.slice(client, "train")
    order, layout = stream(SEED, request.purpose, client, 2).permutation(len(y)), people.layout
    size = max(len(y), 1) if request.full else request.size or size
    found = []
    for rows in minibatches(order, size)[: request.batches]:
        layout.bind(people.network, request.model.clone())
        people.network.train()
        parameters = [people.network.get_parameter(e.name) for e in layout.tensors]
        loss = cross_entropy(people.network(channels_first(x[rows])), y[rows])
        row = torch.zeros(layout.size)
        for entry, gradient in zip(layout.tensors, torch.autograd.grad(loss, parameters), strict=True):
            entry.view(row).copy_(gradient)
        found.append(row)
    return torch.stack(found) if found else torch.zeros(0, layout.size)


def score_by_hand(people: Population, client: int, request: Score) -> Tensor:
    x, y = people.data.slice(client, request.split)
    if not len(y):
        return torch.zeros(1 + 3 * 4)
    found = logits(people, request.model, x)
    guess = found.argmax(1)
    counts = [torch.bincount(v, minlength=4) for v in (y, guess, y[y == guess])]
    return torch.cat([cross_entropy(found, y)[None], *counts])


def numbers(result: Result) -> Tensor:
    """A result as one vector."""
    match result:
        case Trained(model, loss, solver):
            return torch.cat([model, torch.tensor([loss]), *([] if solver is None else [solver])])
        case Scored(loss, actual, predicted, correct):
            return torch.tensor([loss, *actual, *predicted, *correct])
    assert isinstance(result, Tensor)
    return result


def by_hand(people: Population, client: int, training: Training, request: Request) -> Tensor:
    match request:
        case Train():
            return numbers(trained_by_hand(people, client, training, request))
        case Losses():
            return losses_by_hand(people, client, request)
        case Gradients():
            return gradients_by_hand(people, client, request, training.batch_size)
    assert isinstance(request, Score)
    return score_by_hand(people, client, request)


# ---- what is asked


def trainings(people: Population) -> dict[str, list[Request]]:
    """For everything that training can be told, a request of each client; what may differ between clients does."""
    layout, models = people.layout, people.models
    each = list(enumerate(models))
    counts = [c.samples for c in people.clients]
    return {
        "plain": [Train(m) for m in models],
        "pull": [Train(m, pull=0.1 * (i % 3)) for i, m in each],
        "anchor": [Train(m, pull=0.1 * i, anchor=models[i - 1]) for i, m in each],
        "strong": [Train(m, pull=0.1 + 40 * (i % 3), anchor=models[i - 1]) for i, m in each],
        "linear": [Train(m, linear=0.1 * models[i - 1] if i % 2 else None) for i, m in each],
        "last": [Train(m, part=layout.last_layers(1), pull=0.1) for m in models],
        "first": [Train(m, part=layout.first_layers(1 + i % 2)) for i, m in each],
        "every other": [
            Train(m, part=Part.of((e.start, e.stop) for e in layout.tensors[i % 2 :: 2])) for i, m in each
        ],
        "nothing": [Train(m, part=layout.nothing) for m in models],
        "epochs": [Train(m, epochs=i % 3, purpose=f"batches {i % 2}") for i, m in each],
        "weights": [Train(m, weights=torch.linspace(0.0, 2.0, n)) for m, n in zip(models, counts, strict=True)],
        # To the start, and weighted: what a first layer in its dual form takes, but where lr pull is 1.
        "heavy": [
            Train(m, pull=(0.5, 10.0, 25.0)[i % 3], lr=0.1, weights=torch.linspace(0.0, 2.0, counts[i]))
            for i, m in each
        ],
        "last, weighted": [
            Train(m, part=layout.last_layers(1), weights=torch.linspace(0.0, 2.0, counts[i])) for i, m in each
        ],
        "memory": [Train(m, keep_solver=True) for m in models],
        "objective": [
            Train(m, pull=0.5, anchor=models[i - 1], linear=0.1 * m, objective=TaskLoss(), keep_solver=True)
            for i, m in each
        ],
        "clip": [Train(m, clip=0.3) for m in models],
        "rate": [Train(m, lr=0.01 * (i % 3)) for i, m in each],
    }


def looks(people: Population) -> dict[str, list[Request]]:
    """The same of all that trains nothing."""
    models = people.models
    stacked = torch.stack(models)
    each = list(enumerate(models))
    return {
        "losses": [Losses(stacked[: 2 + i % 2]) for i, _ in each],
        "fresh losses": [Losses(stacked[i:], "test", samples=6 + i) for i, _ in each],
        "gradients": [Gradients(m, batches=None if i % 2 else 2) for i, m in each],
        "no gradients": [Gradients(m, batches=0) for m in models],
        "full gradients": [Gradients(m, full=True) for m in models],
        "gradients of 7": [Gradients(m, size=7, purpose="other") for m in models],
        "score": [Score(m, "test" if i % 2 else "train") for i, m in each],
    }


def assert_by_hand(people: Population, training: Training, asked: Mapping[str, list[Request]]) -> None:
    """The engine answers as PyTorch would; neither a start nor what is not trained has changed by a bit."""
    before = [m.clone() for m in people.models]
    for kind, requests in asked.items():
        found = people.engine.answer(people.clients, requests)
        for client, (result, request) in enumerate(zip(found, requests, strict=True)):
            expected = by_hand(people, client, training, request)
            try:
                torch.testing.assert_close(numbers(result), expected.float(), atol=2e-5, rtol=1e-5, equal_nan=True)
            except AssertionError as error:
                raise AssertionError(f"{kind}, client {client}: {error}") from error
            if isinstance(request, Train) and request.part is not None:
                rest = people.layout.everything - request.part
                assert isinstance(result, Trained)
                assert torch.equal(rest.take(result.model), rest.take(request.start)), kind
    assert all(torch.equal(a, b) for a, b in zip(before, people.models, strict=True))


ENGINES: list[type[Sequential] | type[Batched]] = [Sequential, Batched]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "solver"),
    [
        *(("perceptron", s) for s in SOLVERS),
        ("wide perceptron", "sgd"),
        ("wide perceptron", "momentum"),
        ("deep and wide perceptron", "sgd"),
        ("no hidden layer", "sgd"),
    ],
)
@pytest.mark.parametrize("kind", ENGINES)
def test_every_solver_is_that_of_pytorch(kind: type[Sequential] | type[Batched], name: str, solver: str) -> None:
    training = SOLVERS[solver]
    people = people_of(kind, name, training)
    asked = trainings(people)
    if training.optimizer == "adam":
        del asked["strong"], asked["heavy"]  # Adam's steps swing about the anchor, and the last digit decides where
    assert_by_hand(people, training, asked)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((Sequential, name) for name in [*LISTED, *CHAINS, *OWN]),
        *((Batched, name) for name in [*LISTED, *CHAINS, *OWN] if name != "over time"),
    ],
)
def test_every_network_is_that_of_pytorch(kind: type[Sequential] | type[Batched], name: str) -> None:
    training = SOLVERS["momentum"].updated(epochs=1)
    people = people_of(kind, name, training)
    some = trainings(people)
    kept = [
        "plain",
        "last",
        "first",
        "nothing",
        "weights",
        "clip",
        "objective",
        *(["every other"] if name in LISTED else []),
    ]
    assert_by_hand(people, training, {k: some[k] for k in kept} | looks(people))


@settings(max_examples=15)
@given(
    samples=st.integers(1, 30),
    batch_size=st.integers(1, 40),
    epochs=st.integers(1, 3),
    momentum=st.sampled_from([0.0, 0.9]),
    pull=st.sampled_from([0.0, 0.5]),
    kind=st.sampled_from(ENGINES),
)
def test_any_sizes(samples: int, batch_size: int, epochs: int, momentum: float, pull: float, kind: Any) -> None:
    training = Training(epochs=epochs, batch_size=batch_size, momentum=momentum, lr=0.05)
    people = population(kind, training, counts=[samples, 3])
    assert_by_hand(people, training, {"any": [Train(m, pull=pull) for m in people.models]})


@pytest.mark.parametrize("kind", ENGINES)
def test_outputs(kind: type[Sequential] | type[Batched]) -> None:
    """Also of more models than one kernel takes, and at a temperature."""
    for name in ("perceptron", "cnn", "branches"):
        people = people_of(kind, name, Training(batch_size=200), counts=(150, 3, 2))
        x, _ = people.data.slice(0, "train")
        models = torch.stack(people.models)
        found = people.engine.outputs(models, x)
        for row, model in zip(found, models, strict=True):
            assert torch.allclose(row, logits(people, model, x).softmax(1), atol=1e-6)
        warm = people.engine.outputs(models, x, temperature=6.0)
        torch.testing.assert_close(warm, (found.log() / 6).softmax(2), atol=1e-6, rtol=0)
        if name == "perceptron":
            assert torch.equal(people.engine.outputs(models[1:2], x), found[1:2])


@pytest.mark.parametrize("kind", ENGINES)
def test_a_part_trains_whole_tensors(kind: type[Sequential] | type[Batched]) -> None:
    people = population(kind, Training())
    bias = people.layout.tensors[1]
    part = Part.of([(0, people.layout.tensors[0].stop + 3)])
    with pytest.raises(ValueError, match=f"3 .*{bias.size} .*{bias.name}"):
        people.engine.answer(people.clients[:2], [Train(m, part=part) for m in people.models[:2]])


# ---- whoever shares a kernel


def everything(people: Population) -> dict[str, list[Request]]:
    return trainings(people) | looks(people)


def assert_same_bits(one: Sequence[Result], other: Sequence[Result]) -> None:
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(numbers(a).numpy(), numbers(b).numpy(), equal_nan=True)


def assert_shared_by(people: Population, asked: Sequence[Request], ids: Sequence[int]) -> None:
    """Whatever clients `ids` are answered together is what they are answered among all, to the bit."""
    everybody = people.engine.answer(people.clients, asked)
    some = people.engine.answer([people.clients[i] for i in ids], [asked[i] for i in ids])
    assert_same_bits(some, [everybody[i] for i in ids])


@pytest.mark.medium
@pytest.mark.parametrize(
    ("solver", "name"), [("sgd", "wide perceptron"), ("sgd", "perceptron"), ("adam", "perceptron")]
)
def test_nobody_depends_on_who_shares_a_perceptrons_kernel(solver: str, name: str) -> None:
    people = people_of(Batched, name, SOLVERS[solver], counts=(*COUNTS, 0, 41, 64))
    assert people.engine.independent
    for asked in everything(people).values():
        for ids in ([3], [9, 1], [8, 2, 5, 0, 1]):
            assert_shared_by(people, asked, ids)


@pytest.mark.medium
@settings(max_examples=15)
@given(
    features=st.sampled_from([1, 3, 8, 13, 30, 61, 784]),
    hidden=st.lists(st.sampled_from([1, 3, 7, 10, 16, 30, 33, 64]), max_size=2),
    classes=st.sampled_from([2, 3, 5, 10, 26]),
    batch_size=st.sampled_from([1, 2, 3, 7, 10, 20, 32, 50]),
    counts=st.lists(st.integers(0, 90), min_size=2, max_size=7),
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
    asked = everything(people)
    for kind in ("plain", "losses", "full gradients", "score"):
        assert_shared_by(people, asked[kind], ids)
    # Nor on who is served the very same model.
    model = people.models[0]
    shared = people.engine.answer(
        people.clients, [Score(model if chosen.random() < 0.5 else model.clone()) for _ in counts]
    )
    assert_same_bits(shared, [people.engine.answer([c], [Score(model.clone())])[0] for c in people.clients])


def test_more_clients_than_one_kernel_takes() -> None:
    """A population of several chunks, the last of which is one client alone."""
    training = Training(epochs=1, batch_size=10)
    people = population(Batched, training, counts=[12] * (LARGEST_CHUNK + 1), features=(5,))
    assert chunk_size(people.layout, 10) == LARGEST_CHUNK
    for ids in ([LARGEST_CHUNK, 0, 1], list(range(LARGEST_CHUNK, -1, -1))):
        assert_shared_by(people, [Train(m) for m in people.models], ids)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["cnn", "branches"])
def test_the_same_clients_give_the_same_bits(name: str) -> None:
    """Whatever the engine did in between, of any other network too."""
    people, fresh = (people_of(Batched, name, SOLVERS["momentum"].updated(epochs=1)) for _ in range(2))
    assert not people.engine.independent
    everybody = everything(people)
    for asked in (everybody[kind] for kind in ("anchor", "last", "losses", "gradients", "score")):
        first = people.engine.answer(people.clients, asked)
        people.engine.answer(people.clients[2:5], asked[2:5])
        assert_same_bits(people.engine.answer(people.clients, asked), first)
        assert_same_bits(fresh.engine.answer(fresh.clients, asked), first)


@pytest.mark.parametrize("features", [(8, 8, 1), (6, 6, 2)])
def test_one_model_for_many_is_scored_as_a_copy_for_each(features: tuple[int, ...]) -> None:
    """To the bit, whether clients are handed the very same tensor, views of one memory, or copies of it."""
    people = population(Batched, Training(), counts=(*COUNTS, 0, 41, 150), features=features, hidden=(7, 5))
    two = torch.stack(people.models[:2])
    ids = range(len(people.clients))

    def answered(model: Any, models: Any) -> list[Result]:
        asked: list[Request] = [Score(model(i), "test") for i in ids]
        asked += [Losses(models(i), samples=None if i % 2 else 6 + i) for i in ids]
        return people.engine.answer([*people.clients] * 2, asked)

    expected = answered(lambda i: two[i % 2].clone(), lambda i: two.clone())
    halves = two[0], two[1]
    for model, models in ((lambda i: halves[i % 2], lambda i: two), (lambda i: two[i % 2], lambda i: two[:])):
        assert_same_bits(answered(model, models), expected)
