"""Mixed methods: which parts go together, that each does what it does in its own method, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from coterie.errors import BadInput
from coterie.methods import IFCA, FedAvg
from coterie.methods import mixed_parts as parts
from coterie.methods.cfl import CFL
from coterie.methods.fedper import FedPer
from coterie.methods.mixed import Mixed
from coterie.methods.mixed_parts import PARTS
from coterie.runs.schema.experiment import Experiment
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, planted, train
from tests.survival import assert_resumes, assert_survives

SIZES = [40 + 3 * i for i in range(20)]
AVERAGES: tuple[parts.Aggregate, ...] = ("mean", "trimmed")
DECAYING = TRAINING.updated(lr_decay=0.98)


@pytest.mark.medium
@pytest.mark.parametrize("share", ["group", "global"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_no_groups_is_fedavg(share: str, participation: float) -> None:
    federation = planted("feature", sizes=SIZES)
    mixed = train(Mixed(cluster="none", share=share), federation, 4, participation=participation)
    fedavg = train(FedAvg(), federation, 4, participation=participation)
    for ours, theirs in zip(mixed.states, fedavg.states, strict=True):
        assert torch.equal(ours.models, theirs.model)
    assert mixed.ledgers == fedavg.ledgers


def test_private_layers_without_groups_are_fedper() -> None:
    federation = planted("feature", sizes=SIZES)
    mixed = train(Mixed(cluster="none", share="private last:1"), federation, 4, participation=0.6)
    fedper = train(FedPer(), federation, 4, participation=0.6)
    for ours, theirs in zip(mixed.states, fedper.states, strict=True):
        assert torch.equal(ours.models, theirs.model)
    assert mixed.ledgers == fedper.ledgers
    assert mixed.accuracy().tolist() == fedper.accuracy().tolist()


@pytest.mark.medium
def test_clients_that_choose_are_ifca() -> None:
    federation = planted("feature", sizes=SIZES)
    mixed = train(Mixed(signal="losses", cluster="choose", trigger="every", weights="uniform"), federation, 3)
    ifca = train(IFCA(min_share=0.1), federation, 3)
    assert torch.equal(mixed.state.models, ifca.state.models)
    assert mixed.groups().tolist() == ifca.groups().tolist()


@pytest.mark.slow
def test_a_bipartition_at_rest_is_cfl() -> None:
    federation = planted("incongruent", 2)
    mixed = train(Mixed(eps1_frac=0.2, after=5), federation, 30, training=DECAYING)
    cfl = train(
        CFL(eps1=None, eps2=None, eps1_frac=0.2, t_min=5, weights="samples"), federation, 30, training=DECAYING
    )
    assert mixed.ari() == cfl.ari() == 1.0
    assert mixed.logged("fired").index(1.0) == [len(set(s.groups)) for s in cfl.states].index(2) - 1


GROUPS: dict[str, dict[str, Any]] = {
    "nearest centre": {"signal": "weights", "cluster": "nearest", "trigger": "every", "after": 1},
    "K-means once": {"signal": "weights", "cluster": "kmeans", "trigger": "once", "after": 1},
    "a tree of updates": {"signal": "update", "cluster": "upgma", "trigger": "once", "after": 1},
    "the last layer's updates": {"layers": "last:1", "cluster": "upgma", "trigger": "once", "after": 1},
    "K-means on trial": {
        "signal": "weights",
        "cluster": "kmeans",
        "trigger": "once",
        "accept": "trial",
        "after": 1,
    },
    "common first layer": {
        "signal": "weights",
        "cluster": "kmeans",
        "trigger": "once",
        "after": 1,
        "share": "common first:1",
    },
    "private last layer": {
        "signal": "weights",
        "cluster": "kmeans",
        "trigger": "once",
        "after": 1,
        "share": "private last:1",
    },
    "periodic layers": {
        "signal": "weights",
        "cluster": "kmeans",
        "trigger": "every",
        "after": 1,
        "share": "periodic",
    },
}


@pytest.mark.medium
@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", GROUPS)
def test_planted_groups_are_found(name: str) -> None:
    run = train(Mixed(**GROUPS[name]), planted("feature", 4), 4)
    assert run.ari() == 1.0
    assert run.accuracy().mean() > train(FedAvg(), planted("feature", 4), 4).accuracy().mean()


def test_a_tree_of_scaled_weights_is_that_of_dcpfl() -> None:
    given: dict[str, Any] = {
        "signal": "weights",
        "distance": "l1",
        "cluster": "upgma",
        "clusters": 2,
        "trigger": "once",
        "after": 1,
    }
    training = TRAINING.updated(epochs=5)
    assert train(Mixed(**given), planted("feature", 2), 1, training=training).ari() == 1.0


def test_outputs_part_label_blocks_and_the_boundary_moves() -> None:
    given: dict[str, Any] = {"signal": "outputs", "cluster": "dbscan", "trigger": "hopkins", "after": 1}
    run = train(Mixed(**given, share="moving", psi=0.5), planted("label", 2), 2)
    assert run.ari() == 1.0
    assert run.state.depth == 0.5
    server = run.server
    assert run.bytes("up", 1) == 20 * server.layout.size * 4  # whole models, for their outputs
    assert run.bytes("down", 2) == 20 * server.layout.first_tensors(2).size * 4


@pytest.mark.slow
def test_a_combination_that_no_paper_has() -> None:
    """Updates of the layer that suits best, two sides at a time, once they look clusterable."""
    given: dict[str, Any] = {
        "cluster": "bipartition",
        "accept": "separation",
        "trigger": "hopkins",
        "threshold": 0.5,
        "gamma_max": 0.6,
    }
    run = train(Mixed(signal="update", layers="auto", after=4, **given), planted("incongruent", 4), 12)
    assert run.ari() == 1.0
    assert run.state.chosen >= 0


def test_as_many_groups_as_clients_is_everybody_alone() -> None:
    given: dict[str, Any] = {"cluster": "upgma", "clusters": 20, "trigger": "every", "after": 1}
    assert len(set(train(Mixed(**given), planted("feature"), 2).groups())) == 20
    assert len(set(train(Mixed(**given), planted("feature"), 3, participation=0.4).groups())) > 8


def test_a_mean_over_everybody_is_trimmed_too() -> None:
    federation = planted("iid", sizes=SIZES)
    plain, trimmed = (train(Mixed(cluster="none", share="global", aggregate=a), federation, 2) for a in AVERAGES)
    assert not torch.equal(plain.state.models, trimmed.state.models)


def test_layers_that_did_not_cross_are_compared_as_they_were_seen_last() -> None:
    given: dict[str, Any] = {
        "signal": "weights",
        "cluster": "kmeans",
        "clusters": 2,
        "trigger": "every",
        "after": 1,
    }
    run = train(Mixed(share="periodic", alpha=2, **given), planted("feature", 2), 6, participation=0.4)
    known = run.state.observed[torch.from_numpy(run.state.known)]
    parts = [run.server.layout.of_layers([i]) for i in range(2)]
    assert all((part.take(known).abs().sum(1) > 0).all() for part in parts)


def test_once_waits_for_a_round_in_which_everything_comes_up() -> None:
    given: dict[str, Any] = {"signal": "weights", "cluster": "kmeans", "trigger": "once", "after": 2, "alpha": 3}
    run = train(Mixed(share="periodic", **given), planted("feature", 4), 7)
    assert [round for round, fired in enumerate(run.logged("fired"), 1) if fired] == [3]
    assert run.ari() == 1.0


def test_a_boundary_that_has_passed_what_is_looked_at_ends_the_search() -> None:
    given: dict[str, Any] = {
        "signal": "weights",
        "cluster": "kmeans",
        "trigger": "every",
        "after": 1,
        "layers": "3",
    }
    run = train(Mixed(share="moving", psi=0.4, **given), planted("feature", 4), 4)
    assert run.logged("fired")[-1] is None
    assert run.ari() == 1.0


def test_trimmed_mean_and_reptile() -> None:
    federation = planted("iid", sizes=SIZES)
    plain, trimmed = (train(Mixed(cluster="none", aggregate=a), federation, 2) for a in ("mean", "trimmed"))
    assert not torch.equal(plain.state.models, trimmed.state.models)
    half = train(Mixed(cluster="none", aggregate="reptile", kappa=0.5), federation, 1)
    whole = train(FedAvg(), federation, 1)
    expected = (half.states[0].models + whole.state.model) / 2
    torch.testing.assert_close(half.state.models, expected, atol=1e-6, rtol=0)


def test_proximal_pulls() -> None:
    federation = planted("feature")
    free = train(Mixed(cluster="none"), federation, 1)
    held = train(Mixed(cluster="none", local="proximal", mu=5.0), federation, 1)
    moved = [float((r.state.models - r.states[0].models).norm()) for r in (free, held)]
    assert moved[1] < 0.8 * moved[0]


def test_who_arrives_late_joins_the_nearest_group() -> None:
    run = train(Mixed(**GROUPS["K-means once"]), planted("feature", 4), 8, participation=0.6)
    assert (run.state.known).all()
    assert run.ari() == 1.0


def test_newcomers_join_the_nearest_group() -> None:
    run = train(Mixed(**GROUPS["K-means once"]), planted("feature", 4), 2)
    clients = np.array([0, 1, 2, 3, 7])
    joined = drive(run.method.newcomer(run.state, clients, run.server), run.runtime.answer)
    assert joined.groups.tolist() == run.groups()[clients].tolist()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"signal": "losses"}, "method.signal = 'losses' is what clients choose by, and nothing else"),
        ({"cluster": "choose"}, "method.signal = 'update' does not go with cluster = 'choose'"),
        ({"distance": "js"}, "method.distance = 'js' cannot compare signal = 'update'; take auto, cosine, l2, l1"),
        ({"signal": "outputs", "distance": "l2"}, "cannot compare signal = 'outputs'; take auto, js"),
        (
            {"signal": "outputs", "layers": "last:1"},
            "method.layers = 'last:1' has no meaning with signal = 'outputs'",
        ),
        ({"signal": "outputs", "cluster": "kmeans"}, "method.cluster = 'kmeans' needs points"),
        ({"cluster": "nearest"}, "method.cluster = 'nearest' compares clients with the groups' models"),
        ({"layers": "auto", "share": "private last:1"}, "method.layers = 'auto' watches bipartitions"),
        ({"accept": "separation", "distance": "l2"}, "method.accept = 'separation' tests cosines"),
        ({"accept": "trial", "share": "moving"}, "method.accept = 'trial' trains two whole models side by side"),
        ({"cluster": "none", "share": "moving"}, "method.share = 'moving' moves when clients are regrouped"),
        ({"cluster": "nearest", "signal": "weights", "share": "global"}, "needs groups whose models differ"),
        ({"accept": "trial", "local": "proximal"}, "method.local = 'proximal' is not there in a trial"),
        ({"share": "sometimes"}, "share"),
        ({"share": "private"}, "share"),
        ({"mu": 0.5}, "method.mu = 0.5 counts for nothing here; it needs local = 'proximal'"),
        ({"cluster": "none", "trigger": "hopkins"}, "method.trigger = 'hopkins' counts for nothing here"),
        ({"clusters": 2}, "method.clusters = 2 counts for nothing here"),
        ({"cluster": "nearest", "signal": "weights", "distance": "cosine"}, "method.cluster = 'nearest' compares"),
    ],
)
def test_impossible_combinations_are_refused_before_work_starts(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as refused:
        Experiment(method={"name": "mixed", **given}).check()
    assert sentence in str(refused.value)


def test_layers_that_the_network_lacks_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"layers": "conv"}, {"share": "private conv"}, {"share": "private all"}]
    wrong += [{"layers": "last:1", "share": "private last:1"}, {"share": "common all"}]
    for given in [*wrong, {"share": "common fc9"}]:
        with pytest.raises(BadInput):
            train(Mixed(**given), planted("feature"), 1)


def test_every_part_is_described() -> None:
    for column, kind in (
        ("signal", parts.Signal),
        ("distance", parts.Distance),
        ("cluster", parts.Cluster),
        ("trigger", parts.Trigger),
        ("accept", parts.Accept),
        ("aggregate", parts.Aggregate),
        ("local", parts.Local),
    ):
        assert tuple(PARTS[column]) == get_args(kind)
    assert set(PARTS) <= set(Mixed.__dataclass_fields__)


LASTING: dict[str, dict[str, Any]] = {
    "private": {"signal": "weights", "cluster": "kmeans", "trigger": "once", "after": 2, "share": "private last:1"},
    "moving": {"signal": "outputs", "cluster": "dbscan", "trigger": "hopkins", "threshold": 0.3, "share": "moving"},
    "periodic": {"signal": "weights", "cluster": "upgma", "clusters": 2, "trigger": "every", "share": "periodic"},
    "choosing": {"signal": "losses", "cluster": "choose", "trigger": "every", "share": "common first:1"},
    "on trial": {"cluster": "upgma", "clusters": 2, "trigger": "once", "accept": "trial", "after": 2},
    "at rest": {"layers": "auto", "eps1_frac": 2.0, "ratio": 0.1, "after": 2},
    "falling": {"signal": "weights", "cluster": "kmeans", "clusters": 2, "trigger": "rapid_decrease", "after": 1},
}


@pytest.mark.parametrize("name", LASTING)
def test_mixed_methods_survive(name: str) -> None:
    assert_survives(Mixed(**LASTING[name]))


@pytest.mark.medium
@pytest.mark.parametrize("name", LASTING)
def test_mixed_methods_resume(name: str, tmp_path: Path) -> None:
    assert_resumes(Mixed(**LASTING[name]), tmp_path)


def test_it_says_why_no_groups_came_about() -> None:
    run = train(Mixed(after=1, ratio=1e6), planted("feature", clients=6), 2)
    (sentence,) = run.method.final_warnings(run.state, run.server, 2)
    near = re.fullmatch(
        r"no groups came about: the trigger 'stationary' never fired: at the nearest a group's mean update had "
        r"\S+ of its greatest length, and a member's was \S+ times as long; method.eps1_frac a little above "
        r"(\S+) with method.ratio a little below (\S+) would have fired it; method.trigger = 'every' looks for "
        r"them in each round",
        sentence,
    )
    assert near
    fires = Mixed(after=1, eps1_frac=1.01 * float(near[1]), ratio=0.98 * float(near[2]))
    assert train(fires, planted("feature", clients=6), 2).state.searches
    scattered = Mixed(after=1, trigger="hopkins", threshold=1.0)
    run = train(scattered, planted("feature", clients=6), 2)
    (sentence,) = scattered.final_warnings(run.state, run.server, 2)
    near = re.search(r"the Hopkins statistic was at most (\S+);", sentence)
    assert near
    below = replace(scattered, threshold=float(near[1]) - 0.01)
    assert train(below, planted("feature", clients=6), 2).state.searches
    assert Mixed(after=9).final_warnings(run.state, run.server, 2) == [
        "no groups came about: they are looked for from round method.after = 9 on, and there were 2 rounds"
    ]
    strict = Mixed(trigger="every", after=1, accept="separation", gamma_max=1.0)
    run = train(strict, planted("iid", clients=6), 2)
    (sentence,) = strict.final_warnings(run.state, run.server, 2)
    assert "found one group or were refused by accept = 'separation'" in sentence
    grouped = replace(run.state, groups=np.array([0, 0, 0, 1, 1, 1]))
    assert run.method.final_warnings(grouped, run.server, 2) == []
