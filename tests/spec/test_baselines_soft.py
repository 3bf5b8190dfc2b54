"""FLIS and ClusterFL, whose clients share softly; their reductions (6.13 and 6.14 of docs/methods/)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from torch import Tensor
from torch.nn.functional import kl_div, one_hot

from coterie.clients.data.federation import build
from coterie.clients.rules import Gradients, Losses, Train, Training
from coterie.errors import BadInput
from coterie.grouping.labels import relabel
from coterie.methods import FedAvg, LocalOnly, Needs
from coterie.methods.clusterfl import ClusterFL
from coterie.methods.exchange import Outputs
from coterie.methods.flis import FLIS
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, Trained, planted, same, train
from tests.survival import SIZES, asked, kept, local

LONGER = TRAINING.updated(momentum=0.5, lr_decay=0.9, epochs=2)
both_engines = pytest.mark.parametrize("engine", ["sequential", "batched"])
both_modes = pytest.mark.parametrize("mode", ["hc", "dc"])
some_or_all = pytest.mark.parametrize("participation", [1.0, 0.5])


# ---- FLIS


@pytest.mark.medium
@pytest.mark.each_once
@both_engines
@both_modes
def test_flis_6_13_of_one_neighbourhood_is_fedavg(engine: str, mode: Any) -> None:
    federation = planted("feature", sizes=SIZES)
    settings: dict[str, Any] = {"training": LONGER, "engine": engine}
    flis = train(FLIS(mode=mode, threshold=0.0, evaluated="mixture"), federation, 4, **settings)
    fedavg = train(FedAvg(), federation, 4, **settings)
    for ours, theirs in zip(flis.asked, fedavg.asked, strict=True):
        assert torch.equal(ours[-1][1].models, theirs[-1][1].models)
    assert flis.accuracy().tolist() == fedavg.accuracy().tolist()


def predicted(run: Trained, models: Tensor) -> list[Tensor]:
    """The one-hot predictions `[samples, 10]` of each model."""
    assert run.federation.public is not None
    outputs = run.runtime.answer(Outputs(models, run.federation.public))
    assert isinstance(outputs, Tensor)
    return [one_hot(one.argmax(1), 10).double() for one in outputs]


def weighted(models: Tensor, clients: list[int]) -> Tensor:
    """The mean of the models of `clients`, by n_j."""
    weights = torch.tensor([SIZES[j] for j in clients], dtype=torch.float64)
    return ((models.double() * weights[:, None]).sum(0) / weights.sum()).float()


@pytest.mark.medium
@pytest.mark.each_once
@some_or_all
@pytest.mark.parametrize("network", ["planted-perceptron", "narrow-batch-norm"])
def test_flis_6_13_dynamic(participation: float, network: str) -> None:
    """Clusters of the round's cohort; the next cohort trains what suits its data best, and is scored with that."""
    federation = planted("feature", sizes=SIZES)
    run = train(FLIS(mode="dc"), federation, 5, participation=participation, network=network)
    models, last = run.server.initial(0)[None], run.server.initial(0).repeat(20, 1)
    counts = []
    for number in range(1, 6):
        ((_, replies),) = run.asked[number - 1]
        here = replies.clients.tolist()
        for client, model in zip(here, replies.models, strict=True):
            picked = int(asked(run, client, number, Losses(models)).argmin())
            assert torch.equal(model, asked(run, client, number, Train(models[picked])).model)
            last[client] = model
        seen = predicted(run, replies.models)
        near = [[j for j in range(len(here)) if (a * seen[j]).sum() / len(a) >= 0.4] for a in seen]
        distinct = [members for at, members in enumerate(near) if members not in near[:at]]
        models = run.states[number].models
        assert len(models) == len(distinct)
        for model, members in zip(models, distinct, strict=True):
            expected = weighted(replies.models[members], [here[j] for j in members])
            torch.testing.assert_close(model, expected, atol=1e-6, rtol=0)
        counts.append(len(models))
        assert np.flatnonzero(run.states[number].groups >= 0).tolist() == here
    assert max(counts) > 1
    assert torch.equal(run.served(), last)


@pytest.mark.medium
@pytest.mark.each_once
@some_or_all
@pytest.mark.parametrize("join", ["threshold", "hierarchy"])
@pytest.mark.parametrize("network", ["planted-perceptron", "narrow-batch-norm"])
def test_flis_6_13_once(participation: float, join: Any, network: str) -> None:
    """Everybody is compared once, after a training that is dropped; each starts from its neighbours' last."""
    federation, threshold = planted("feature", sizes=SIZES), 0.5
    method = FLIS(mode="hc", join=join, threshold=threshold)
    run = train(method, federation, 4, participation=participation, network=network)
    first = run.asked[0][0][1]
    assert first.clients.tolist() == list(range(20))
    seen, initial = predicted(run, first.models), run.server.initial(0)
    alike = np.array([[float((a * b).sum()) / len(a) for b in seen] for a in seen])
    near = alike >= threshold
    if join == "hierarchy":
        tree = linkage(squareform(1 - alike, checks=False), "complete")
        labels = fcluster(tree, 1 - threshold + 1e-12, "distance")
        near = labels[:, None] == labels
    assert 20 < near.sum() < 400
    last = initial.repeat(20, 1)
    for number in range(1, 5):
        replies, starts = run.asked[number - 1][-1][1], last.clone()
        for client, model in zip(replies.clients.tolist(), replies.models, strict=True):
            members = np.flatnonzero(near[client]).tolist()
            start = weighted(starts[members], members)
            expected = asked(run, client, number, Train(start)).model
            torch.testing.assert_close(model, expected, atol=1e-4, rtol=1e-4)
            last[client] = model
    assert torch.equal(run.served(), last)
    assert run.groups().tolist() == relabel(np.unique(near, axis=0, return_inverse=True)[1].reshape(-1)).tolist()
    affinity = run.method.affinity(run.state, run.server, run.server.everyone)
    assert affinity is not None
    np.testing.assert_allclose(affinity.matrix, 1 - alike, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "kind"), [("hc", "incongruent"), ("dc", "label")])
def test_flis_6_13_finds_planted_groups(mode: Any, kind: str) -> None:
    """Where groups differ in what they would answer: all seeds, and well ahead of one model for all."""
    training = TRAINING.updated(epochs=2)  # after a single epoch, some of a group do not agree yet
    for seed in range(3):
        federation = planted(kind, seed=seed)
        run = train(FLIS(mode=mode, evaluated="mixture"), federation, 3, seed=seed, training=training)
        assert run.ari() == 1.0
        if kind == "incongruent":
            one = train(FedAvg(), federation, 3, seed=seed, training=training)
            assert run.accuracy().mean() > one.accuracy().mean() + 0.3
            newcomers = drive(run.method.newcomer(run.state, np.array([3, 6]), run.server), run.runtime.answer)
            assert newcomers.groups.tolist() == [3, 2]


@pytest.mark.slow
@both_modes
def test_flis_6_13_of_two_classes_a_client_serves_what_each_trained(mode: Any) -> None:
    """40 clients of digits with two classes each, ten in a round: 95 %, where mixtures reach 80 to 95 %."""
    federation = build("digits", "classes(2)", 40, 0, validation=0.0, test=0.2, public=300)
    training = Training(epochs=5, batch_size=10, lr=0.05, momentum=0.5)
    settings: dict[str, Any] = {"training": training, "participation": 0.25, "network": "mlp", "engine": "batched"}
    own, mixture = (
        train(FLIS(mode=mode, evaluated=served), federation, 20, **settings).accuracy().mean()
        for served in ("local", "mixture")
    )
    assert own > 0.95
    assert own > mixture + 0.03


@pytest.mark.medium
@pytest.mark.parametrize(
    ("split", "sizes", "participation"),
    [
        ("permuted-labels(2)", (12, 12), 0.3),
        ("permuted-labels(4)", (6, 6, 6, 6), 1.0),
        ("permuted-labels(4)", (12, 6, 3, 1), 1.0),
        ("rotated(2)", (12, 12), 1.0),
    ],
)
def test_flis_finds_planted_groups_of_digits(split: str, sizes: tuple[int, ...], participation: float) -> None:
    """By the defaults, of those who took part in the last round; E = 2, lr 0.1, 20 rounds."""
    many = len(sizes) * max(sizes)
    whole = build("digits", split, many, 0, validation=0.0, test=0.2, public=200, min_samples=5)
    clients = np.arange(many)
    federation = whole.reordered(clients[clients // len(sizes) < np.array(sizes)[clients % len(sizes)]])
    training = Training(epochs=2, batch_size=20, lr=0.1, momentum=0.5)
    how: dict[str, Any] = {"training": training, "network": "mlp", "participation": participation}
    run = train(FLIS(), federation, 20, engine="batched", **how)
    there, found = federation.true_groups, run.groups()
    assert there is not None
    assert adjusted_rand_score(there[found >= 0], found[found >= 0]) == 1.0


def test_flis_6_13_newcomers_average_their_neighbourhood_and_their_own_model() -> None:
    run = train(FLIS(mode="hc", join="threshold", threshold=0.45), planted("incongruent", sizes=SIZES), 2)
    joined = drive(run.method.newcomer(run.state, np.array([6]), run.server), run.runtime.answer)
    own = asked(run, 6, 2, Train(run.server.initial(0))).model
    near = [6 % 4 + 4 * k for k in range(5)]
    rows = torch.cat([run.state.models[near], own[None]])
    torch.testing.assert_close(joined.models[joined.served[0]], weighted(rows, [*near, 6]), atol=1e-6, rtol=0)


def test_flis_6_13_newcomers_train_the_cluster_model_that_suits_them() -> None:
    run = train(FLIS(mode="dc"), planted("incongruent", sizes=SIZES), 3)
    joined = drive(run.method.newcomer(run.state, np.array([6]), run.server), run.runtime.answer)
    assert joined.groups.tolist() == [2]
    expected = asked(run, 6, 3, Train(run.state.models[2])).model
    assert torch.equal(joined.models[joined.served[0]], expected)


# ---- ClusterFL


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "participation"), [("sequential", 1.0), ("batched", 0.5)])
def test_clusterfl_6_14_without_a_relation_is_local_only(engine: str, participation: float) -> None:
    """Before F, and without alpha, every participant trains alone."""
    federation = planted("feature", sizes=SIZES)
    settings: dict[str, Any] = {"engine": engine, "participation": participation}
    method = ClusterFL(alpha=0.0, local_epochs=3, every=10)
    ours = train(method, federation, 4, training=LONGER.updated(epochs=1), **settings)
    theirs = train(LocalOnly(), federation, 4, training=LONGER.updated(epochs=3), engine=engine)
    if participation == 1.0:
        assert torch.equal(ours.served(), theirs.served())
        assert ours.accuracy().tolist() == theirs.accuracy().tolist()
    first = theirs.server.initial(0)
    for client in ours.asked[0][0][1].clients.tolist():
        expected = asked(theirs, client, 1, Train(first)).model
        assert torch.equal(ours.states[1].models[client], expected)
    assert (ours.groups() == -1).all()


@pytest.mark.medium
def test_clusterfl_6_14_one_step_of_the_client() -> None:
    """w - lr (grad F_i(w) + 2 (alpha + (rho/2) sum_j F_ij^2) w - sum_j F_ij (U_j + rho Omega_j)): with a minus."""
    settings: dict[str, Any] = {"alpha": 0.03, "beta": 0.02, "rho": 0.1, "stop": 0.0}
    method = ClusterFL(local_epochs=1, every=2, **settings)
    run = train(method, planted("feature"), 6, training=TRAINING.updated(batch_size=100))
    for number in (4, 6):
        before, after = run.states[number - 1], run.states[number]
        assert before.omega.abs().max() > 0.1
        f, omega, dual = before.relation.double(), before.omega.double(), before.dual.double()
        for client in (0, 5, 11):
            w = before.models[client]
            pulled = 2 * (0.03 + 0.05 * float((f[client] ** 2).sum())) * w.double()
            pulled -= (f[client][:, None] * (dual + 0.1 * omega)).sum(0)
            gradient = asked(run, client, number, Gradients(w, full=True))[0]
            expected = w - 0.1 * (gradient + pulled.float())
            torch.testing.assert_close(after.models[client], expected, atol=1e-6, rtol=0)


@pytest.mark.medium
def test_clusterfl_6_14_coupled_clients_descend_the_whole_lagrangian() -> None:
    """Their step follows the gradient of F_i + alpha W^2 + <U, O - F^T W> + rho/2 (O - F^T W)^2, O being Omega."""
    method = ClusterFL(alpha=0.03, beta=0.02, rho=0.1, stop=0.0, local_epochs=1, every=2, coupled=True)
    run = train(method, planted("feature"), 4, training=TRAINING.updated(batch_size=100))
    before, after = run.states[3], run.states[4]
    f, omega, dual = before.relation.double(), before.omega.double(), before.dual.double()
    models = before.models.double().requires_grad_()
    gap = omega - f.T @ models
    (0.03 * models.square().sum() + (dual * gap).sum() + 0.05 * gap.square().sum()).backward()
    assert models.grad is not None
    others = 0.1 * (f @ (f.T @ models) - (f**2).sum(1, keepdim=True) * models)
    assert others.abs().max() > 0.01
    for client in (0, 5, 11):
        w = before.models[client]
        gradient = asked(run, client, 4, Gradients(w, full=True))[0]
        expected = w - 0.1 * (gradient + models.grad[client].float())
        torch.testing.assert_close(after.models[client], expected, atol=1e-6, rtol=0)


def test_clusterfl_6_14_updates_of_the_server() -> None:
    """Omega, then U, with the F that clients trained under; F itself in every third round only."""
    rho, beta = 2e-3, 5e-4
    run = train(ClusterFL(local_epochs=1), planted("feature"), 7, participation=0.5)
    for number in range(1, 8):
        before, after = run.states[number - 1], run.states[number]
        mixes = before.relation.T.double() @ after.models.double()
        omega = (rho * mixes - before.dual.double()) / (rho - 2 * beta)
        torch.testing.assert_close(after.omega.double(), omega, atol=1e-5, rtol=0)
        dual = before.dual.double() + rho * (omega - mixes)
        torch.testing.assert_close(after.dual.double(), dual, atol=1e-7, rtol=0)
        # What the two steps imply: Omega minimises -beta ||Omega||^2 + <U, Omega> at the new U.
        torch.testing.assert_close(after.dual, 2 * beta * after.omega, atol=1e-7, rtol=0)
        assert torch.equal(before.relation, after.relation) == (number % 3 != 0)
        assert (after.omega.abs().max() > 0) == (number > 3)


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_clusterfl_6_14_relation(participation: float) -> None:
    """KL at temperature 6 on the public samples, centred columns, PCA to n - 1, Y Y^T cut at 0, columns to 1."""
    run = train(ClusterFL(local_epochs=2), planted("feature"), 3, participation=participation)
    there = np.flatnonzero(run.state.known)
    assert (len(there) == 20) == (participation == 1.0)
    assert run.federation.public is not None
    logits, inputs = [], run.federation.public.flatten(1)
    for model in run.state.models[torch.from_numpy(there)]:
        w1, b1, w2, b2 = (entry.view(model) for entry in run.server.layout.entries)
        logits.append((inputs @ w1.T + b1).relu() @ w2.T + b2)
    logs = [(z.double() / 6).log_softmax(1) for z in logits]
    kl = np.array([[float(kl_div(q, p, reduction="batchmean", log_target=True)) for q in logs] for p in logs])
    y = PCA(len(there) - 1).fit_transform(kl - kl.mean(0))
    products = np.maximum(y @ y.T, 0)
    found = run.state.relation.numpy()
    np.testing.assert_allclose(found[np.ix_(there, there)], products / products.sum(0), atol=1e-3)
    np.testing.assert_allclose(found.sum(0)[there], 1, atol=1e-6)
    away = ~run.state.known
    assert not found[away].any()
    assert not found[:, away].any()
    labels = np.full(20, -1)
    labels[there] = found.argmax(0)[there]
    assert run.groups().tolist() == relabel(labels).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["incongruent", "label"])
def test_clusterfl_6_14_finds_planted_groups(kind: str) -> None:
    """By the columns of F."""
    found = []
    for seed in range(2):
        run = train(ClusterFL(local_epochs=5), planted(kind, seed=seed, public=500), 3, seed=seed)
        found.append(run.ari())
        planted_groups = run.federation.true_groups
        assert planted_groups is not None
        inside = planted_groups[:, None] == planted_groups
        assert (run.state.relation.numpy() * inside).sum(0).min() > 0.9
        newcomers = drive(run.method.newcomer(run.state, np.array([3, 6]), run.server), run.runtime.answer)
        for newcomer, group in zip((3, 6), newcomers.groups, strict=True):
            assert set(planted_groups[run.groups() == group]) == {planted_groups[newcomer]}
    assert np.mean(found) > 0.9


def test_clusterfl_6_14_evaluates_own_models() -> None:
    run = train(ClusterFL(local_epochs=1), planted("feature"), 4, participation=0.3)
    models = kept(run, "model")
    assert None in models
    for client, (model, served) in enumerate(zip(models, run.served(), strict=True)):
        assert torch.equal(served, run.server.initial(0) if model is None else model)
        assert torch.equal(served, run.state.models[client])
    assert run.method.evaluation(run.state, run.server, run.server.everyone).send == {}
    joined = drive(run.method.newcomer(run.state, np.array([7]), run.server), run.runtime.answer)
    pull = Train(run.server.initial(0), pull=2e-3, anchor=torch.zeros(run.server.layout.size), epochs=1)
    assert torch.equal(joined.models[joined.served[0]], asked(run, 7, 4, pull).model)


@pytest.mark.slow
def test_clusterfl_6_14_omega_swings_at_rho_4_beta_and_settles_above() -> None:
    for rho, bound in ((2e-3, (0.8, 1.1)), (8e-3, (0.0, 0.05))):
        run = train(ClusterFL(local_epochs=1, stop=0.0, rho=rho), planted("incongruent"), 9)
        for state in run.states[7:]:
            mixes = state.relation.T @ state.models
            assert bound[0] <= float((state.omega - mixes).norm() / mixes.norm()) < bound[1]


@pytest.mark.medium
@pytest.mark.each_once
@some_or_all
@pytest.mark.parametrize("network", ["planted-perceptron", "narrow-batch-norm"])
def test_clusterfl_6_14_bytes(network: str, participation: float) -> None:
    """Down m (P b + 4) once there is F; up m (P b + 4); the initial model once."""
    method = ClusterFL(local_epochs=1, stop=0.0)
    run = train(method, planted("feature"), 5, participation=participation, network=network)
    m, size, width = round(20 * participation), run.server.layout.size, run.server.layout.trainable.size
    seen: set[int] = set()
    for number in range(1, 6):
        ((exchange, _),) = run.asked[number - 1]
        fresh = set(exchange.clients.tolist()) - seen
        each = width + 1 if number > 3 else 0
        assert run.bytes("down", number) == (m * each + len(fresh) * size) * 4
        assert run.bytes("up", number) == m * (size + 1) * 4
        seen |= fresh


def test_clusterfl_6_14_does_not_stop_before_there_is_a_relation() -> None:
    run = train(ClusterFL(local_epochs=1, stop=1e6), planted("feature"), 6)
    assert [len(exchanged) for exchanged in run.asked] == [1, 1, 1, 1, 0, 0]


@pytest.mark.medium
@some_or_all
def test_clusterfl_6_14_stops_for_good(participation: float) -> None:
    """Once the mean change of loss is less than `stop`, all of them under a relation (as in the authors' code)."""
    federation, method = planted("feature"), ClusterFL(local_epochs=1, every=2, stop=1.0)
    run = train(method, federation, 12, participation=participation)
    endless = train(replace(method, stop=0.0), federation, 12, participation=participation)
    losses, changes, ended = np.full(20, np.nan), np.full(20, np.inf), 0
    for number in range(1, 13):
        if changes.mean() < 1.0:
            ended = ended or number
            assert run.asked[number - 1] == []
            assert run.ledgers[number - 1] == []
            assert run.states[number] is run.states[number - 1]
            continue
        assert same(run.states[number], endless.states[number])
        ((_, replies),) = run.asked[number - 1]
        here, told = replies.clients, replies.numbers["loss"]
        known = np.isfinite(losses[here])
        if number > 2:
            changes[here] = np.where(known, np.abs(told - losses[here]), np.inf)
        losses[here] = told
    assert 3 < ended < 12
    assert all(len(exchanged) == 1 for exchanged in endless.asked)
    assert run.accuracy().mean() > 0.5
    assert len(local(run).states.kept["model"]) == 20


def test_clusterfl_6_14_rho_must_exceed_2_beta() -> None:
    for rho in (0.001, 0.0005):
        with pytest.raises(BadInput, match=rf"^rho = {rho:g} .*2 beta = 0\.001$"):
            train(ClusterFL(rho=rho), planted("feature", clients=2), 0)
    train(ClusterFL(rho=0.0011), planted("feature", clients=2), 0)
    assert replace(ClusterFL().needs, models="") == Needs(public=500, distributions=True, pairs="everybody")


@pytest.mark.slow
def test_clusterfl_6_14_relates_a_run_to_its_groups() -> None:
    """Trained under a strong relation, models of one group come closer to each other than alone."""
    apart = []
    for beta in (0.0, 4e-3):
        run = train(ClusterFL(local_epochs=2, beta=beta, rho=0.02, stop=0.0), planted("incongruent"), 9)
        apart.append(_spread(run))
    assert apart[1] < apart[0]


def _spread(run: Trained) -> float:
    groups = run.federation.true_groups
    assert groups is not None
    models = run.state.models.double()
    inside = [models[torch.from_numpy(np.flatnonzero(groups == g))] for g in range(4)]
    return float(sum((m - m.mean(0)).norm() / m.norm() for m in inside))


def test_flis_says_that_all_or_no_clients_are_neighbours() -> None:
    run = train(FLIS(), planted("feature", clients=4), 1)
    # Of ten samples two clients agree on five to nine.
    predictions = np.array([[0] * 10, [0] * 9 + [1], [0] * 8 + [1] * 2, [0] * 5 + [1] * 5])
    together = replace(run.state, predictions=predictions, groups=np.zeros(4, np.int64))
    (sentence,) = run.method.final_warnings(together, run.server, 1)
    assert re.search(r"one group .*method\.threshold = 0\.4; .*0\.5 to 0\.9", sentence)
    apart, strict = replace(together, groups=np.arange(4)), FLIS(threshold=0.95)
    (sentence,) = strict.final_warnings(apart, run.server, 1)
    assert re.match(r"no client .*method\.threshold = 0\.95", sentence)
    # Neighbours there are, but no two clients have the same.
    assert run.method.final_warnings(apart, run.server, 1) == []


def test_clusterfl_says_that_clients_were_never_compared_or_never_parted() -> None:
    run = train(ClusterFL(every=5, local_epochs=1), planted("feature", clients=6), 2)
    (sentence,) = run.method.final_warnings(run.state, run.server, 2)
    assert re.search(r"method\.every = 5 .* 2$", sentence)
    relation = torch.full((6, 6), 0.1)
    relation[0] = 0.5
    (sentence,) = run.method.final_warnings(replace(run.state, relation=relation), run.server, 2)
    assert "0.50 to 0.50" in sentence
    relation[1, 3:] = 0.9
    assert run.method.final_warnings(replace(run.state, relation=relation), run.server, 2) == []
