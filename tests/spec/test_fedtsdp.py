"""FedTSDP's properties 1.8, and its decisions (docs/methods/fedtsdp.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, jensenshannon
from sklearn.cluster import DBSCAN
from sklearn.metrics import adjusted_rand_score
from torch import Tensor, nn

from coterie.clients.rules import LocalUpdate, Order, Train
from coterie.grouping.aggregate import group_means
from coterie.grouping.labels import relabel
from coterie.grouping.trigger import hopkins
from coterie.methods import FedAvg
from coterie.methods.fedtsdp import FedTSDP, FedTSDPState
from coterie.models.layout import Layout
from coterie.models.networks import build
from coterie.runtime.local.runtime import LocalRuntime
from tests.federated import TRAINING, Trained, planted, train

SIZES = [40 + 3 * i for i in range(20)]
TWO = TRAINING.updated(epochs=2)
EASY: dict[str, Any] = {
    "h": 0.0,
    "eps1": "inf",
    "eps2": "inf",
    "damp_only_if_changed": False,
}  # fires whenever three answer, into one cluster
both_engines = pytest.mark.parametrize("engine", ["sequential", "batched"])


def predictions(run: Trained, round: int, models: Tensor) -> Tensor:
    """What models predict on the public batch of a round."""
    assert isinstance(run.runtime, LocalRuntime)
    assert run.federation.public is not None
    method, before = run.method, run.states[round - 1]
    assert isinstance(method, FedTSDP)
    batch = before.draw_batch(method.public_batch, run.server, round)
    return run.runtime.engine.outputs(models, run.federation.public[torch.from_numpy(batch)])


def replied(run: Trained, round: int) -> Any:
    """What came back in a round."""
    ((_, replies),) = run.asked[round - 1]
    return replies


@pytest.mark.medium
@pytest.mark.each_once
@both_engines
@pytest.mark.parametrize(("participation", "client_dropout"), [(1.0, 0.0), (0.5, 0.0), (0.7, 0.3)])
def test_fedtsdp_1_8_1(engine: str, participation: float, client_dropout: float) -> None:
    """A threshold that H cannot pass: FedAvg, to the bit."""
    federation = planted("label", 2, sizes=SIZES)
    training = TRAINING.updated(momentum=0.5, lr_decay=0.9)
    how: Any = {
        "training": training,
        "engine": engine,
        "participation": participation,
        "client_dropout": client_dropout,
    }
    ours, theirs = (train(method, federation, 4, **how) for method in (FedTSDP(h=1.0, eps2=3.5), FedAvg()))
    assert ours.logged("fired") == [0.0] * 4
    assert max(x for x in ours.logged("hopkins") if x is not None) > 0.65  # at 0.65 it would have fired
    for a, b in zip(ours.states, theirs.states, strict=True):
        assert torch.equal(a.models, b.model)
    assert ours.ledgers == theirs.ledgers
    if participation == 1.0:
        assert ours.accuracy().tolist() == theirs.accuracy().tolist()


@pytest.mark.medium
@pytest.mark.each_once
@both_engines
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_fedtsdp_1_8_1_firing_into_one_cluster_without_damping(engine: str, participation: float) -> None:
    federation = planted("label", 2, sizes=SIZES)
    ours = train(FedTSDP(psi=1.0, **EASY), federation, 4, engine=engine, participation=participation)
    theirs = train(FedAvg(), federation, 4, engine=engine, participation=participation)
    assert ours.logged("fired") == [1.0] * 4
    for a, b in zip(ours.states, theirs.states, strict=True):
        assert torch.equal(a.models, b.model)


@pytest.mark.slow
def test_fedtsdp_1_8_4() -> None:
    """H of exchangeable clients lies in 0.52 ... 0.64, of four planted groups at 0.69 or above, on average."""

    def mean_h(kind: str, rounds: int, **how: Any) -> float:
        runs = [train(FedTSDP(h=1.0, eps2=3.5), planted(kind, seed=s), rounds, seed=s, **how) for s in range(3)]
        return float(np.mean([np.array(run.logged("hopkins"), float) for run in runs]))

    assert 0.56 <= mean_h("iid", 10, training=TWO.updated(lr=0.05)) <= 0.61
    assert mean_h("feature", 1, training=TWO) >= 0.69
    assert mean_h("incongruent", 1, training=TWO) >= 0.69
    assert mean_h("label", 1, training=TWO) >= 0.85


@pytest.mark.medium
def test_fedtsdp_1_8_4_clients_that_are_all_different_do_not_fire() -> None:
    """Every client has its own meaning of the labels: twenty singletons are no structure."""
    federation = planted("iid")
    labels = federation.labels.clone()
    for client, (first, *_, last) in enumerate(federation.bounds):
        meaning = torch.from_numpy(np.random.default_rng(client).permutation(10))
        labels[first:last] = meaning[labels[first:last]]
    run = train(FedTSDP(), replace(federation, labels=labels), 5, training=TWO)
    assert run.logged("fired") == [0.0] * 5
    assert run.logged("js", "min")[0] > 0.1  # type: ignore[operator]  # they are far apart


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 7])
def test_fedtsdp_8_4_iid_control(seed: int) -> None:
    """IID clients, E = 2, lr 0.05: H never passes 0.65 in ten rounds.

    Drawn of two clients it may (docs/methods/fedtsdp.md, D6): of ten times ten such rounds, seeds 0 to 9, four do,
    one each from seeds 4, 7, 8 and 9.
    """
    run = train(FedTSDP(), planted("iid", seed=seed), 10, training=TWO.updated(lr=0.05), seed=seed)
    assert run.logged("fired") == [0.0] * 10
    assert len(run.state.models) == 1


def expected(run: Trained, round: int) -> np.ndarray:
    """The clusters of a full round by SciPy's divergence and scikit-learn's DBSCAN."""
    method, replies = run.method, replied(run, round)
    assert isinstance(method, FedTSDP)
    q = predictions(run, round, replies.models).double().numpy()
    js = np.array([[np.mean(jensenshannon(a, b, axis=1) ** 2) for b in q] for a in q])
    np.fill_diagonal(js, 0.0)

    def dbscan(distances: np.ndarray, eps: float | str) -> np.ndarray:
        eps = 1e9 if eps == "inf" else float(eps)
        found = DBSCAN(eps=eps, min_samples=2, metric="precomputed").fit_predict(distances)
        if method.noise == "singletons":
            found[found == -1] = found.max() + 1 + np.arange((found == -1).sum())
        return np.asarray(found)

    first = np.zeros(len(q), int) if method.stages == "second" else dbscan(js, method.eps1)
    part = run.server.layout.trainable
    weights = part.take(replies.models).double().numpy()
    final, count = np.zeros(len(q), int), 0
    for group in np.unique(first):
        mine = np.flatnonzero(first == group)
        inside = np.zeros(len(mine), int)
        if method.stages != "first" and len(mine) > 1:
            inside = dbscan(np.round(cdist(weights[mine], weights[mine]), 9), method.eps2)
        final[mine] = count + inside - inside.min()
        count = final.max() + 1
    return relabel(final)


@pytest.mark.medium
@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("kind", "groups", "settings"),
    [
        ("label", 5, {"eps2": "inf"}),
        ("label", 2, {"eps1": 0.1, "eps2": "inf"}),
        ("feature", 4, {"eps2": 1.5}),
        ("feature", 4, {"eps2": 0.85, "noise": "singletons"}),
        ("feature", 4, {"eps2": 0.85, "noise": "group"}),
        ("feature", 4, {"eps1": 0.01, "noise": "group", "eps2": 1.5}),
        ("feature", 4, {"stages": "second", "eps2": 1.5}),
        ("feature", 4, {"stages": "first", "eps1": 0.03, "eps2": 0.0}),
        ("incongruent", 4, {"eps1": 0.1, "eps2": 1.5}),
    ],
    ids=str,
)
def test_fedtsdp_1_4_clusters(kind: str, groups: int, settings: dict[str, Any]) -> None:
    """JS and both stages of a real round, made again with other libraries (D1 to D4, and the ablation's stages)."""
    federation = planted(kind, groups)
    run = train(FedTSDP(h=0.0, **settings), federation, 2, training=TWO)
    for number in (1, 2):
        found = expected(run, number)
        assert run.states[number].groups.tolist() == found.tolist()
    assert 1 < len(np.unique(run.state.groups)) <= 20


@pytest.mark.medium
def test_fedtsdp_1_4_clusters_differ_where_an_option_does() -> None:
    """Noise and eps2 change what is found, so that the test above is not about one case."""
    federation = planted("feature", 4)

    def found(**settings: Any) -> list[int]:
        return train(FedTSDP(h=0.0, **settings), federation, 1, training=TWO).groups().tolist()  # type: ignore[no-any-return]

    assert max(found(eps2="inf")) == 0  # JS: one cluster
    singletons, together = found(eps2=0.85, noise="singletons"), found(eps2=0.85, noise="group")
    assert max(together) < max(singletons)


@pytest.mark.medium
def test_fedtsdp_d3_clients_without_a_neighbour_are_one_group_and_do_not_train_alone() -> None:
    """A distance that links nobody leaves everybody together by default, and everybody alone as singletons."""
    methods = (FedTSDP(h=0.0, eps1=0.0, eps2=3.5, noise=noise) for noise in ("group", "singletons"))
    together, apart = (train(method, planted("label", 5), 2, training=TWO) for method in methods)
    assert len(np.unique(together.groups())) == 1
    assert len(np.unique(apart.groups())) == 20


@pytest.mark.parametrize("eps1", [0.15, 0.03])
def test_fedtsdp_1_8_5(eps1: float) -> None:
    """Stage 2 refines stage 1, and everybody is in exactly one cluster."""
    federation = planted("feature", 4)
    first, whole = (
        train(FedTSDP(h=0.0, eps1=eps1, eps2=0.85, stages=s), federation, 1, training=TWO).groups()
        for s in ("first", "both")
    )
    assert len(np.unique(whole)) > len(np.unique(first))
    for cluster in np.unique(whole):
        assert len(np.unique(first[whole == cluster])) == 1
    assert sorted(np.unique(whole)) == list(range(whole.max() + 1))


@pytest.mark.medium
def test_fedtsdp_1_8_6_depth() -> None:
    """A network of four layers and eight tensors: 7, 6, ... 1 are left after firings 1, 7, 15, 24, 35, 49, 69."""
    federation = planted("iid", clients=3, samples=20)
    run = train(
        FedTSDP(**EASY),
        federation,
        70,
        network="mlp",
        settings={"hidden": "4,4,4"},
        training=TRAINING.updated(lr=0.01),
    )
    layout = run.server.layout
    assert (len(layout.layers), len(layout.tensors)) == (4, 8)
    assert run.logged("fired") == [1.0] * 70
    logged = [int(x) for x in run.logged("shared tensors") if x is not None]
    left = [
        *logged[1:],
        run.state.count_tensors(layout),
    ]  # after each firing; what is logged is what a round shares
    assert logged[0] == 8
    assert [left.index(t) + 1 for t in (7, 6, 5, 4, 3, 2, 1)] == [1, 7, 15, 24, 35, 49, 69]
    assert left == sorted(left, reverse=True)
    sizes = [t.size for t in layout.tensors]
    for number in range(1, 71):  # what is damped takes effect at the next download
        assert run.bytes("down", number) == 3 * 4 * sum(sizes[: logged[number - 1]])
    depths = np.array(run.logged("shared layers"), float)
    np.testing.assert_allclose(depths, 4 * 0.98 ** np.arange(70))


@pytest.mark.parametrize(
    ("rounding", "firings"),
    [
        ("floor", [1, 7, 15, 24, 35, 49, 69]),
        ("round", [4, 11, 19, 29, 41, 58, 83]),
        ("ceil", [7, 15, 24, 35, 49, 69, 103]),
    ],
)
def test_fedtsdp_d12_rounding(rounding: Any, firings: list[int]) -> None:
    """After which firing 7, 6, … 1 of eight tensors are left. Rounding up, 4 layers become 3.5 at the seventh."""
    _, layout = build("fedtsdp-cnn", {}, (32, 32, 3), 10, 0)
    state = FedTSDPState(*[None] * 11)  # type: ignore[arg-type]  # nothing but the depth is looked at
    left = [replace(state, depth=4 * 0.98**k).count_tensors(layout, rounding) for k in range(104)]
    assert [left.index(t) for t in (7, 6, 5, 4, 3, 2, 1)] == firings
    assert left[0] == 8
    assert left == sorted(left, reverse=True)


def test_fedtsdp_1_5_shared_scalars_of_the_paper() -> None:
    """P, P - 10, P - 5130, P - 5642 and 19392 shared scalars at 4, 3.5, 3, 2.5 and 2 layers of the paper's CNN."""
    _, layout = build("fedtsdp-cnn", {}, (32, 32, 3), 10, 0)
    state = FedTSDPState(*[None] * 11)  # type: ignore[arg-type]  # nothing but the depth is looked at
    sizes = [replace(state, depth=s).shared_part(layout).size for s in (4.0, 3.5, 3.0, 2.5, 2.0, 0.0)]
    size = 6_447_562
    assert layout.size == size
    assert sizes == [size, size - 10, size - 5130, size - 5642, 19392, 0]


def test_fedtsdp_d12_depths_that_are_whole_tensors() -> None:
    """5 of 11 tensors in 3 layers are a depth of 15/11, which floats take for a little less than 5 tensors."""
    first, last = nn.Linear(4, 4), nn.Linear(4, 2)
    norms = nn.BatchNorm1d(4), nn.LayerNorm(4, bias=False), nn.BatchNorm1d(4)
    layout = Layout.of(nn.Sequential(first, *norms[:2], nn.Linear(4, 4), norms[2], last))
    assert (len(layout.layers), len(layout.tensors)) == (3, 11)
    state = FedTSDPState(*[None] * 11)  # type: ignore[arg-type]  # nothing but the depth is looked at
    assert [replace(state, depth=t * 3 / 11).count_tensors(layout) for t in range(12)] == list(range(12))


@pytest.mark.medium
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_fedtsdp_1_8_6_private_tensors(participation: float) -> None:
    """Whatever the clusters do, a client trains from [its cluster's shared tensors; what it made itself]."""
    run = train(
        FedTSDP(h=0.0, psi=0.8, eps2=1.2, damp_only_if_changed=False),
        planted("feature", sizes=SIZES),
        6,
        participation=participation,
        client_dropout=0.1,
    )
    assert isinstance(run.runtime, LocalRuntime)
    engine, layout = run.runtime.engine, run.server.layout
    depths = [state.count_tensors(layout) for state in run.states]
    assert depths[0] == 4
    assert depths[-1] <= 1
    own: dict[int, Tensor] = {}
    regrouped = 0
    for number in range(1, 7):
        before, replies = run.states[number - 1], replied(run, number)
        part = before.shared_part(layout)
        for client, model in zip(replies.clients.tolist(), replies.models, strict=True):
            row = before.models[before.groups[client]]
            start = part.copy(own.get(client, row).clone(), row)
            me = engine.client(Order(client, number, LocalUpdate(), {}), {})
            (result,) = engine.answer([me], [Train(start)])
            assert torch.equal(model, result.model)  # type: ignore[union-attr]  # a Train is answered by a Trained
            own[client] = model
        regrouped += bool((run.states[number].groups != before.groups).any())
    assert regrouped > 1
    served, final = run.served(), run.state.shared_part(layout)
    for client, model in own.items():
        row = run.state.models[run.state.groups[client]]
        assert torch.equal(served[client], final.copy(model.clone(), row))


def test_fedtsdp_1_5_means_inside_clusters() -> None:
    """W_k is the n_i-weighted mean of who took part, in the tensors shared in this round (D14, D15)."""
    run = train(FedTSDP(h=0.0, psi=0.75, eps2=1.2), planted("feature", sizes=SIZES), 6, participation=0.6)
    layout = run.server.layout
    for number in range(1, 7):
        before, after, replies = run.states[number - 1], run.states[number], replied(run, number)
        groups = after.groups[replies.clients]
        means = group_means(replies.models, groups, torch.zeros_like(after.models), replies.samples)
        part = before.shared_part(layout)
        assert torch.equal(part.take(after.models), part.take(means))
        rest = layout.everything - part
        for k, row in enumerate(after.models):  # what is private stays as it was in the first member's cluster
            former = before.groups[replies.clients[np.flatnonzero(groups == k)[0]]]
            assert torch.equal(rest.take(row), rest.take(before.models[former]))


@pytest.mark.parametrize(("rho", "share"), [(0.5, 0.5), (0.9, 0.9), (0.0, 0.0), ("literal", 10000 / 10001)])
def test_fedtsdp_1_8_7(rho: Any, share: float) -> None:
    """pi sums to 1, stays above 0, and rho of it lies on the batch; literally, the next batch is the same (D9)."""
    run = train(FedTSDP(rho=rho, **EASY), planted("iid", clients=3, samples=20, public=10000), 4)
    for number in range(1, 5):
        before, after = run.states[number - 1], run.states[number]
        batch = before.draw_batch(50, run.server, number)
        assert len(np.unique(batch)) == 50
        assert after.weights.sum() == pytest.approx(1.0, abs=1e-12)
        assert (after.weights > 0).all()
        assert after.weights[batch].sum() >= share - 1e-12
        np.testing.assert_allclose(
            after.weights, (1 - share) * before.weights + share * np.isin(np.arange(10000), batch) / 50
        )
        if rho == "literal" and number > 1:
            assert batch.tolist() == run.states[0].draw_batch(50, run.server, 1).tolist()
    if rho == 0.5:
        overlap = np.intersect1d(
            run.states[0].draw_batch(50, run.server, 1), run.states[1].draw_batch(50, run.server, 2)
        )
        assert 10 <= len(overlap) < 40


def test_fedtsdp_1_8_7_without_a_firing_nothing_moves() -> None:
    run = train(FedTSDP(h=1.0, eps2=3.5), planted("label", 2), 2)
    assert np.array_equal(run.state.weights, np.full(200, 1 / 200))
    assert run.state.depth == 2.0


def test_fedtsdp_1_8_7_a_small_public_set_is_taken_whole() -> None:
    run = train(FedTSDP(**EASY), planted("iid", clients=3, samples=20, public=7), 2)
    assert run.states[1].draw_batch(50, run.server, 2).tolist() == list(range(7))
    np.testing.assert_allclose(run.state.weights, 1 / 7)


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "least"), [(2, 0.8), (5, 0.9)])
def test_fedtsdp_1_8_8(groups: int, least: float) -> None:
    """Disjoint label sets, two epochs: fires in round 1, and stage 1 finds the groups."""
    for seed in range(2):
        federation = planted("label", groups, seed=seed)
        run = train(FedTSDP(eps2="inf"), federation, 1, training=TWO, seed=seed)
        assert run.logged("fired") == [1.0]
        assert run.logged("hopkins")[0] > least  # type: ignore[operator]
        assert adjusted_rand_score(federation.true_groups, run.groups()) == 1.0


@pytest.mark.parametrize("only", [False, True])
def test_fedtsdp_damp_only_if_changed(only: bool) -> None:
    """D16: by default a firing that finds the same groups again damps nothing; without the option it does."""
    how: Any = EASY | {"damp_only_if_changed": only}
    together = train(FedTSDP(**how), planted("iid", clients=5), 2)
    assert together.logged("fired") == [1.0, 1.0]
    assert together.state.depth == pytest.approx(2.0 if only else 2 * 0.98**2)
    assert (np.ptp(together.state.weights) > 0) is not only
    split = train(FedTSDP(damp_only_if_changed=only, eps2="inf"), planted("label", 2), 2, training=TWO)
    assert [state.depth for state in split.states[1:]] == pytest.approx([1.96, 1.96 if only else 1.96 * 0.98])


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["feature", "incongruent", "iid"])
def test_fedtsdp_d4_a_test_finds_groups_whatever_predictions_do(kind: str) -> None:
    """Groups that H does not see are found in the first looks, and stand; one population is never divided."""
    run = train(FedTSDP(h=1.0), planted(kind, 4), 8)
    assert run.logged("fired") == [0.0] * 8
    truth = run.federation.true_groups
    assert run.groups().tolist() == ([0] * 20 if truth is None else truth.tolist())
    assert run.state.depth == 2.0


@pytest.mark.medium
@pytest.mark.parametrize(("kind", "rounds"), [("iid", 5), ("feature", 4)])
def test_fedtsdp_d4_updates_of_a_group_are_summed_since_it_came_about(kind: str, rounds: int) -> None:
    """Of clients who are together; four groups are found in the first of five rounds, one population in none."""
    state = train(FedTSDP(h=1.0), planted(kind, 4), 5).state
    together = state.groups[:, None] == state.groups
    assert (state.together[together] == rounds).all()
    assert kind == "iid" or not state.products[~together].any()


def test_fedtsdp_d4_too_few_clients_or_samples_are_said_before_the_start() -> None:
    def warned(method: FedTSDP, **federation: Any) -> list[str]:
        server = train(method, planted("iid", **federation), 0).server
        return method.warnings(server, 10)

    assert warned(FedTSDP()) == warned(FedTSDP(eps2=3.5), clients=5) == []
    assert "5 clients" in warned(FedTSDP(), clients=5)[0]
    assert "20 training samples" in warned(FedTSDP(), samples=20)[0]


def test_fedtsdp_two_clients_never_fire() -> None:
    """Step 4: at least three must have answered."""
    assert train(FedTSDP(h=0.0), planted("label", 2, clients=2), 3).logged("fired") == [0.0] * 3
    assert train(FedTSDP(h=0.0), planted("label", 2, clients=3), 1).logged("fired") == [1.0]


def test_fedtsdp_logs_what_the_paper_plots() -> None:
    run = train(FedTSDP(eps1=0.1, eps2="inf"), planted("label", 2), 2, training=TWO)
    q = predictions(run, 1, replied(run, 1).models).double().numpy()
    assert run.logged("hopkins")[0] == hopkins(q.reshape(20, -1), run.server.stream("hopkins", 1))
    js = [np.mean(jensenshannon(q[i], q[j], axis=1) ** 2) for i in range(20) for j in range(i)]
    for of, share in (("min", 0), ("q1", 0.25), ("median", 0.5), ("q3", 0.75), ("max", 1)):
        assert run.logged("js", of)[0] == pytest.approx(np.quantile(js, share))
    assert run.logged("hopkins threshold") == [0.65, 0.65]
    assert run.logged("eps1") == [0.1, 0.1]
    assert run.logged("shared tensors") == [4, 3]  # as they are in the round, before its firing takes effect
