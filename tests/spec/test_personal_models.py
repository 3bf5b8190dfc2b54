"""Methods whose clients have models of their own beside a common one (6.21 to 6.28 of docs/methods/)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import coterie
from coterie.clients.rules import Evaluate, Gradients, Losses, Score, Train
from coterie.clients.rules.adaptive_start import AdaptStart
from coterie.clients.rules.aligned import AlignedFeatures
from coterie.grouping.aggregate import mean
from coterie.methods import FedAvg, Method
from coterie.methods.apfl import APFL
from coterie.methods.exchange import Exchange
from coterie.methods.fedala import FedALA
from coterie.methods.fedamp import FedAMP, FedAMPState
from coterie.methods.fedbn import FedBN
from coterie.methods.fedpac import FedPAC, weigh_heads
from coterie.methods.fedrep import FedRep
from coterie.methods.fedrod import FedRoD
from coterie.methods.knn_per import KNNPer
from coterie.methods.method import serve
from coterie.methods.pfedme import PFedMe
from coterie.runs.folder.run_folder import RunFolder
from coterie.runtime.runtime import drive
from coterie.shipping.model.served import trained_model
from tests.federated import TRAINING, Trained, planted, train
from tests.survival import SIZES, asked, kept

both_engines = pytest.mark.parametrize("engine", ["sequential", "batched"])
WHOLE = TRAINING.updated(batch_size=200)
"""One minibatch is all of a client's samples."""


def own(run: Trained, name: str) -> Tensor:
    models = [m for m in kept(run, name) if m is not None]
    assert len(models) == run.server.n
    return torch.stack(models)


def gradient(run: Trained, client: int, number: int, model: Tensor) -> Tensor:
    found: Tensor = asked(run, client, number, Gradients(model, full=True))[0]
    return found


# ---- FedBN


@pytest.mark.medium
def test_fedbn_6_21() -> None:
    """Norms stay with each client, weights, biases and statistics; the mean of all else counts all alike."""
    run = train(FedBN(), planted("feature", sizes=SIZES), 3, participation=0.5, network="narrow-batch-norm")
    layout = run.server.layout
    shared = FedBN().shared(layout)
    assert layout.size - shared.size == 2 * 4 * 16
    models = {c: run.server.initial(0) for c in range(20)}
    for number in (1, 2, 3):
        before = run.states[number - 1].model
        ((_, replies),) = run.asked[number - 1]
        for client in replies.clients.tolist():
            start = shared.copy(models[client].clone(), before[0])
            models[client] = asked(run, client, number, Train(start)).model
        found = mean(torch.stack([models[c] for c in replies.clients.tolist()]), before)
        assert torch.equal(shared.take(run.states[number].model), shared.take(found))
    for client, model in models.items():
        assert torch.equal(run.served()[client], shared.copy(model.clone(), run.state.model[0]))
    assert FedBN().warnings(run.server, 3) == []


# ---- pFedMe


@pytest.mark.parametrize(("lam", "personal_lr"), [(4.0, 0.05), (15.0, 0.2)])
def test_pfedme_6_22(lam: float, personal_lr: float) -> None:
    """The steps of Algorithm 1; a strong pull is taken implicitly, and w goes no further than theta."""
    run = train(PFedMe(lam, 2, personal_lr), planted("feature"), 2, training=WHOLE)
    for client in (0, 7):
        for number in (1, 2):
            received = run.states[number - 1].model[0]
            theta = w = received
            for _ in range(2):
                g = gradient(run, client, number, theta)
                if personal_lr * lam <= 1:
                    theta = theta - personal_lr * (g + lam * (theta - w))
                else:
                    theta = (theta - personal_lr * g + personal_lr * lam * w) / (1 + personal_lr * lam)
            w = w - min(0.1 * lam, 1.0) * (w - theta)
            ((_, replies),) = run.asked[number - 1]
            torch.testing.assert_close(replies.models[client], w, atol=1e-6, rtol=0)
    torch.testing.assert_close(own(run, "personal")[7], theta, atol=1e-6, rtol=0)


def test_pfedme_6_22_a_strong_pull_leaves_the_global_model() -> None:
    away = []
    for lam in (1.0, 10.0, 100.0):
        run = train(PFedMe(lam=lam), planted("feature"), 2)
        away.append(float((own(run, "personal") - run.states[1].model).norm(dim=1).mean()))
    assert away[0] > 1.5 * away[1] > 2 * away[2]


# ---- APFL


@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl_6_23(adaptive: bool) -> None:
    """v <- v - lr alpha grad F(v'), alpha <- alpha - lr <v - W, grad F(v')> once a round; w as in FedAvg."""
    run = train(APFL(0.3, adaptive), planted("feature"), 3, training=WHOLE)
    for client in (0, 7):
        v, alpha = run.server.initial(0), 0.3
        for number in (1, 2, 3):
            w = run.states[number - 1].model[0]
            mixed = gradient(run, client, number, alpha * v + (1 - alpha) * w)
            step = 0.1 * float((v - w) @ mixed)
            v = v - 0.1 * alpha * mixed
            alpha = min(max(alpha - step, 0.0), 1.0) if adaptive else alpha
        torch.testing.assert_close(own(run, "personal")[client], v, atol=1e-6, rtol=0)
        share = kept(run, "alpha")[client]
        assert share is not None
        assert float(share) == pytest.approx(alpha, abs=1e-6)
        assert (alpha != 0.3) == adaptive
        ((exchange, _),) = [(run.method.evaluation(run.state, run.server, np.array([client])), None)]
        score = run.runtime.measure(exchange).report["score"][0]
        served = alpha * v + (1 - alpha) * run.state.model[0]
        assert score.loss == pytest.approx(asked(run, client, 3, Score(served)).loss, abs=1e-5)


def test_apfl_6_23_clients_who_never_came_and_newcomers_are_served_the_model() -> None:
    run = train(APFL(), planted("feature"), 2, participation=0.3)
    away = [client for client, model in enumerate(kept(run, "personal")) if model is None]
    assert away
    scores = run.runtime.measure(run.method.evaluation(run.state, run.server, np.array(away))).report["score"]
    for client, score in zip(away, scores, strict=True):
        assert score.loss == asked(run, client, 2, Score(run.state.model[0])).loss
    joined = drive(run.method.newcomer(run.state, np.array([3]), run.server), run.runtime.answer)
    assert torch.equal(joined.models[joined.served], run.state.model)


# ---- FedAMP


def test_fedamp_6_24_of_one_client_has_its_own_model_for_a_message() -> None:
    run = train(FedAMP(), planted("feature", clients=1), 3)
    for number in (1, 2, 3):
        ((exchange, _),) = run.asked[number - 1]
        assert torch.equal(exchange.send["model"].matrix, run.states[number - 1].models)


@pytest.mark.medium
def test_fedamp_6_24() -> None:
    """xi_ij = alpha exp(-d^2 / sigma) / sigma among those who have uploaded; training is pulled to the message."""
    run = train(FedAMP(lam=0.7, sigma=3.0, alpha=0.1), planted("feature"), 3, participation=0.5)
    models, known = run.server.initial(0).repeat(20, 1), np.zeros(20, np.bool_)
    for number in (1, 2, 3):
        ((exchange, replies),) = run.asked[number - 1]
        for row, client in enumerate(exchange.clients.tolist()):
            weights = torch.zeros(20, dtype=torch.float64)
            for other in np.flatnonzero(known) if known[client] else ():
                apart = float((models[client] - models[other]).double().square().sum())
                weights[other] = 0.1 * np.exp(-apart / 3.0) / 3.0
            weights[client] = 0
            weights[client] = 1 - weights.sum()
            message = (weights @ models.double()).float()
            torch.testing.assert_close(exchange.send["model"].matrix[row], message, atol=1e-6, rtol=0)
            received = exchange.send["model"].matrix[row]
            start = models[client] if known[client] else received
            trained = asked(run, client, number, Train(start, pull=0.7, anchor=received)).model
            assert torch.equal(replies.models[row], trained)
        models[torch.from_numpy(replies.clients)] = replies.models
        known[replies.clients] = True
    assert torch.equal(run.state.models, models)
    joined = drive(run.method.newcomer(run.state, np.array([3]), run.server), run.runtime.answer)
    assert torch.equal(joined.models, mean(models[torch.from_numpy(known)], models[:1]))


def test_fedamp_6_24_attends_to_those_who_are_near() -> None:
    """By its defaults weights are a mixture, and those of one planted group weigh more with one another."""
    run = train(FedAMP(), planted("feature", 2), 5)
    weights = run.method.weigh_models(run.state, run.server)  # type: ignore[attr-defined]  # FedAMP's
    assert np.allclose(weights.sum(1), 1)
    assert weights.min() >= 0
    assert weights.diagonal().min() >= 1 / 20
    together = np.arange(20)[:, None] % 2 == np.arange(20) % 2
    inside, outside = weights[together & ~np.eye(20, dtype=bool)], weights[~together]
    assert inside.min() > outside.max()


def test_fedamp_6_24_equal_models_are_no_division_by_nothing() -> None:
    run = train(FedAMP(), planted("feature", clients=4), 0)
    state = FedAMPState(run.state.models, np.ones(4, np.bool_))
    assert np.allclose(FedAMP().weigh_models(state, run.server), 0.25)


# ---- FedALA


def test_fedala_6_25_weights_go_down_the_gradient() -> None:
    """a <- a - eta grad F(own + (W - own) a) (W - own), cut to 0 ... 1, in the last layer; W below it."""
    run = train(FedALA(share=1.0), planted("feature"), 1, training=WHOLE)
    part, received = run.server.layout.last_layers(1), run.state.model[0]
    before = own(run, "model")[3]
    weights = torch.full_like(received, 0.5)
    found = asked(run, 3, 2, AdaptStart(before, received, weights, part, 1.0, 0.8, passes=2))
    start, a = received.clone(), part.take(weights)
    mine, theirs = part.take(before), part.take(received)
    for _ in range(3):
        part.put(start, mine + (theirs - mine) * a)
        last = a
        a = (a - 0.8 * part.take(gradient(run, 3, 2, start)) * (theirs - mine)).clamp(0, 1)
    torch.testing.assert_close(part.take(found.extras["weights"]), last, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.model, start, atol=1e-6, rtol=0)
    assert not torch.equal(last, part.take(weights))
    losses = asked(run, 3, 2, Losses(torch.stack([received, found.model])))
    assert losses[1] < losses[0]


@pytest.mark.medium
def test_fedala_6_25() -> None:
    """From its second round on a client trains from the adapted start; the first time it passes eleven times."""
    method = FedALA(share=0.5, eta=2.0)
    run = train(method, planted("feature", sizes=SIZES), 4, participation=0.5)
    part = run.server.layout.last_layers(1)
    models: dict[int, Tensor] = {}
    weights: dict[int, Tensor] = {}
    for number in (1, 2, 3, 4):
        received = run.states[number - 1].model[0]
        ((_, replies),) = run.asked[number - 1]
        for row, client in enumerate(replies.clients.tolist()):
            start = received
            if client in models:
                passes = 1 if client in weights else 11
                a = weights.get(client, torch.ones_like(received))
                request = AdaptStart(models[client], received, a, part, 0.5, 2.0, passes)
                adapted = asked(run, client, number, request)
                start, weights[client] = adapted.model, adapted.extras["weights"]
            models[client] = asked(run, client, number, Train(start)).model
            assert torch.equal(replies.models[row], models[client])
        assert torch.equal(run.states[number].model, mean(replies.models, received[None], replies.samples))
    assert len(weights) > 3
    for client, model in models.items():
        assert torch.equal(run.served()[client], model)


# ---- FedRoD


def uneven(run: Trained, client: int) -> tuple[Tensor, Tensor, Tensor]:
    """A client's inputs, labels, and the logarithms of its counts of each class."""
    federation = run.federation
    first, last = federation.bounds[client, :2]
    inputs, labels = federation.inputs[first:last].flatten(1), federation.labels[first:last]
    return inputs, labels, torch.bincount(labels, minlength=10).float().log()


def test_fedrod_6_26() -> None:
    """The balanced softmax moves the model, and the loss of both heads the client's own alone."""
    run = train(FedRoD(), planted("label", 2), 2, training=WHOLE)
    layout = run.server.layout
    for client in (0, 7):
        inputs, labels, log_counts = uneven(run, client)
        head = [e.view(run.server.initial(0)).clone() for e in layout.tensors[2:]]
        for number in (1, 2):
            received = run.states[number - 1].model[0]
            tensors = [e.view(received).clone().requires_grad_() for e in layout.tensors]
            own_head = [h.clone().requires_grad_() for h in head]
            features = (inputs @ tensors[0].T + tensors[1]).relu()
            logits = features @ tensors[2].T + tensors[3]
            balanced = torch.nn.functional.cross_entropy(logits + log_counts, labels)
            personal = features.detach() @ own_head[0].T + own_head[1]
            both = torch.nn.functional.cross_entropy(logits.detach() + personal, labels)
            moved = torch.autograd.grad(balanced, tensors)
            head = [h - 0.1 * g for h, g in zip(head, torch.autograd.grad(both, own_head), strict=True)]
            ((_, replies),) = run.asked[number - 1]
            for entry, before, g in zip(layout.tensors, tensors, moved, strict=True):
                torch.testing.assert_close(entry.view(replies.models[client]), before - 0.1 * g, atol=1e-6, rtol=0)
        flat = torch.cat([h.detach().flatten() for h in head])
        torch.testing.assert_close(kept(run, "head")[client], flat, atol=1e-6, rtol=0)
        served = layout.last_layers(1).put(
            run.state.model[0].clone(), layout.last_layers(1).take(run.state.model[0]) + flat
        )
        exchange = run.method.evaluation(run.state, run.server, np.array([client]))
        (score,) = run.runtime.measure(exchange).report["score"]
        assert score.loss == pytest.approx(asked(run, client, 2, Score(served)).loss, abs=1e-5)


def test_fedrod_6_26_of_even_classes_has_the_model_of_fedavg() -> None:
    """A softmax does not see what is added to all logits."""
    federation = planted("iid", clients=4)
    for client in range(4):
        first, last = federation.bounds[client, :2]
        federation.labels[first:last] = torch.arange(100) % 10
    fedrod, fedavg = (train(m, federation, 3) for m in (FedRoD(), FedAvg()))
    torch.testing.assert_close(fedrod.state.model, fedavg.state.model, atol=1e-5, rtol=0)


def test_fedrod_6_26_clients_who_never_came_and_newcomers_are_served_the_model() -> None:
    run = train(FedRoD(), planted("label"), 2, participation=0.3)
    away = [client for client, head in enumerate(kept(run, "head")) if head is None]
    assert away
    scores = run.runtime.measure(run.method.evaluation(run.state, run.server, np.array(away))).report["score"]
    for client, score in zip(away, scores, strict=True):
        assert score.loss == asked(run, client, 2, Score(run.state.model[0])).loss
    joined = drive(run.method.newcomer(run.state, np.array([3]), run.server), run.runtime.answer)
    assert torch.equal(joined.models[joined.served], run.state.model)


# ---- FedPAC


def test_fedpac_6_27_of_one_client_without_alignment_is_fedrep() -> None:
    """Nobody else's head, and a pass for the own one before the body: bit for bit."""
    federation, training = planted("feature", clients=1, sizes=SIZES[:1]), TRAINING.updated(momentum=0.5)
    fedpac = train(FedPAC(lam=0.0), federation, 4, training=training)
    fedrep = train(FedRep(head_epochs=1), federation, 4, training=training)
    body = fedpac.server.layout.everything - fedpac.server.layout.last_layers(1)
    for ours, theirs in zip(fedpac.states, fedrep.states, strict=True):
        assert torch.equal(body.take(ours.model), body.take(theirs.model))
    assert fedpac.accuracy().tolist() == fedrep.accuracy().tolist()
    assert torch.equal(fedpac.state.heads, fedpac.server.layout.last_layers(1).take(own(fedrep, "model")))


@pytest.mark.medium
def test_fedpac_6_27() -> None:
    """Heads, bodies, prototypes, statistics and mixtures, by hand, with clients that are away."""
    run = train(FedPAC(lam=0.5), planted("label", 2, sizes=SIZES), 3, participation=0.5)
    layout = run.server.layout
    head = layout.last_layers(1)
    heads = head.take(run.server.initial(0)).repeat(20, 1)

    def features(model: Tensor, inputs: Tensor) -> Tensor:
        weight, bias = (e.view(model) for e in layout.tensors[:2])
        return (inputs @ weight.T + bias).relu()

    for number in (1, 2, 3):
        before, after = run.states[number - 1], run.states[number]
        ((exchange, replies),) = run.asked[number - 1]
        assert ("prototypes" in exchange.send) == (number > 1)
        h, variances, sums, counts = [], [], torch.zeros(10, 32), torch.zeros(10)
        for row, client in enumerate(replies.clients.tolist()):
            inputs, labels, _ = uneven(run, client)
            start = head.put(before.model[0].clone(), heads[client])
            z = features(start, inputs)
            shares = torch.stack([z[labels == c].sum(0) for c in range(10)]) / len(z)
            h.append(shares.flatten().double().numpy())
            variances.append(float((z.square().sum() / len(z) - shares.square().sum()) / len(z)))
            fitted = asked(run, client, number, Train(start, part=head, epochs=1, purpose="head batches")).model
            aligned = AlignedFeatures(0.5) if number > 1 else None
            extras = {"prototypes": before.prototypes} if number > 1 else {}
            request = Train(fitted, part=layout.everything - head, objective=aligned, extras=extras)
            trained = asked(run, client, number, request).model
            torch.testing.assert_close(replies.models[row], trained, atol=1e-6, rtol=0)
            z = features(trained, inputs)
            sums += torch.stack([z[labels == c].sum(0) for c in range(10)])
            counts += torch.bincount(labels, minlength=10)
        torch.testing.assert_close(after.prototypes[:, :-1], sums / counts[:, None], atol=1e-5, rtol=1e-5)
        assert torch.equal(after.model, mean(replies.models, before.model, replies.samples))
        weights = weigh_heads(np.array(h), np.array(variances))
        mixed = torch.from_numpy(weights) @ head.take(replies.models).double()
        heads[torch.from_numpy(replies.clients)] = mixed.float()
        torch.testing.assert_close(after.heads, heads, atol=1e-4, rtol=0)
        heads = after.heads.clone()
        assert np.unique(weights.round(6), axis=0).shape[0] == len(replies)
    scores = run.runtime.measure(run.method.evaluation(run.state, run.server, np.array([0, 1]))).report["score"]
    for client in (0, 1):
        served = head.put(run.state.model[0].clone(), heads[client])
        assert scores[client].loss == asked(run, client, 3, Score(served)).loss
    joined = drive(run.method.newcomer(run.state, np.array([3]), run.server), run.runtime.answer)
    assert torch.equal(joined.models[joined.served], run.state.model)


def test_fedpac_6_27_alignment_goes_down_its_gradient() -> None:
    """A class without a prototype is drawn nowhere."""
    run = train(FedPAC(), planted("feature", clients=2), 2, training=WHOLE)
    model, layout = run.state.model[0], run.server.layout
    inputs, labels, _ = uneven(run, 0)
    prototypes = run.state.prototypes.clone()
    prototypes[3] = 0.0
    tensors = [e.view(model).clone().requires_grad_() for e in layout.tensors]
    z = (inputs @ tensors[0].T + tensors[1]).relu()
    away = torch.where((labels == 3)[:, None], 0.0, z - prototypes[labels, :-1])
    loss = torch.nn.functional.cross_entropy(z @ tensors[2].T + tensors[3], labels) + 2 * away.square().mean()
    extras = {"prototypes": prototypes}
    trained = asked(run, 0, 3, Train(model, objective=AlignedFeatures(2.0), extras=extras)).model
    for entry, before, g in zip(layout.tensors, tensors, torch.autograd.grad(loss, tensors), strict=True):
        torch.testing.assert_close(entry.view(trained), before - 0.1 * g, atol=1e-6, rtol=0)


def test_fedpac_6_27_heads_of_the_same_labels_work_together() -> None:
    """Where clients of two groups have other classes, a head takes more of its own group's than of the other's."""
    run = train(FedPAC(), planted("label", 2), 4)
    ((_, replies),) = run.asked[-1]
    told = replies.uploads["statistics"].double().numpy()
    weights = weigh_heads(told[:, :-1], told[:, -1])
    together = np.arange(20)[:, None] % 2 == np.arange(20) % 2
    assert np.allclose(weights.sum(1), 1)
    assert weights[together].sum() > 0.9 * weights.sum()


# ---- kNN-Per


def say_of_neighbours(features: Tensor, stored: Tensor, labels: Tensor, alone: bool) -> Tensor:
    """Return the share of each class among the five nearest, one sample after another."""
    found = torch.zeros(len(features), 10, dtype=torch.float64)
    for row, given in enumerate(features.double()):
        apart = (stored.double() - given).square().sum(1)
        if alone:
            apart[row] = torch.inf
        near = apart.argsort()[:5]
        weights = torch.exp(-apart[near] / stored.shape[1])
        found[row].index_add_(0, labels[near], weights / weights.sum())
    return found.clamp(min=1e-6)


@both_engines
def test_knn_per_6_28(engine: str) -> None:
    """(1 - lam) W + lam h, by the lam of least loss where no sample is its own neighbour; newcomers too."""
    run = train(KNNPer(neighbours=5), planted("incongruent", 2, clients=4), 2, participation=0.5, engine=engine)
    federation, model = run.federation, run.state.model[0]
    body_weight, body_bias, weight, bias = (entry.view(model) for entry in run.server.layout.tensors)
    joined = drive(run.method.newcomer(run.state, np.arange(4), run.server), run.runtime.answer)
    as_newcomers = Exchange(np.arange(4), Evaluate(neighbours=joined.neighbours), serve(joined, joined.served))
    shares = []
    for exchange in (run.method.evaluation(run.state, run.server, np.arange(4)), as_newcomers):
        for client, score in enumerate(run.runtime.measure(exchange).report["score"]):
            a, b, c, d = federation.bounds[client].tolist()
            inputs, labels = federation.inputs[a:d].flatten(1), federation.labels[a:d]
            features = (inputs @ body_weight.T + body_bias).relu()
            predicted = (features @ weight.T + bias).softmax(1).double()
            stored, known, tested = features[: b - a], labels[: b - a], slice(c - a, d - a)

            def losses(near: Tensor, by_model: Tensor, of: Tensor) -> list[float]:
                rows, of_class = np.arange(len(of)), of.numpy()
                mixtures = [((1 - lam) * by_model + lam * near)[rows, of_class] for lam in np.linspace(0, 1, 11)]
                return [float(-p.log().mean()) for p in mixtures]

            on_own = losses(say_of_neighbours(stored, stored, known, True), predicted[: b - a], known)
            near = say_of_neighbours(features[tested], stored, known, False)
            shares.append(best := int(np.argmin(on_own)))
            assert score.loss == pytest.approx(losses(near, predicted[tested], labels[tested])[best], abs=1e-4)
    assert max(shares) > 0


def test_knn_per_6_28_adapts_and_exports_the_model_alone(tmp_path: Path) -> None:
    """What is scored after an adaptation has neighbours by the features of the adapted copy; a file has none."""
    result = coterie.run(
        coterie.Experiment(
            data={"name": "digits", "split": "permuted-labels(2)", "clients": 8, "samples_per_client": 40},
            method={"name": "knn-per", "neighbours": 5},
            evaluation={"adapt": {"epochs": 5}},
            run={"rounds": 3, "holdout_clients": 0.25, "folder": str(tmp_path), "workers": 1},
        )
    )
    assert result.summary["adapted_macro_accuracy"] > result.summary["macro_accuracy"] - 0.1
    folder = RunFolder(result.folder)
    (alone, _), (served, notes) = trained_model(folder, group=0), trained_model(folder, client="client 0")
    assert torch.equal(alone.vector, served.vector)
    assert any("5 nearest samples" in note for note in notes)


# ---- all of them

EACH: list[Method[Any]] = [PFedMe(), APFL(), FedAMP(), FedALA(), FedRoD(), KNNPer()]


@pytest.mark.slow
@pytest.mark.parametrize("method", EACH, ids=lambda method: type(method).__name__)
def test_personal_models_6_22_to_6_28_suit_their_clients(method: Method[Any]) -> None:
    """Where labels mean other things to other groups, personal models beat the common one by far."""
    federation, training = planted("incongruent", 2), TRAINING.updated(epochs=3)
    personal, common = (train(m, federation, 8, training=training).accuracy().mean() for m in (method, FedAvg()))
    assert personal > common + 0.15
