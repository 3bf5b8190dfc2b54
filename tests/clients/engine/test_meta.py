"""Per-FedAvg's local steps, of first and of second order (docs/methods/per-fedavg.md; 8.10)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import MetaTrain, Request, Train, Trained, Training
from coterie.models.networks import channels_first
from coterie.randomness import stream
from tests.clients.engine.population import SEED, Population, population

PLAIN = Training(epochs=2, batch_size=10, lr=0.1)


def trained(people: Population, client: int, request: Request) -> Trained:
    (result,) = people.engine.answer([people.clients[client]], [request])
    assert isinstance(result, Trained)
    return result


def epochs(people: Population, client: int, count: int) -> list[list[Tensor]]:
    """The minibatches of every epoch, as rows of the client's samples."""
    samples = len(people.data.slice(client, "train")[1])
    rng = stream(SEED, "batches", client, 2)
    orders = [torch.from_numpy(rng.permutation(samples)) for _ in range(count)]
    return [list(torch.split(order, PLAIN.batch_size)) for order in orders]


def test_alpha_0_is_plain_sgd_on_every_second_minibatch() -> None:
    """Property 8.1: FedAvg fed only the b1 batches, with step beta."""
    people = population(Sequential, PLAIN)
    beta = 0.07
    for client, count in ((0, 5), (1, 3), (2, 4), (3, 1), (4, 7)):
        x, y = people.data.slice(client, "train")
        people.layout.bind(people.network, people.models[client].clone())
        solver = torch.optim.SGD(people.network.parameters(), lr=beta)
        total, seen = 0.0, 0
        for number, epoch in enumerate(epochs(people, client, 2)):
            assert len(epoch) == count
            for rows in epoch[1::2] or epoch:
                solver.zero_grad()
                loss = nn.functional.cross_entropy(people.network(channels_first(x[rows])), y[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                solver.step()
                if number == 1:
                    total, seen = total + loss.item() * len(rows), seen + len(rows)
        found = trained(people, client, MetaTrain(people.models[client], 0.0, beta))
        assert (found.model - people.layout.flatten(people.network)).abs().max() <= 1e-6
        assert found.loss == pytest.approx(total / seen, abs=1e-6)
        assert not torch.equal(found.model, people.models[client])


@pytest.mark.parametrize("name", ["mlp", "resnet18", "gaussian-mlp"])
def test_alpha_0_on_one_minibatch_is_training_to_the_bit(name: str) -> None:
    """Also of buffers: only the gradient that a step takes leaves its mark in them."""
    settings: dict[str, Any] = {"resnet18": {"width": 2}, "gaussian-mlp": {"dim": 3}}.get(name, {})
    training = Training(epochs=3, batch_size=10, lr=0.05)
    people = population(Sequential, training, name, counts=[9], **settings)
    meta = trained(people, 0, MetaTrain(people.models[0], 0.0, 0.05))
    plain = trained(people, 0, Train(people.models[0]))
    if name == "gaussian-mlp":  # b0's draws come between
        assert not torch.equal(meta.model, plain.model)
    else:
        assert torch.equal(meta.model, plain.model)
        assert meta.loss == plain.loss


def loss_of(people: Population, client: int, rows: Tensor, decay: float = 0.0) -> Any:
    """F on some rows, and weight decay, as a function of the model in float64."""
    x, y = people.data.slice(client, "train")
    network = people.network.double()

    def loss(model: Tensor) -> Tensor:
        values = {e.name: e.view(model) for e in people.layout.entries}
        cost = nn.functional.cross_entropy(
            torch.func.functional_call(network, values, (channels_first(x[rows]).double(),)), y[rows]
        )
        return cost + decay / 2 * model.square().sum()

    return loss


def numerical(loss: Any, at: Tensor) -> Tensor:
    """The gradient by central differences."""
    steps = 1e-5 * torch.eye(len(at), dtype=torch.float64)
    return torch.stack([loss(at + s) - loss(at - s) for s in steps]) / 2e-5


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("second_order", [False, True])
def test_cross_8_10_one_meta_step(second_order: bool, decay: float) -> None:
    """One step against central differences of the loss, and of its gradient for the product with the Hessian."""
    training = Training(epochs=1, batch_size=10, weight_decay=decay)
    counts = [30, 3] if second_order else [20, 3]
    people = population(
        Sequential,
        training,
        nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)),
        counts=counts,
        features=(5,),
        classes=3,
    )
    alpha, beta = 0.5, 1e-2
    start = people.models[0] * 2
    (batches,) = epochs(people, 0, 1)
    w = start.double()
    f0, f1 = (loss_of(people, 0, rows, decay) for rows in batches[:2])
    g = numerical(f1, w - alpha * numerical(f0, w))
    plain = g
    if second_order:
        f2 = loss_of(people, 0, batches[2], decay)
        gradient = torch.func.grad(f2)
        product = (gradient(w + 1e-5 * g) - gradient(w - 1e-5 * g)) / 2e-5
        hessian = torch.autograd.functional.hessian(f2, w)  # type: ignore[no-untyped-call]
        assert (hessian @ g - product).abs().max() <= 1e-6
        g = g - alpha * product
        assert (g - plain).abs().max() > 0.02
    moved = trained(people, 0, MetaTrain(start, alpha, beta, second_order, delta=1e-2)).model
    found = (w - moved.double()) / beta
    assert (found - g).abs().max() <= 1e-3 * g.abs().max()
    default = trained(people, 0, MetaTrain(start, alpha, beta, second_order)).model
    assert (default - moved).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("name", "settings"), [("fedtsdp-cnn", {"features": (10, 10, 1)}), ("gaussian-mlp", {"dim": 8})]
)
def test_dropout_and_draws_are_the_same_on_both_sides_of_the_difference(name: str, settings: Any) -> None:
    """Otherwise what other units give would be taken for curvature, and divided by 2 delta."""
    people = population(Sequential, Training(epochs=1, batch_size=10), name, counts=[30, 3], **settings)
    start = people.clients[0].initial()
    first, second = (
        trained(people, 0, MetaTrain(start, 0.05, 1.0, order)).model - start for order in (False, True)
    )
    # With other units on either side, twelve times the norm or more.
    assert 0 < (second - first).norm() <= 2 * first.norm()


def test_nothing_to_train_on() -> None:
    people = population(Sequential, PLAIN, counts=[0, 12])
    for client, request in (
        (0, MetaTrain(people.models[0], 0.1, 0.1)),
        (1, MetaTrain(people.models[1], 0.1, 0.1, epochs=0)),
    ):
        found = trained(people, client, request)
        assert torch.equal(found.model, people.models[client])
        assert found.loss != found.loss
