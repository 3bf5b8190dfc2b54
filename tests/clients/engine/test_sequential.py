"""Client after client: a numbered property, norms over the batch, and what dropout draws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import Gradients, Train, Trained, Training
from coterie.models.networks import channels_first
from coterie.randomness import stream
from tests.clients.engine.population import SEED, Population, population

PLAIN = Training(epochs=2, batch_size=10, lr=0.1, lr_decay=0.9)


def trained(people: Population, client: int, request: Train) -> Trained:
    (result,) = people.engine.answer([people.clients[client]], [request])
    assert isinstance(result, Trained)
    return result


def test_cross_8_10() -> None:
    """The gradient of F + mu/2 ||w - W||^2 + <c, w>, read off one step, against central differences."""
    training = Training(epochs=1, batch_size=100, lr=1e-2)
    people = population(Sequential, training, counts=[40, 40], hidden=(6,), features=(5,), classes=3)
    layout, (start, anchor) = people.layout, people.models
    linear = torch.linspace(-1, 1, layout.size)
    mu = 0.8
    x, y = people.data.slice(0, "train")
    network = people.network.double()

    def objective(model: Tensor) -> Tensor:
        values = {e.name: e.view(model) for e in layout.entries}
        loss = nn.functional.cross_entropy(torch.func.functional_call(network, values, (x.double(),)), y)
        return loss + mu / 2 * (model - anchor.double()).square().sum() + linear.double() @ model

    moved = trained(people, 0, Train(start, pull=mu, anchor=anchor, linear=linear)).model
    found = (start.double() - moved.double()) / training.lr
    steps = 1e-5 * torch.eye(layout.size, dtype=torch.float64)
    expected = torch.stack([objective(start.double() + s) - objective(start.double() - s) for s in steps]) / 2e-5
    # The step is taken in float32, whose last digit of a parameter of size 1 is 1e-5 of a gradient here.
    assert (found - expected).abs().max() <= 2e-5
    assert expected.abs().max() > 0.5


def test_batch_norm_drops_a_last_batch_of_one_sample() -> None:
    """Convention 2 (docs/methods/conventions.md): 21 samples in tens are two minibatches, one alone is none."""
    training = Training(epochs=1, batch_size=10)
    with_norm: dict[str, Any] = {"name": "resnet18", "features": (8, 8, 1), "width": 2}
    people = population(Sequential, training, counts=[21, 1], **with_norm)
    found = trained(people, 0, Train(people.models[0]))
    network, layout = people.network, people.layout
    vector = people.models[0].clone()
    layout.bind(network, vector)
    network.train()
    x, y = people.data.slice(0, "train")
    order = torch.from_numpy(stream(SEED, "batches", 0, 2).permutation(21))
    solver = torch.optim.SGD(network.parameters(), lr=training.lr)
    for rows in (order[:10], order[10:20]):
        solver.zero_grad()
        nn.functional.cross_entropy(network(channels_first(x[rows])), y[rows]).backward()  # type: ignore[no-untyped-call]
        solver.step()
    assert (found.model - vector).abs().max() <= 1e-6
    buffers = layout.everything - layout.trainable
    assert not torch.equal(buffers.take(found.model), buffers.take(people.models[0]))
    alone = trained(people, 1, Train(people.models[1]))
    assert torch.equal(alone.model, people.models[1])
    (gradients,) = people.engine.answer([people.clients[0]], [Gradients(people.models[0])])
    assert isinstance(gradients, Tensor)
    assert gradients.shape == (2, layout.size)
    assert not buffers.take(gradients).any()


def test_dropout_is_addressed() -> None:
    """The same client in the same round drops the same units, whoever was at work before."""
    people = population(Sequential, PLAIN, "fedtsdp-cnn", features=(10, 10, 1))
    requests = [Train(m) for m in people.models]
    (first, *_), (*_, again) = (
        people.engine.answer(people.clients[:3], requests[:3]),
        people.engine.answer(people.clients[2::-1], requests[2::-1]),
    )
    assert isinstance(first, Trained)
    assert isinstance(again, Trained)
    assert torch.equal(first.model, again.model)
    other = trained(people, 0, Train(people.models[0], purpose="other"))
    assert not torch.equal(first.model, other.model)
