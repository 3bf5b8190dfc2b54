"""Training and scores with stochastic features, against plain loops and central differences (FedCR, FedSR)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus

from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import (
    ClassGaussians,
    Gradients,
    Invariant,
    Losses,
    Request,
    Score,
    Scored,
    Train,
    Trained,
    Training,
)
from coterie.clients.rules.requests import Result
from coterie.randomness import address, stream
from tests.clients.engine.population import SEED, Population, population

CLASSES, Z, FEATURES = 4, 3, 5
PLAIN = Training(epochs=2, batch_size=10, lr=0.1)


def stochastic(training: Training = PLAIN, **settings: Any) -> Population:
    settings = {"hidden": (6,), "dim": Z, "features": (FEATURES,), **settings}
    return population(Sequential, training, "gaussian-mlp", **settings)


def answered(people: Population, client: int, request: Request) -> Result:
    (result,) = people.engine.answer([people.clients[client]], [request])
    return result


def train_gaussian(start: Tensor, reference: Tensor, beta: float, samples: int = 1, **settings: Any) -> Train:
    return Train(start, objective=ClassGaussians(beta, samples), extras={"reference": reference}, **settings)


def train_invariant(start: Tensor, prior: Tensor, l2r: float, cmi: float, **settings: Any) -> Train:
    return Train(start, objective=Invariant(l2r, cmi), trained_extras={"prior": prior}, **settings)


def trained(people: Population, client: int, request: Train) -> Trained:
    result = answered(people, client, request)
    assert isinstance(result, Trained)
    return result


def reference() -> Tensor:
    noise = torch.Generator().manual_seed(5)
    means = torch.randn(CLASSES, Z, generator=noise)
    return torch.stack([means, 0.3 + torch.rand(CLASSES, Z, generator=noise)], 1)


def prior() -> Tensor:
    noise = torch.Generator().manual_seed(6)
    return torch.cat([torch.randn(2 * CLASSES * Z, generator=noise), torch.tensor([1.2])])


def forward(people: Population, model: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """mu, sigma and the head of a perceptron of three layers, written out."""
    w1, b1, w2, b2, w3, b3 = (e.view(model) for e in people.layout.tensors)
    mean, s = ((x @ w1.T + b1).relu() @ w2.T + b2).chunk(2, dim=1)
    return mean, softplus(s), lambda z: z @ w3.T + b3


def apart(one: Normal, other: Normal) -> Tensor:
    """KL(one || other), summed over the features, mean over the batch."""
    found: Tensor = kl_divergence(one, other).sum(1).mean()
    return found


def noise(purpose: str, client: int, *shape: int) -> Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(address(SEED, f"noise/{purpose}", client, 2))
    )


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """By central differences, in float64."""
    steps = 1e-6 * torch.eye(len(at), dtype=torch.float64)
    return torch.stack([loss(at + s) - loss(at - s) for s in steps]) / 2e-6


@pytest.mark.parametrize(("beta", "samples"), [(0.0, 1), (0.7, 1), (0.05, 6)])
def test_cross_8_10_fedcr(beta: float, samples: int) -> None:
    """(1/M) sum CE + beta KL(reference of the class || features), read off one step."""
    people = stochastic(Training(epochs=1, batch_size=100, lr=1e-2), counts=[40, 3])
    start, given = people.models[0], reference()
    x, y = people.data.slice(0, "train")
    order = torch.from_numpy(stream(SEED, "batches", 0, 2).permutation(40))
    x, y, eps = x[order].double(), y[order], noise("batches", 0, samples, 40, Z).double()

    def loss(model: Tensor, with_divergence: bool = True) -> Tensor:
        mean, deviation, head = forward(people, model, x)
        entropy = torch.stack([cross_entropy(head(mean + deviation * e), y) for e in eps]).mean()
        r, rho = given.double()[y].unbind(1)
        pull = apart(Normal(r, rho), Normal(mean, deviation))
        found: Tensor = entropy + beta * pull * with_divergence
        return found

    found = trained(people, 0, train_gaussian(start, given, beta, samples))
    moved = (start.double() - found.model.double()) / 1e-2
    expected = gradient(loss, start.double())
    assert (moved - expected).abs().max() <= 1e-4
    assert expected.abs().max() > 0.1
    assert found.loss == pytest.approx(loss(start.double(), with_divergence=False).item(), abs=1e-5)


def test_cross_8_10_fedsr() -> None:
    """CE + l2r ||z|| + cmi KL(scaled features || learnt prior), in the model and in the prior."""
    people = stochastic(Training(epochs=1, batch_size=100, lr=1e-2), counts=[40, 3])
    start, given = people.models[0], prior()
    size = len(start)
    x, y = people.data.slice(0, "train")
    order = torch.from_numpy(stream(SEED, "batches", 0, 2).permutation(40))
    x, y, eps = x[order].double(), y[order], noise("batches", 0, 40, Z).double()

    def loss(both: Tensor) -> Tensor:
        mean, deviation, head = forward(people, both[:size], x)
        z = mean + deviation * eps
        r, s = both[size:-1].view(2, CLASSES, Z)
        scaled = Normal(both[-1] * mean, both[-1] * deviation)
        pull = apart(scaled, Normal(r[y], softplus(s[y])))
        total: Tensor = cross_entropy(head(z), y) + 0.3 * torch.linalg.vector_norm(z, dim=1).mean() + 0.2 * pull
        return total

    found = trained(people, 0, train_invariant(start, given, l2r=0.3, cmi=0.2))
    before = torch.cat([start, given]).double()
    moved = (before - torch.cat([found.model, found.extras["prior"]]).double()) / 1e-2
    expected = gradient(loss, before)
    assert (moved - expected).abs().max() <= 1e-4
    for part in (
        expected[:size],
        expected[size : size + CLASSES * Z],
        expected[size + CLASSES * Z : -1],
        expected[-1:],
    ):
        assert part.abs().max() > 0.02
    assert torch.equal(given, prior())


def test_without_the_terms_both_are_plain_training() -> None:
    """One draw and no divergence: the noise, the batches and the solver are those of `Train`."""
    training = Training(epochs=2, batch_size=10, momentum=0.9, weight_decay=0.01)
    people = stochastic(training)
    for client in (0, 2, 3):
        start = people.models[client]
        plain = answered(people, client, Train(start))
        assert isinstance(plain, Trained)
        cr = trained(people, client, train_gaussian(start, reference(), beta=0.0))
        sr = trained(people, client, train_invariant(start, prior(), l2r=0.0, cmi=0.0))
        for found in (cr, sr):
            assert torch.equal(found.model, plain.model)
            assert found.loss == plain.loss
        assert not torch.equal(sr.extras["prior"], prior())  # it decays


def test_the_prior_is_trained_by_the_same_solver() -> None:
    """Momentum and Adam move it as PyTorch's own optimisers would."""
    for training in (
        Training(epochs=3, batch_size=7, momentum=0.9),
        Training(epochs=3, batch_size=7, optimizer="adam"),
    ):
        people = stochastic(training, counts=[14, 3])
        start = people.models[0]
        x, y = people.data.slice(0, "train")
        model, learnt = start.clone().requires_grad_(), prior().requires_grad_()
        lr = training.lr_at(2)
        optimiser: torch.optim.Optimizer = (
            torch.optim.Adam([model, learnt], lr=lr)
            if training.optimizer == "adam"
            else torch.optim.SGD([model, learnt], lr=lr, momentum=0.9)
        )
        rng, drawn = stream(SEED, "batches", 0, 2), torch.Generator()
        drawn.manual_seed(address(SEED, "noise/batches", 0, 2))
        for _ in range(3):
            for rows in torch.split(torch.from_numpy(rng.permutation(14)), 7):
                mean, deviation, head = forward(people, model, x[rows])
                z = mean + deviation * torch.randn(7, Z, generator=drawn)
                r, s = learnt[:-1].view(2, CLASSES, Z)
                scaled = Normal(learnt[-1] * mean, learnt[-1] * deviation)
                pull = apart(scaled, Normal(r[y[rows]], softplus(s[y[rows]])))
                loss = cross_entropy(head(z), y[rows]) + 0.1 * z.norm(dim=1).mean() + 0.2 * pull
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        found = trained(people, 0, train_invariant(start, prior(), 0.1, 0.2))
        assert (found.model - model).abs().max() <= 1e-5
        assert (found.extras["prior"] - learnt).abs().max() <= 1e-5


def test_the_posterior_is_the_product_of_the_gaussians() -> None:
    """Of the last epoch's samples, each as its minibatch met it; with no step, of the model that was given."""
    people = stochastic(Training(epochs=2, batch_size=10, lr=0.0))
    for client in (0, 3):
        x, y = people.data.slice(client, "train")
        mean, deviation, _ = forward(people, people.models[client], x)
        found = trained(people, client, train_gaussian(people.models[client], reference(), 0.1))
        assert found.summary["posterior"].shape == (CLASSES, 2, Z)
        assert found.summary["counts"].tolist() == [int((y == c).sum()) for c in range(CLASSES)]
        for c in range(CLASSES):
            mine = y == c
            if not mine.any():
                assert not found.summary["posterior"][c].any()
                continue
            precision = deviation[mine].double() ** -2
            expected = (precision * mean[mine]).sum(0) / precision.sum(0), precision.sum(0) ** -0.5
            torch.testing.assert_close(
                found.summary["posterior"][c].double(), torch.stack(expected), atol=1e-5, rtol=1e-5
            )


def test_the_posterior_is_that_of_the_last_epoch() -> None:
    training = Training(epochs=3, batch_size=50, lr=0.3)
    people = stochastic(training, counts=[40, 3])
    start = people.models[0]
    long = trained(people, 0, train_gaussian(start, reference(), 0.1))
    before = trained(people, 0, train_gaussian(start, reference(), 0.1, epochs=2))
    still = stochastic(Training(epochs=1, batch_size=50, lr=0.0), counts=[40, 3])
    again = trained(still, 0, train_gaussian(before.model, reference(), 0.1))
    torch.testing.assert_close(long.summary["posterior"], again.summary["posterior"], atol=1e-5, rtol=1e-5)
    assert long.summary["counts"].sum() == 40
    assert not torch.allclose(long.summary["posterior"], before.summary["posterior"], atol=1e-3)


def test_the_posterior_stays_finite() -> None:
    people = stochastic(Training(epochs=1, batch_size=10, lr=0.0), counts=[200, 3])
    start = people.models[0].clone()
    people.layout.tensors[3].view(start)[Z:] = -200.0  # a body that is certain
    found = trained(people, 0, train_gaussian(start, reference(), 1e-3))
    assert torch.isfinite(found.summary["posterior"]).all()
    assert (found.summary["posterior"][:, 1] > 0).all()
    assert torch.isfinite(1 / found.summary["posterior"][:, 1] ** 2).all()
    assert torch.isfinite(found.model).all()


def test_a_part_is_trained_and_the_rest_stays_to_the_bit() -> None:
    people = stochastic()
    head = people.layout.last_layers(1)
    body = people.layout.everything - head
    start = people.models[0]
    for part, rest in ((head, body), (body, head)):
        for found in (
            trained(people, 0, train_gaussian(start, reference(), 0.1, part=part)).model,
            trained(people, 0, train_invariant(start, prior(), 0.1, 0.1, part=part)).model,
        ):
            assert torch.equal(rest.take(found), rest.take(start))
            assert not torch.equal(part.take(found), part.take(start))


def test_the_norm_of_a_gradient_is_clipped() -> None:
    people = stochastic(Training(epochs=1, batch_size=100, lr=0.1), counts=[40, 3])
    start = people.models[0]

    def step(clip: float) -> Tensor:
        found = trained(people, 0, train_invariant(start, prior(), 0.1, 0.5, clip=clip))
        return torch.cat([found.model - start, found.extras["prior"] - prior()]) / 0.1

    free, clipped = step(0.0), step(0.25)
    assert free.norm() > 0.5
    assert clipped.norm().item() == pytest.approx(0.25, rel=1e-3)
    assert torch.nn.functional.cosine_similarity(free, clipped, dim=0) > 0.9999
    assert torch.allclose(step(1e3), free, atol=1e-5)


def values(result: Result) -> list[Any]:
    """All that a result holds, as plain numbers."""
    fields = [result] if isinstance(result, Tensor) else vars(result).values()
    fields = [v for f in fields for v in (f.values() if isinstance(f, dict) else [f])]
    return [f.tolist() if hasattr(f, "tolist") else f for f in fields]


def test_the_noise_is_addressed() -> None:
    """The same client in the same round draws the same, whoever was at work before and whatever was drawn."""
    people = stochastic()
    asked: list[Callable[[int], Request]] = [
        lambda i: Train(people.models[i]),
        lambda i: train_gaussian(people.models[i], reference(), 0.1, samples=3),
        lambda i: train_invariant(people.models[i], prior(), 0.1, 0.1),
        lambda i: Gradients(people.models[i]),
        lambda i: Score(people.models[i], draws=4),
    ]
    for make in asked:
        forth = people.engine.answer(people.clients[:3], [make(i) for i in range(3)])
        torch.randn(5)
        back = people.engine.answer(people.clients[2::-1], [make(i) for i in (2, 1, 0)])
        for a, b in zip(forth, reversed(back), strict=True):
            assert values(a) == values(b)
    first, other = (answered(people, 0, Train(people.models[0], purpose=p)) for p in ("batches", "other"))
    assert isinstance(first, Trained)
    assert isinstance(other, Trained)
    assert not torch.equal(first.model, other.model)


def test_scores_by_draws_of_the_features() -> None:
    """Prediction by the mean of the sampled logits; by the means of the features where nothing is drawn."""
    people = stochastic(counts=[300, 7])
    model, count = people.models[0].clone(), 6
    people.layout.tensors[3].view(model)[Z:] = 1.5  # a body that is not certain
    x, y = people.data.slice(0, "test")
    mean, deviation, head = forward(people, model, x)
    drawn = torch.Generator().manual_seed(address(SEED, "noise/score/test", 0, 2))
    eps = torch.cat([torch.randn(count, n, Z, generator=drawn) for n in (128, 128, 44)], 1)
    sampled = torch.stack([head(mean + deviation * e) for e in eps]).mean(0)
    losses = []
    for draws, logits in ((count, sampled), (0, head(mean))):
        found = answered(people, 0, Score(model, draws=draws))
        assert isinstance(found, Scored)
        assert found.loss == pytest.approx(cross_entropy(logits, y).item(), abs=1e-5)
        guesses = logits.argmax(1)
        assert found.correct.sum() == (guesses == y).sum()
        assert found.predicted.tolist() == torch.bincount(guesses, minlength=CLASSES).tolist()
        losses.append(found.loss)
    assert abs(losses[0] - losses[1]) > 1e-3
    (means,) = people.engine.answer([people.clients[0]], [Losses(model[None], "test")])
    assert isinstance(means, Tensor)
    assert means.item() == pytest.approx(losses[1], abs=1e-6)


def test_no_sample_no_epoch_one_sample() -> None:
    people = stochastic(counts=[0, 12, 1])
    for client, epochs, same in ((0, 1, True), (1, 0, True), (2, 1, False)):
        start = people.models[client]
        cr = trained(people, client, train_gaussian(start, reference(), 0.1, epochs=epochs))
        sr = trained(people, client, train_invariant(start, prior(), 0.1, 0.1, epochs=epochs))
        assert torch.equal(cr.model, start) == torch.equal(sr.model, start) == same
        assert torch.equal(sr.extras["prior"], prior()) == same
        assert np.isnan(cr.loss) == np.isnan(sr.loss) == same
        assert cr.summary["counts"].sum() == (not same)
        assert bool(cr.summary["posterior"].any()) != same
        assert torch.isfinite(cr.summary["posterior"]).all()


def test_convolutions() -> None:
    people = population(Sequential, PLAIN, "gaussian-cnn", features=(8, 8, 1), dim=7)
    start, given = people.models[0], torch.stack([torch.zeros(CLASSES, 7), torch.ones(CLASSES, 7)], 1)
    plain = answered(people, 0, Train(start))
    assert isinstance(plain, Trained)
    assert torch.equal(trained(people, 0, train_gaussian(start, given, 0.0)).model, plain.model)


def test_shapes_are_required() -> None:
    people = stochastic()
    start = people.models[0]
    with pytest.raises(ValueError, match=r"reference.*\(4, 3\).*\(4, 2, 3\)"):
        answered(people, 0, train_gaussian(start, torch.zeros(4, 3), 0.1))
    with pytest.raises(ValueError, match=r"^prior .*\(24,\).*\(25,\)"):
        answered(people, 0, train_invariant(start, torch.zeros(24), 0.1, 0.1))


def test_a_network_with_a_gaussian_inside_a_block_trains_reproducibly() -> None:
    """Whatever draws is seeded, also where no body can be told from a head."""
    network = stochastic().network
    people = population(Sequential, PLAIN, nn.Sequential(network), features=(FEATURES,))
    first, second = (answered(people, 0, Train(people.models[0])) for _ in range(2))
    assert isinstance(first, Trained)
    assert isinstance(second, Trained)
    assert torch.equal(first.model, second.model)
