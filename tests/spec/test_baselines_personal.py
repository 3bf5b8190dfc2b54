"""Methods whose clients keep a model or layers of their own (6.4 to 6.8 of docs/methods/)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.rules import Gradients, Score, Train
from coterie.clients.rules.evaluate import AdaptThenEvaluate
from coterie.clients.rules.requests import Losses
from coterie.errors import BadInput
from coterie.grouping.aggregate import mean
from coterie.methods import FedAvg, Method, Needs
from coterie.methods.ditto import CANDIDATES, Ditto
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedper import FedPer
from coterie.methods.fedrep import FedRep
from coterie.methods.lg_fedavg import LGFedAvg
from coterie.models.layout import Part
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, Trained, planted, train
from tests.survival import SIZES, asked, kept, local

METHODS: dict[str, Method[Any]] = {
    "ditto": Ditto(),
    "ditto-dynamic": Ditto(dynamic=True),
    "ditto-global": Ditto(lam=0.1, evaluated="global", personal_epochs=2),
    "fedper": FedPer(),
    "fedper-all": FedPer(private=2),
    "fedrep": FedRep(head_epochs=2),
    "lg-fedavg": LGFedAvg(layers=1, pretrain=2),
    "lg-fedavg-scratch": LGFedAvg(layers=1, pretrain=0),
    "fedbabu": FedBABU(lr_drops=(1, 3)),
}
MOMENTUM = TRAINING.updated(momentum=0.5, lr_decay=0.9)
some_or_all = pytest.mark.parametrize("participation", [1.0, 0.5])


def last(run: Trained) -> Part:
    return run.server.layout.last_layers(1)


def body(run: Trained) -> Part:
    return run.server.layout.everything - last(run)


def own(run: Trained, name: str = "model") -> torch.Tensor:
    """What every client keeps, `[n, P]`; all of them must keep something."""
    models = [m for m in kept(run, name) if m is not None]
    assert len(models) == run.server.n
    return torch.stack(models)


def test_private_layers_beyond_the_network_are_refused() -> None:
    federation = planted("feature", clients=2)
    for method, said in (
        (FedPer(private=3), r"method\.private = 3 .*2 layers; .*1 … 2$"),
        (FedRep(private=3), r"method\.private = 3 .*2 layers; .*1 … 2$"),
        (LGFedAvg(layers=4), r"method\.layers = 4 .*2 layers; .*1 … 2$"),
        (FedBABU(head=2), r"method\.head = 2 .*2 layers; .*1 … 1$"),
    ):
        with pytest.raises(BadInput, match=said):
            train(method, federation, 0)
    with pytest.raises(BadInput, match=r"^method\.head = 1 .*1 layer;"):
        train(FedBABU(), federation, 0, network="mlp", settings={"hidden": ()})


# ---- Ditto


def test_ditto_6_4() -> None:
    """v <- v - lr (grad F_i(v) + lam (v - W)), W as received in the round; one step a round, two rounds."""
    run = train(Ditto(lam=0.7), planted("feature"), 2, training=TRAINING.updated(batch_size=100))
    for client in (0, 7):
        v = run.server.initial(0)
        for number in (1, 2):
            received = run.states[number - 1].model[0]
            gradient = asked(run, client, number, Gradients(v, full=True))[0]
            v = v - 0.1 * (gradient + 0.7 * (v - received))
        torch.testing.assert_close(own(run, "personal")[client], v, atol=1e-6, rtol=0)


@pytest.mark.medium
def test_ditto_6_4_a_strong_pull_leaves_the_global_model() -> None:
    """With lr lam = 1 a step ends at W - lr grad F_i: at W, as lam grows."""
    away = []
    for lam in (1.0, 10.0, 100.0, 1000.0):
        run = train(Ditto(lam=lam), planted("feature"), 2, training=TRAINING.updated(lr=1 / lam))
        away.append(float((own(run, "personal") - run.states[1].model).norm(dim=1).max()))
    assert all(closer < farther / 5 for closer, farther in zip(away[1:], away, strict=False))
    assert away[-1] < 1e-2


@pytest.mark.medium
def test_ditto_6_4_dynamic_takes_the_best_on_validation_data() -> None:
    federation = planted("iid", samples=30)
    bounds = federation.bounds.copy()
    bounds[:, 1] -= 15
    run = train(Ditto(dynamic=True, personal_epochs=3), replace(federation, bounds=bounds), 3)
    assert (Ditto(dynamic=True).needs, Ditto().needs) == (Needs(validation=True), Needs())
    models, every = run.server.initial(0).repeat(20, 1), set()
    for number in (1, 2, 3):
        received = run.states[number - 1].model[0]
        ((_, replies),) = run.asked[number - 1]
        for client, lam in enumerate(replies.report["lam"]):
            asks = [Train(models[client], pull=p, anchor=received, epochs=3) for p in CANDIDATES]
            tried = torch.stack([asked(run, client, number, ask).model for ask in asks])
            best = int(asked(run, client, number, Losses(tried, split="validation")).argmin())
            assert lam == CANDIDATES[best]
            models[client] = tried[best]
        taken = replies.report["lam"]
        assert [run.logged("clients by lam", str(p))[number - 1] for p in CANDIDATES] == [
            taken.count(p) for p in CANDIDATES
        ]
        every |= set(taken)
    assert torch.equal(own(run, "personal"), models)
    assert every == set(CANDIDATES)


def test_ditto_6_4_serves_the_personal_model_or_the_global_one() -> None:
    federation = planted("label")
    run = train(Ditto(), federation, 3, participation=0.3)
    everybody = kept(run, "personal")
    away = [c for c, v in enumerate(everybody) if v is None]
    assert away
    for client, v in enumerate(everybody):
        assert torch.equal(run.served()[client], run.server.initial(0) if v is None else v)
    shown = train(Ditto(evaluated="global"), federation, 3, participation=0.3)
    assert torch.equal(shown.served(), run.state.model.expand(20, -1))
    fedavg = train(FedAvg(), federation, 3, participation=0.3)
    assert shown.accuracy().tolist() == fedavg.accuracy().tolist() != run.accuracy().tolist()
    joined = drive(run.method.newcomer(run.state, np.array([3, 4]), run.server), run.runtime.answer)
    assert torch.equal(joined.models[joined.served], run.state.model.expand(2, -1))


# ---- FedPer and FedRep


@pytest.mark.medium
@pytest.mark.parametrize("network", ["planted-perceptron", "narrow-batch-norm"])
def test_fedper_6_5(network: str) -> None:
    """[shared W ; own head] is trained as one; W is the n_i-weighted mean; so evaluated."""
    run = train(FedPer(), planted("feature", sizes=SIZES), 3, participation=0.5, network=network)
    heads = {c: run.server.initial(0) for c in range(20)}
    for number in (1, 2, 3):
        before = run.states[number - 1].model
        ((_, replies),) = run.asked[number - 1]
        assert torch.isnan(last(run).take(replies.models)).all()
        found = []
        for client in replies.clients:
            start = body(run).copy(heads[client].clone(), before[0])
            heads[client] = asked(run, int(client), number, Train(start)).model
            found.append(heads[client])
        expected = mean(torch.stack(found), before, replies.samples)
        assert torch.equal(run.states[number].model, body(run).copy(before.clone(), expected))
    for client, head in heads.items():
        assert torch.equal(run.served()[client], body(run).copy(head.clone(), run.state.model[0]))
    newcomer = drive(run.method.newcomer(run.state, np.array([5]), run.server), run.runtime.answer)
    expected = body(run).copy(run.server.initial(0)[None], run.state.model)
    assert torch.equal(newcomer.models[newcomer.served], expected)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["narrow-batch-norm"])
def test_fedrep_6_6(network: str) -> None:
    """The head for E_h epochs with the body frozen, then the body for E_b with the head frozen."""
    run = train(FedRep(head_epochs=3, body_epochs=2), planted("feature"), 2, network=network)
    for client in (0, 7):
        start = run.server.initial(0)
        for number in (1, 2):
            received = body(run).copy(start.clone(), run.states[number - 1].model[0])
            request = Train(received, part=last(run), epochs=3, purpose="head batches")
            fitted = asked(run, client, number, request).model
            assert torch.equal(body(run).take(fitted), body(run).take(received))
            start = asked(run, client, number, Train(fitted, part=body(run), epochs=2)).model
            assert torch.equal(last(run).take(start), last(run).take(fitted))
            assert not torch.equal(last(run).take(start), last(run).take(received))
        assert torch.equal(own(run)[client], start)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["narrow-batch-norm"])
def test_fedrep_6_6_everybody_trains_the_head_in_the_end(network: str) -> None:
    run = train(FedRep(), planted("label"), 3, participation=0.3, network=network)
    before, everyone = [None if m is None else m.clone() for m in kept(run, "model")], run.server.everyone
    exchange = run.method.evaluation(run.state, run.server, everyone, last=True)
    assert exchange.rule == AdaptThenEvaluate("test", "model", "last:1", 10)
    scores = run.runtime.measure(exchange).report["score"]
    runtime = local(run)
    for client in everyone:
        request = Train(run.served()[client], part=last(run), epochs=10, purpose="adaptation")
        adapted = asked(run, client, 3, request).model
        assert scores[client].loss == asked(run, client, 3, Score(adapted)).loss
    plain = run.runtime.measure(run.method.evaluation(run.state, run.server, everyone)).report["score"]
    assert np.mean([s.loss for s in scores]) < np.mean([s.loss for s in plain])
    for client, model in enumerate(before):  # nothing of it is kept
        now = runtime.states.of(client).get("model")
        assert (now is None) == (model is None)
        assert model is None or torch.equal(now, model)  # type: ignore[arg-type]  # both are there


@pytest.mark.medium
@pytest.mark.each_once
@some_or_all
@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu"])
@pytest.mark.parametrize(("network", "client_dropout"), [("planted-perceptron", 0.3), ("narrow-batch-norm", 0.0)])
def test_fedper_6_5_bytes(name: str, network: str, client_dropout: float, participation: float) -> None:
    """m b P_shared each way, and the private layers once to each client that starts; again, if it vanished."""
    run = train(
        METHODS[name],
        planted("feature"),
        4,
        participation=participation,
        network=network,
        client_dropout=client_dropout,
    )
    _assert_bytes(run, body(run), round(20 * participation))


def _assert_bytes(run: Trained, shared: Part, m: int, first: int = 1) -> None:
    seen: set[int] = set()
    private = run.server.layout.size - shared.size
    for number in range(first, len(run.states)):
        ((exchange, replies),) = run.asked[number - 1]
        fresh = set(exchange.clients.tolist()) - seen
        assert (len(replies) == m) == (run.runtime.client_dropout == 0)
        assert run.bytes("up", number) == len(replies) * shared.size * 4
        assert run.bytes("down", number) == (m * shared.size + len(fresh) * private) * 4
        items = [(client, scalars) for client, _, what, scalars in run.ledgers[number - 1] if what == "initial"]
        assert items == [(client, private) for client in sorted(fresh)]
        seen |= set(replies.clients.tolist())


# ---- LG-FedAvg


@pytest.mark.medium
@pytest.mark.parametrize("network", ["planted-perceptron", "narrow-batch-norm"])
def test_lg_fedavg_6_7(network: str) -> None:
    """Lower layers start from the pretrained model and stay private; the upper ones are averaged uniformly."""
    method = LGFedAvg(layers=1, pretrain=2)
    run = train(method, planted("feature", sizes=SIZES), 5, participation=0.4, network=network)
    pretrained = run.states[2].model[0]
    models = dict.fromkeys(range(20), pretrained)
    for number in (3, 4, 5):
        before = run.states[number - 1].model
        ((_, replies),) = run.asked[number - 1]
        for client in replies.clients:
            start = last(run).copy(models[client].clone(), before[0])
            models[client] = asked(run, int(client), number, Train(start)).model
        top = mean(torch.stack([models[c] for c in replies.clients]), before)
        assert torch.equal(run.states[number].model, last(run).copy(before.clone(), top))
        assert torch.equal(body(run).take(run.states[number].model[0]), body(run).take(pretrained))
    away = ~run.state.started
    assert 0 < away.sum() < 20
    everyone = run.server.everyone
    scores = run.runtime.measure(method.evaluation(run.state, run.server, everyone)).report["score"]
    for client, model in models.items():  # also who never came has the pretrained lower layers
        shown = last(run).copy(model.clone(), run.state.model[0])
        assert scores[client].loss == asked(run, client, 5, Score(shown)).loss


@some_or_all
def test_lg_fedavg_6_7_bytes(participation: float) -> None:
    """m P b each way while it is FedAvg, then m b P_top, and the private layers once."""
    run = train(LGFedAvg(layers=1, pretrain=2), planted("feature"), 5, participation=participation)
    size, m = run.server.layout.size, round(20 * participation)
    for number in (1, 2):
        assert run.bytes("up", number) == run.bytes("down", number) == m * size * 4
    _assert_bytes(run, last(run), m, first=3)


# ---- FedBABU


@pytest.mark.parametrize("network", ["planted-perceptron", "narrow-batch-norm"])
def test_fedbabu_6_8(network: str) -> None:
    """The head stays as it was drawn, everywhere; bodies are averaged uniformly."""
    run = train(FedBABU(), planted("feature", sizes=SIZES), 3, participation=0.5, network=network)
    for number in (1, 2, 3):
        before = run.states[number - 1].model
        ((_, replies),) = run.asked[number - 1]
        trained = [asked(run, int(c), number, Train(before[0], part=body(run))).model for c in replies.clients]
        assert torch.equal(run.states[number].model, mean(torch.stack(trained), before))
        assert torch.equal(last(run).take(run.states[number].model[0]), last(run).take(run.server.initial(0)))
    assert kept(run, "model") == [None] * 20


def test_fedbabu_6_8_learning_rate_drops() -> None:
    run = train(FedBABU(lr_drops=(2, 1)), planted("feature"), 3, training=MOMENTUM)
    for number, lr in ((1, 0.1), (2, 0.1 * 0.9 * 0.1), (3, 0.1 * 0.81 * 0.01)):
        before = run.states[number - 1].model
        trained = [asked(run, c, number, Train(before[0], part=body(run), lr=lr)).model for c in range(20)]
        torch.testing.assert_close(run.states[number].model, mean(torch.stack(trained), before), atol=1e-7, rtol=0)


def test_fedbabu_6_8_fine_tuning_obeys_the_drops() -> None:
    """In round 3 both drops have passed: fine-tuning has the learning rate with which the body was trained."""
    run = train(FedBABU(lr_drops=(1, 2)), planted("feature"), 3, training=MOMENTUM)
    scores = run.runtime.measure(run.method.evaluation(run.state, run.server, run.server.everyone)).report["score"]
    served, lr = run.state.model[0], 0.1 * 0.9**2 * 0.01
    for client in (0, 7, 19):
        adapted = asked(run, client, 3, Train(served, epochs=5, lr=lr, purpose="adaptation")).model
        assert scores[client].loss == pytest.approx(asked(run, client, 3, Score(adapted)).loss, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["narrow-batch-norm"])
def test_fedbabu_6_8_evaluation_adapts_the_whole_model_and_forgets_it(network: str) -> None:
    run = train(FedBABU(), planted("label"), 2, participation=0.5, network=network)
    everyone = run.server.everyone
    exchange = run.method.evaluation(run.state, run.server, everyone)
    assert isinstance(exchange.rule, AdaptThenEvaluate)
    assert (exchange.rule.layers, exchange.rule.epochs) == ("all", 5)
    scores = run.runtime.measure(exchange).report["score"]
    served = run.state.model[0]
    for client in everyone:
        adapted = asked(run, client, 2, Train(served, epochs=5, purpose="adaptation")).model
        assert not torch.equal(last(run).take(adapted), last(run).take(served))
        assert scores[client].loss == asked(run, client, 2, Score(adapted)).loss
    assert kept(run, "model") == [None] * 20
    plain = [asked(run, c, 2, Score(served)).loss for c in everyone]
    assert np.mean([s.loss for s in scores]) < np.mean(plain)
