"""CFL and AdaCFL, LayerCFL's recursion with other defaults (docs/methods/cfl.md, docs/methods/adacfl.md); 4.8.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from coterie.grouping.affinity import cosines, pairwise_distances
from coterie.grouping.cluster import bipartition
from coterie.grouping.layers import every_layer
from coterie.methods import METHODS
from coterie.methods.adacfl import AdaCFL
from coterie.methods.cfl import CFL
from coterie.methods.layercfl import LayerCFL
from coterie.runtime.runtime import drive
from tests.federated import planted, same, train
from tests.spec.gates import partitions, tree_of
from tests.splitting import DECAY, GATES, LAST, PUBLISHED, QUICK, gaps_of
from tests.survival import SIZES

FESEM = CFL(
    layers="last:1",
    linkage="average",
    gamma_max=0.13,
    t_min=30,
    eps1_frac=2.0,
    ratio=0.0,
    recursive=True,
    cooldown=1_000_000,
)
"""CFL as FeSEM's authors compared with it (6.10)."""


def settings_of(name: str) -> dict[str, Any]:
    return {setting.name: setting.default for setting in METHODS[name].settings}


def test_the_members_of_the_family_differ_in_their_defaults_alone() -> None:
    layercfl, cfl, adacfl = (settings_of(name) for name in ("layercfl", "cfl", "adacfl"))
    assert layercfl.keys() == cfl.keys() == adacfl.keys()
    assert all(setting.help for setting in METHODS["cfl"].settings)
    assert {k: v for k, v in cfl.items() if v != layercfl[k]} == {
        "layers": "all",
        "weights": "uniform",
    }
    assert {k: v for k, v in adacfl.items() if v != layercfl[k]} == {
        "layers": "last:1",
        "signal": "weights",
        "distance": "l2",
    }
    assert [method.eps2_is_of_selected for method in (LayerCFL, CFL, AdaCFL)] == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "participation", "weights"), [("sequential", 1.0, "samples"), ("batched", 0.8, "uniform")]
)
def test_layercfl_4_8_1(weights: Any, participation: float, engine: str) -> None:
    """With all tensors and gamma_max = 0, LayerCFL splits as CFL does, bit for bit (8.1).

    They share their code, so both are also held against CFL's tests and halves, found anew from what crossed.
    """
    # A ratio by which the longest update decides, and once is not long enough.
    gates: dict[str, Any] = GATES | {"ratio": 3.5}
    federation = planted("incongruent", 4, sizes=SIZES)
    options: dict[str, Any] = {"engine": engine, "participation": participation, "training": DECAY}
    halves: dict[str, Any] = gates | {"linkage": "complete", "weights": weights}
    layercfl = train(LayerCFL(**halves, layers="all"), federation, 14, **options)
    cfl = train(CFL(**halves), federation, 14, **options)
    assert all(same(ours, theirs) for ours, theirs in zip(layercfl.states, cfl.states, strict=True))
    assert layercfl.ledgers == cfl.ledgers
    assert len(cfl.state.splits) > 1
    for run in (layercfl, cfl):
        expected = partitions(run, run.server.layout.trainable, **gates, uniform=weights == "uniform")
        assert tree_of(run) == expected


@pytest.mark.slow
def test_cfl_four_incongruent_groups() -> None:
    """Nobody is lost at the second split: every client ends in exactly one leaf, and the leaves are the groups."""
    method = CFL(**PUBLISHED | {"t_min": 21})
    run = train(method, planted("incongruent", 4, clients=12), 80, training=DECAY, engine="batched")
    assert run.ari() == 1.0
    assert np.bincount(run.groups()).tolist() == [3] * 4
    rounds = run.state.splits[:, 1]
    assert len(rounds) == 3
    assert rounds.min() > 20
    for before, after in zip(run.states, run.states[1:], strict=False):
        assert len(after.groups) == 12
        assert set(after.groups) == set(range(len(after.nodes)))
        for leaf in range(len(after.nodes)):
            assert len(set(before.groups[after.groups == leaf])) == 1


@pytest.mark.slow
def test_cfl_6_10_thresholds_of_the_released_code() -> None:
    """eps1 = 0.4 and eps2 = 1.6 are lengths, so that what they say depends on the network (here: never split)."""
    federation = planted("incongruent", 2)
    run = train(CFL(eps1=0.4, eps2=1.6, t_min=5, gamma_max=0.0), federation, 30, training=DECAY)
    assert run.logged("split threshold", "0") == [0.4] * 30
    rests = [n for n in range(5, 31) if run.logged("update norm", "0")[n - 1] < 0.4]  # type: ignore[operator]
    longest = {n: float(run.states[n].updates.norm(dim=1).max()) for n in rests}
    assert rests
    assert max(longest.values()) < 1.6
    assert len(run.state.nodes) == 1
    assert same(
        run.state, train(CFL(eps1=0.4, ratio=4.0, t_min=5, gamma_max=0.0), federation, 30, training=DECAY).state
    )  # r = 4
    reached = max(longest, key=lambda n: longest[n])
    for eps2, leaves in ((longest[reached] * 0.999, 2), (longest[reached] * 1.001, 1)):
        found = train(CFL(eps1=0.4, eps2=eps2, t_min=5, gamma_max=0.0), federation, reached, training=DECAY)
        assert len(found.state.nodes) == leaves


def halves(similarities: np.ndarray, members: np.ndarray) -> Iterator[list[int]]:
    """FeSEM's recursion: average linkage, and on while the halves are separated by 0.13."""
    inside = similarities[np.ix_(members, members)]
    if len(members) > 2:
        sides = bipartition(1 - inside, "average")
        across = inside[np.ix_(sides == 0, sides == 1)].max()
        if np.sqrt((1 - across) / 2) > 0.13:
            for side in (0, 1):
                yield from halves(similarities, members[sides == side])
            return
    yield members.tolist()


@pytest.mark.slow
def test_cfl_6_10_as_fesem_compared_with_it() -> None:
    """Thirty rounds of one model, then the whole tree at once by the output layer, and never again."""
    federation = planted("incongruent", 2, clients=10)
    run = train(FESEM, federation, 33, training=DECAY)
    assert len(run.states[29].nodes) == 1
    similarities = cosines(every_layer(run.server.layout)[LAST].take(run.states[30].updates))
    expected = sorted(halves(similarities, np.arange(10)))
    leaves = [np.flatnonzero(run.states[30].groups == k).tolist() for k in range(len(run.states[30].nodes))]
    assert leaves == expected
    assert len(leaves) > 2
    assert set(run.state.splits[:, 1]) == {30}
    assert run.state.groups.tolist() == run.states[30].groups.tolist()
    # Who was born in this round has parents of this round: the log holds the whole tree.
    (born,) = (dict(log.values) for log in run.logs[29] if log.name == "leaf")  # type: ignore[arg-type]
    assert len(born) == 2 * len(run.state.splits)


@pytest.mark.medium
def test_adacfl_6_12_is_the_distance_between_classifiers() -> None:
    """Linkage on ||w_i - w_j|| of the last dense layer, and no test of separation."""
    run = train(AdaCFL(**QUICK), planted("incongruent", 4, clients=12), 9, training=DECAY)
    at = int(run.state.splits[0, 1])
    ((_, replies),) = run.asked[at - 1]
    classifiers = run.server.layout.last_layers(1).take(replies.models).double().numpy()
    sides = bipartition(pairwise_distances(classifiers))
    assert run.states[at].groups.tolist() == sides.tolist()
    run = train(AdaCFL(), planted("feature", clients=6), 1)
    ((_, replies),) = run.asked[0]
    entry = gaps_of(run, "distance")[LAST]
    classifiers = run.server.layout.last_layers(1).take(replies.models).double().numpy()
    np.testing.assert_allclose(entry.matrix, pairwise_distances(classifiers), atol=1e-5)


def test_adacfl_eps2_is_a_threshold_of_all_tensors() -> None:
    """The norms are tested as in CFL; in LayerCFL those of the compared layers count (layercfl.md, D4)."""
    federation = planted("incongruent", 4, clients=12)
    probe = train(AdaCFL(**QUICK), federation, 3, training=DECAY)
    whole = probe.state.updates.norm(dim=1).max()
    last = probe.server.layout.last_layers(1).take(probe.state.updates).norm(dim=1).max()
    between = float(whole + last) / 2

    settings: dict[str, Any] = {"t_min": 3, "eps1_frac": 2.0, "eps2": between, "gamma_max": 0.0}
    as_adacfl: dict[str, Any] = {"layers": "last:1", "signal": "weights", "distance": "l2"}
    for method, leaves in ((AdaCFL(**settings), 2), (LayerCFL(**settings, **as_adacfl), 1)):
        assert len(train(method, federation, 3, training=DECAY).state.nodes) == leaves


@pytest.mark.medium
@pytest.mark.parametrize("method", [CFL(**QUICK), AdaCFL(**QUICK)])
def test_cfl_newcomers_find_the_leaf_of_their_like(method: CFL) -> None:
    run = train(method, planted("incongruent", 4, clients=12), 12, training=DECAY)
    assert len(run.state.nodes) > 2
    clients = np.array([0, 1, 4, 6, 7, 11])
    run.runtime.begin_round(13)
    joined = drive(method.newcomer(run.state, clients, run.server), run.runtime.answer)
    assert joined.groups.tolist() == run.state.groups[clients].tolist()


@pytest.mark.medium
def test_cfl_of_fesem_retrains_a_new_leaf_before_it_is_tested() -> None:
    """The first cut is in round 3; the two new leaves train in rounds 4 to 6, and the last of these tests them."""
    method = CFL(t_min=3, eps1_frac=2.0, ratio=0.0, gamma_max=0.0, retrain=3)
    run = train(method, planted("incongruent", 4, clients=12), 6)
    leaves = [len(state.nodes) for state in run.states[1:]]
    assert leaves == [1, 1, 2, 2, 2, 4]
