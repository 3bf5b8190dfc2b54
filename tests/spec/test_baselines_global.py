"""Methods whose clients keep nothing, and their reductions (6.1 to 6.3, 6.15 to 6.17 of docs/methods/)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from coterie.clients.rules import Gradients, Train
from coterie.clients.rules.gradient import CorrectedUpdate
from coterie.grouping.aggregate import mean, trimmed_means
from coterie.methods import Cohort, FedAvg
from coterie.methods.exchange import Exchange, Exchanges, Replies, Send
from coterie.methods.feddane import FedDANE
from coterie.methods.feddist import FedDist
from coterie.methods.fedprox import FedProx
from coterie.methods.fedsgd import FedSGD
from coterie.methods.one_model import GlobalState
from coterie.methods.robust_tkm import RobustTKM
from coterie.randomness import stream
from tests.federated import TRAINING, Trained, planted, train
from tests.survival import SIZES, asked, kept

MOMENTUM = TRAINING.updated(momentum=0.5, lr_decay=0.9, epochs=2)
some_or_all = pytest.mark.parametrize("participation", [1.0, 0.5])


def assert_same_models(one: Trained, other: Trained) -> None:
    """The same global model after every round, to the bit."""
    for ours, theirs in zip(one.states, other.states, strict=True):
        assert torch.equal(ours.model, theirs.model)


# ---- FedSGD


@pytest.mark.parametrize("batch", ["minibatch", "all"])
def test_fedsgd_6_1(batch: Any) -> None:
    """W <- W - lr sum_i (n_i / sum n) g_i, the gradients of the cohort at W."""
    run = train(FedSGD(lr=0.2, batch=batch), planted("feature", sizes=SIZES), 2, participation=0.5)
    for number in (1, 2):
        before, after = run.states[number - 1].model[0].double(), run.states[number].model[0]
        ((_, replies),) = run.asked[number - 1]
        share = replies.samples / replies.samples.sum()
        request = Gradients(before.float(), batches=1, full=batch == "all")
        found = [asked(run, int(c), number, request)[0].double() for c in replies.clients]
        step = sum(float(p) * g for p, g in zip(share, found, strict=True))
        torch.testing.assert_close(after, (before - 0.2 * step).float(), atol=1e-7, rtol=0)


@pytest.mark.medium
@pytest.mark.each_once
@some_or_all
@pytest.mark.parametrize("network", ["planted-perceptron", "narrow-batch-norm"])
def test_fedsgd_6_1_is_fedavg_with_one_full_batch_step(network: str, participation: float) -> None:
    federation = planted("feature", sizes=SIZES)
    settings: dict[str, Any] = {"participation": participation, "network": network}
    settings["training"] = TRAINING.updated(batch_size=200)
    fedsgd = train(FedSGD(lr=0.1, batch="all"), federation, 4, **settings)
    fedavg = train(FedAvg(), federation, 4, **settings)
    assert not torch.equal(fedsgd.state.model, fedsgd.states[0].model)
    for ours, theirs in zip(fedsgd.states, fedavg.states, strict=True):
        torch.testing.assert_close(ours.model, theirs.model, atol=1e-6, rtol=0)


# ---- FedProx


def test_fedprox_6_3() -> None:
    """mu (w - W) is added to every gradient: nothing in the first step, something in the second."""
    run = train(FedProx(mu=0.7), planted("feature"), 1, training=TRAINING.updated(epochs=2, batch_size=100))
    start = run.states[0].model[0]
    ((_, replies),) = run.asked[0]
    for client in (0, 7):
        first = start - 0.1 * asked(run, client, 1, Gradients(start, full=True))[0]
        gradient = asked(run, client, 1, Gradients(first, full=True))[0]
        second = first - 0.1 * (gradient + 0.7 * (first - start))
        torch.testing.assert_close(replies.models[client], second, atol=1e-6, rtol=0)


@pytest.mark.medium
def test_fedprox_6_3_a_stronger_pull_stays_closer() -> None:
    federation = planted("label")
    away = []
    for mu in (0.0, 0.1, 1.0, 5.0):
        run = train(FedProx(mu=mu), federation, 1, training=TRAINING.updated(epochs=5))
        ((_, replies),) = run.asked[0]
        away.append((replies.models - run.states[0].model).norm(dim=1))
    for closer, farther in zip(away[1:], away, strict=False):
        assert (closer < farther).all()


# ---- FedDist


@pytest.mark.parametrize(
    ("method", "kappa"),
    [(FedDist(), 0.6), (FedDist(weights="samples"), 0.6), (FedDist(weights="samples", kappa=0.3), 0.3)],
)
def test_feddist_6_17(method: FedDist, kappa: float) -> None:
    """W <- W - kappa sum_i p_i (W - w_i); p_i = 1/m, or p_i = n_i / sum n (WS)."""
    run = train(method, planted("feature", sizes=SIZES), 2, participation=0.5)
    for number in (1, 2):
        before = run.states[number - 1].model[0].double()
        ((_, replies),) = run.asked[number - 1]
        share = replies.samples / replies.samples.sum() if method.weights == "samples" else np.full(10, 0.1)
        steps = [float(p) * (before - w.double()) for p, w in zip(share, replies.models, strict=True)]
        expected = before - kappa * torch.stack(steps).sum(0)
        torch.testing.assert_close(run.states[number].model[0], expected.float(), atol=1e-7, rtol=0)


# ---- FedDANE


@dataclass(frozen=True)
class OwnGradients(FedDANE):
    """FedDANE in which every client receives its own gradient for the mean one."""

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        asks = super().round(state, cohort)
        replies: Replies = yield next(asks)
        second = asks.send(replies)
        assert isinstance(second, Exchange)
        own = Send(replies.uploads["gradient"], np.arange(len(replies)), cohort.server.layout.trainable)
        trained: Replies = yield replace(second, send={**second.send, "gradient": own})
        try:
            asks.send(trained)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what a round returns
        raise AssertionError("a round of FedDANE has two exchanges")


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "participation", "mu"), [("sequential", 0.5, 0.5), ("batched", 1.0, 0.0)])
def test_feddane_6_16_with_own_gradients_is_fedprox(engine: str, participation: float, mu: float) -> None:
    federation = planted("feature", sizes=SIZES)
    settings: dict[str, Any] = {"training": MOMENTUM, "participation": participation, "engine": engine}
    feddane = train(OwnGradients(mu=mu), federation, 4, **settings)
    assert_same_models(feddane, train(FedProx(mu=mu), federation, 4, **settings))
    if not mu:
        assert_same_models(feddane, train(FedAvg(), federation, 4, **settings))
    assert not torch.equal(feddane.state.model, train(FedDANE(mu=mu), federation, 4, **settings).state.model)


def test_feddane_6_16_of_one_client_is_fedprox() -> None:
    """Its own gradient is the mean one."""
    federation = planted("feature", clients=1)
    assert_same_models(train(FedDANE(mu=0.2), federation, 3), train(FedProx(mu=0.2), federation, 3))


@pytest.mark.parametrize("cohorts", ["same", "independent"])
def test_feddane_6_16(cohorts: Any) -> None:
    """F_i(w) + <g - grad F_i(W), w - W> + (mu/2) ||w - W||^2, g over the first cohort, models over the second."""
    run = train(FedDANE(mu=0.3, cohorts=cohorts), planted("feature", sizes=SIZES), 2, participation=0.5)
    for number in (1, 2):
        start = run.states[number - 1].model[0]
        (_, first), (_, second) = run.asked[number - 1]
        own = [asked(run, c, number, Gradients(start, full=True))[0] for c in range(20)]
        share = first.samples / first.samples.sum()
        g = sum(float(p) * own[c].double() for c, p in zip(first.clients, share, strict=True))
        for client, model in zip(second.clients, second.models, strict=True):
            linear = (torch.as_tensor(g) - own[client].double()).float()
            expected = asked(run, int(client), number, Train(start, pull=0.3, linear=linear)).model
            torch.testing.assert_close(model, expected, atol=1e-6, rtol=0)
        after = mean(second.models, run.states[number - 1].model, second.samples)
        assert torch.equal(run.states[number].model, after)
        drawn = np.sort(stream(0, "second cohort", round=number).permutation(20)[:10])
        assert second.clients.tolist() == (first.clients if cohorts == "same" else drawn).tolist()
    assert kept(run, "received") == kept(run, "gradient") == [None] * 20  # a round's memory ends with it


def test_feddane_who_left_after_the_first_exchange_is_not_asked_again() -> None:
    run = train(FedDANE(), planted("feature"), 3, client_dropout=0.4)
    for (_, first), (exchange, second) in run.asked:
        assert 0 < len(first) < 20
        assert exchange.clients.tolist() == first.clients.tolist() == second.clients.tolist()
        assert isinstance(exchange.rule, CorrectedUpdate)


# ---- Robust-TKM


@pytest.mark.slow
@pytest.mark.parametrize("groups", [4])
@pytest.mark.parametrize("signal", ["all", "last_kernel"])
def test_robust_tkm_6_15_finds_planted_groups(groups: int, signal: Any) -> None:
    for seed in range(3):
        federation = planted("feature", groups, seed=seed)
        run = train(RobustTKM(clusters=groups, signal=signal), federation, 2, seed=seed)
        assert run.ari() == 1.0
        ((_, uploads),), ((_, replies),) = run.asked
        for found, trim in ((run.states[1].models, 0.2), (run.state.centres, 0.05)):
            assert torch.equal(found, trimmed_means(uploads.models, run.groups(), run.states[0].models, trim))
        expected = trimmed_means(replies.models, run.groups(), run.states[1].models, 0.2)
        assert torch.equal(run.state.models, expected)


@pytest.mark.slow
def test_robust_tkm_6_15_withstands_byzantine_clients() -> None:
    """Four clients of 24 with labels at random and inputs far off: the others' groups, and their accuracy."""
    federation = planted("feature", 2, clients=24)
    inputs, labels, honest = federation.inputs.clone(), federation.labels.clone(), np.arange(24) >= 4
    stop = int(federation.bounds[3, 3])
    inputs[:stop] *= 30.0
    labels[:stop] = torch.from_numpy(np.random.default_rng(0).integers(0, 10, stop))
    federation = replace(federation, inputs=inputs, labels=labels)
    run = train(RobustTKM(clusters=2, kmeans_trim=0.2), federation, 6)
    assert federation.true_groups is not None
    assert adjusted_rand_score(federation.true_groups[honest], run.groups()[honest]) == 1.0
    assert run.accuracy()[honest].mean() > 0.9
    plain = train(RobustTKM(clusters=2, trim=0.0, kmeans_trim=0.0), federation, 6)
    assert plain.accuracy()[honest].mean() < run.accuracy()[honest].mean() - 0.1
