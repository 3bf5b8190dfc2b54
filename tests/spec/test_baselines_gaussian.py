"""FedCR and FedSR, whose networks have stochastic features (docs/methods/fedcr.md, docs/methods/fedsr.md)."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.clients.rules import ClassGaussians, Invariant, Score, Train
from coterie.clients.rules.evaluate import AdaptThenEvaluate
from coterie.errors import BadInput
from coterie.grouping.aggregate import mean
from coterie.methods import FedAvg, Method, Needs
from coterie.methods.fedcr import FedCR, multiply_gaussians
from coterie.methods.fedper import FedPer
from coterie.methods.fedsr import FedSR
from coterie.models.gaussian import Gaussian
from coterie.models.layout import Part
from coterie.models.networks import NETWORKS
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, Trained, planted, train
from tests.survival import SIZES, asked, assert_resumes, assert_survives, kept

C, Z = 10, 6
METHODS: dict[str, Method[Any]] = {
    "fedcr": FedCR(samples=3),
    "fedcr-strong": FedCR(beta=1e-2, samples=2, clip=0.5, head_epochs=1),
    "fedsr": FedSR(),
    "fedsr-all": FedSR(c_l2r=1e-3, c_cmi=1e-2, adapt="all", fine_tune=1),
    "fedsr-own": FedSR(c_cmi=1e-2, prior="own"),
}
PLAIN: dict[str, Any] = {"network": "gaussian-mlp", "settings": {"hidden": (12,), "dim": Z}}
NORMED: dict[str, Any] = {"network": "narrow-gaussian-norm"}
LONGER = TRAINING.updated(momentum=0.5, lr_decay=0.9, epochs=2)
every_method = pytest.mark.parametrize("name", METHODS)
both_networks = pytest.mark.parametrize("network", [PLAIN, NORMED], ids=["plain", "batch-norm"])
some_or_all = pytest.mark.parametrize("participation", [1.0, 0.5])


@NETWORKS.add("narrow-gaussian-norm")
def narrow(features: tuple[int, ...], classes: int) -> nn.Module:
    """64-12-(2 x 6)-10 with batch norm behind the first two layers."""
    modules = {
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(64, 12),
        "norm1": nn.BatchNorm1d(12),
        "relu": nn.ReLU(),
        "fc2": nn.Linear(12, 2 * Z),
        "norm2": nn.BatchNorm1d(2 * Z),
        "gaussian": Gaussian(Z),
        "head": nn.Linear(Z, classes),
    }
    return nn.Sequential(OrderedDict(modules))


def train_gaussian(start: Tensor, reference: Tensor, beta: float, samples: int, **settings: Any) -> Train:
    return Train(start, objective=ClassGaussians(beta, samples), extras={"reference": reference}, **settings)


def head(run: Trained) -> Part:
    return run.server.layout.last_layers(1)


def body(run: Trained) -> Part:
    return run.server.layout.everything - head(run)


@pytest.mark.medium
@every_method
def test_gaussian_8_7(name: str) -> None:
    assert_survives(METHODS[name], 3, PLAIN, NORMED)


@pytest.mark.medium
@pytest.mark.each_once
@every_method
@both_networks
def test_gaussian_8_9_resumed(name: str, network: dict[str, Any], tmp_path: Path) -> None:
    assert_resumes(METHODS[name], tmp_path, 4, **network)


@every_method
def test_networks_without_gaussian_features_are_refused(name: str) -> None:
    federation, method = planted("feature", clients=2), METHODS[name]
    assert method.needs == Needs(gaussian=True, classes=True)
    for network in ("planted-perceptron", "narrow-batch-norm", "cnn"):
        with pytest.raises(BadInput, match="gaussian-mlp or gaussian-cnn"):
            train(method, federation, 0, network=network)
    with pytest.raises(BadInput, match="gaussian-mlp or gaussian-cnn"):
        train(method, federation, 0, network="mlp", settings={"hidden": ()})
    train(method, federation, 0, network="gaussian-cnn", settings={"dim": 4})


# ---- FedCR


@pytest.mark.slow
@pytest.mark.parametrize("participation", [0.5])
def test_fedcr_6_18_without_divergence_is_fedper(participation: float) -> None:
    """With beta = 0, one draw and no limit, and clients that count alike, it trains what FedPer trains."""
    federation = planted("feature")
    settings: dict[str, Any] = {"training": LONGER, "participation": participation, **PLAIN}
    ours = train(FedCR(beta=0.0, samples=1, clip=0.0), federation, 4, **settings)
    theirs = train(FedPer(), federation, 4, **settings)
    for one, other in zip(ours.states, theirs.states, strict=True):
        assert torch.equal(one.model, other.model)
        assert (one.started == other.started).all()
    assert torch.equal(ours.served(), theirs.served())
    divergent = train(FedCR(beta=0.1, samples=1, clip=0.0), federation, 1, **settings)
    assert not torch.equal(divergent.state.model, ours.states[1].model)


@both_networks
def test_fedcr_6_18(network: dict[str, Any]) -> None:
    """[shared body ; own head] is trained towards the global Gaussians; bodies are averaged uniformly."""
    method = FedCR(beta=1e-2, samples=3, clip=1.0)
    run = train(method, planted("label", sizes=SIZES), 3, participation=0.3, **network)
    heads = {c: run.server.initial(0) for c in range(20)}
    first = run.states[0].gaussians
    assert torch.equal(first[:, 0], torch.zeros(C, Z))
    assert torch.equal(first[:, 1], torch.ones(C, Z))
    for number in (1, 2, 3):
        before = run.states[number - 1]
        ((_, replies),) = run.asked[number - 1]
        assert torch.isnan(head(run).take(replies.models)).all()
        found, posteriors = [], []
        for client in replies.clients:
            start = body(run).copy(heads[client].clone(), before.model[0])
            trained = asked(run, int(client), number, train_gaussian(start, before.gaussians, 1e-2, 3, clip=1.0))
            heads[client] = trained.model
            found.append(trained.model)
            posteriors.append(trained.summary["posterior"])
        expected = mean(torch.stack(found), before.model)
        assert torch.equal(run.states[number].model, body(run).copy(before.model.clone(), expected))
        assert torch.equal(replies.uploads["gaussians"], torch.stack(posteriors))
        _assert_product(run.states[number].gaussians, torch.stack(posteriors), before.gaussians)
    for client, model in heads.items():
        assert torch.equal(run.served()[client], body(run).copy(model.clone(), run.state.model[0]))
    newcomer = drive(run.method.newcomer(run.state, np.array([5]), run.server), run.runtime.answer)
    expected = body(run).copy(run.server.initial(0)[None], run.state.model)
    assert torch.equal(newcomer.models[newcomer.served], expected)


def _assert_product(found: Tensor, sent: Tensor, before: Tensor) -> None:
    """Class by class and feature by feature, written out."""
    classes_without = 0
    for label in range(C):
        having = [g[label].double().numpy() for g in sent if g[label, 1].any()]
        if not having:
            classes_without += 1
            assert torch.equal(found[label], before[label])
            continue
        precision = 1 + sum(rho**-2 for _, rho in having)
        expected = sum(r * rho**-2 for r, rho in having) / precision
        np.testing.assert_allclose(found[label, 0].numpy(), expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(found[label, 1].numpy(), precision**-0.5, rtol=1e-5)
        assert (found[label, 1] < 1).all()
    assert classes_without >= 2  # the planted blocks of two leave two classes to nobody


def test_fedcr_6_18_product_with_a_standard_normal() -> None:
    """N(0, 1) with N(3, 1) is N(1.5, 1/2); with two N(3, 1), N(2, 1/3); a class of nobody stays."""
    previous = torch.tensor([[[7.0], [0.5]]]).repeat(2, 1, 1)
    one = torch.tensor([[[3.0], [1.0]], [[0.0], [0.0]]])
    single, twice = multiply_gaussians(one[None], previous), multiply_gaussians(one.repeat(2, 1, 1, 1), previous)
    torch.testing.assert_close(single[0], torch.tensor([[1.5], [0.5**0.5]]))
    torch.testing.assert_close(twice[0], torch.tensor([[2.0], [(1 / 3) ** 0.5]]))
    assert torch.equal(single[1], previous[1])
    assert torch.equal(multiply_gaussians(one[:0].view(0, 2, 2, 1), previous), previous)


@pytest.mark.slow
def test_fedcr_6_18_the_divergence_draws_features_to_the_global_gaussians() -> None:
    """With a strong beta, the features of one class differ less between clients than without."""
    apart = []
    for beta in (0.0, 0.1):
        run = train(FedCR(beta=beta, samples=3), planted("feature"), 5, training=LONGER, **PLAIN)
        sent = run.asked[-1][0][1].uploads["gaussians"][:, :, 0]
        apart.append(float((sent - sent.mean(0)).norm() / sent.norm()))
    assert apart[1] < 0.9 * apart[0]


@pytest.mark.medium
@both_networks
def test_fedcr_6_18_evaluation_averages_draws_and_ends_with_heads(network: dict[str, Any]) -> None:
    method = FedCR(samples=5, head_epochs=4)
    run = train(method, planted("label"), 3, participation=0.3, **network)
    before, everyone = [None if m is None else m.clone() for m in kept(run, "model")], run.server.everyone
    assert any(m is None for m in before)
    scores = run.runtime.measure(method.evaluation(run.state, run.server, everyone)).report["score"]
    final = run.runtime.measure(method.evaluation(run.state, run.server, everyone, last=True)).report["score"]
    anything = torch.stack([torch.full((C, Z), 3.0), torch.full((C, Z), 0.1)], 1)
    for client in everyone:
        own = run.served()[client]
        assert scores[client].loss == asked(run, client, 3, Score(own, draws=5)).loss
        assert scores[client].loss != asked(run, client, 3, Score(own)).loss
        # With the body frozen, the divergence from whatever Gaussian changes nothing.
        request = train_gaussian(own, anything, 1e-4, 5, part=head(run), epochs=4, purpose="adaptation")
        fitted = asked(run, client, 3, request).model
        assert torch.equal(body(run).take(fitted), body(run).take(own))
        expected = asked(run, client, 3, Score(fitted, draws=5)).loss
        np.testing.assert_allclose(final[client].loss, expected, rtol=1e-4)
    assert np.mean([s.loss for s in final]) < np.mean([s.loss for s in scores])
    for model, now in zip(before, kept(run, "model"), strict=True):  # nothing of it is kept
        assert (now is None) == (model is None)
        assert model is None or torch.equal(now, model)  # type: ignore[arg-type]  # both are there


# ---- FedSR


@pytest.mark.slow
@pytest.mark.parametrize("participation", [0.5])
def test_fedsr_6_19_without_its_terms_is_fedavg(participation: float) -> None:
    federation = planted("feature", sizes=SIZES)
    settings: dict[str, Any] = {"training": LONGER, "participation": participation, **PLAIN}
    ours = train(FedSR(c_l2r=0.0, c_cmi=0.0), federation, 4, **settings)
    theirs = train(FedAvg(weights="uniform"), federation, 4, **settings)
    for one, other in zip(ours.states, theirs.states, strict=True):
        assert torch.equal(one.model, other.model)
        assert torch.equal(one.prior, ours.states[0].prior)
    for l2r, cmi in ((1e-2, 0.0), (0.0, 1e-2)):
        run = train(FedSR(c_l2r=l2r, c_cmi=cmi), federation, 1, **settings)
        assert not torch.equal(run.state.model, ours.states[1].model)
        assert torch.equal(run.state.prior, ours.state.prior) == (cmi == 0)


@pytest.mark.medium
@both_networks
def test_fedsr_6_19(network: dict[str, Any]) -> None:
    """Model and prior are trained together and averaged uniformly; r, s and c start at 0, 1 and 1."""
    method = FedSR(c_l2r=0.02, c_cmi=1e-3)
    run = train(method, planted("feature", sizes=SIZES), 3, participation=0.5, **network)
    assert run.states[0].prior.tolist() == [[0.0] * (C * Z) + [1.0] * (C * Z) + [1.0]]
    for number in (1, 2, 3):
        before = run.states[number - 1]
        ((_, replies),) = run.asked[number - 1]
        request = Train(before.model[0], objective=Invariant(0.02, 1e-3), trained_extras={"prior": before.prior[0]})
        trained = [asked(run, int(c), number, request) for c in replies.clients]
        assert torch.equal(run.states[number].model, mean(torch.stack([t.model for t in trained]), before.model))
        assert torch.equal(
            run.states[number].prior, mean(torch.stack([t.extras["prior"] for t in trained]), before.prior)
        )
    assert all((now != then).all() for now, then in zip(run.state.prior, run.states[0].prior, strict=True))


@pytest.mark.medium
def test_fedsr_6_19_own_prior() -> None:
    """A client goes on from the prior that it ended with when it last took part; priors never cross."""
    method = FedSR(c_l2r=0.02, c_cmi=1e-2, prior="own")
    run = train(method, planted("feature", sizes=SIZES), 4, participation=0.5, **PLAIN)
    own = dict.fromkeys(range(run.server.n), run.states[0].prior[0])
    for number in (1, 2, 3, 4):
        before = run.states[number - 1]
        ((_, replies),) = run.asked[number - 1]
        for client, model in zip(replies.clients, replies.models, strict=True):
            extras = {"prior": own[int(client)]}
            request = Train(before.model[0], objective=Invariant(0.02, 1e-2), trained_extras=extras)
            trained = asked(run, int(client), number, request)
            assert torch.equal(model, trained.model)
            own[int(client)] = trained.extras["prior"]
        assert torch.equal(run.states[number].model, mean(replies.models, before.model))
        assert torch.equal(run.states[number].prior, run.states[0].prior)
        expected = len(replies) * run.server.layout.size * 4
        assert run.bytes("up", number) == run.bytes("down", number) == expected
    assert max(np.bincount(np.concatenate([asked[0][1].clients for asked in run.asked]))) > 1


@pytest.mark.medium
@pytest.mark.each_once
@both_networks
@pytest.mark.parametrize("adapt", ["head", "all"])
def test_fedsr_6_19_evaluation_adapts_a_copy(network: dict[str, Any], adapt: Any) -> None:
    run = train(FedSR(adapt=adapt, fine_tune=3), planted("label"), 3, participation=0.5, **network)
    everyone = run.server.everyone
    exchange = run.method.evaluation(run.state, run.server, everyone)
    layers = {"head": "last:1", "all": "all"}[adapt]
    assert exchange.rule == AdaptThenEvaluate("test", "", layers, 3)
    scores = run.runtime.measure(exchange).report["score"]
    served, part = run.state.model[0], head(run) if adapt == "head" else None
    for client in everyone:
        adapted = asked(run, client, 3, Train(served, part=part, epochs=3, purpose="adaptation")).model
        assert torch.equal(body(run).take(adapted), body(run).take(served)) == (adapt == "head")
        assert scores[client].loss == asked(run, client, 3, Score(adapted)).loss
    plain = [asked(run, c, 3, Score(served)).loss for c in everyone]
    assert np.mean([s.loss for s in scores]) < np.mean(plain)
    assert FedSR().evaluation(run.state, run.server, everyone).rule == AdaptThenEvaluate("test", "", "last:1", 10)
    joined = drive(run.method.newcomer(run.state, np.array([3, 4]), run.server), run.runtime.answer)
    assert torch.equal(joined.models[joined.served], run.state.model.expand(2, -1))
