"""LayerCFL: its numbered properties (docs/methods/layercfl.md, 4.8), and what it must survive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.grouping.affinity import gap
from coterie.grouping.aggregate import group_means
from coterie.grouping.cluster import bipartition
from coterie.grouping.layers import compare_signals, every_layer
from coterie.methods.cfl import CFL
from coterie.methods.exchange import LogGap
from coterie.methods.layercfl import LayerCFL
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, Trained, planted, same, train, without_client
from tests.splitting import DECAY, FIRST, LAST, PUBLISHED, QUICK, gaps_of, quick


@pytest.mark.medium
def test_layercfl_4_8_3() -> None:
    """With gamma_max = 1 nothing is ever split, though leaves rest; with 0 they are."""
    never = quick(gamma_max=1.0)
    assert len(never.state.nodes) == 1
    assert never.state.until[0] > 0  # a split was refused
    assert len(quick().state.nodes) == 4


def test_layercfl_4_8_4() -> None:
    """The cosine does not see how long an update is; the distance does."""
    run = train(LayerCFL(), planted("feature"), 1)
    updates = run.state.updates
    factors = torch.linspace(0.2, 5.0, len(updates))[:, None]
    for part in every_layer(run.server.layout).values():
        one, other = part.take(updates), part.take(updates * factors)
        np.testing.assert_allclose(compare_signals(one, "cosine"), compare_signals(other, "cosine"), atol=1e-6)
        assert np.abs(compare_signals(one, "l2") - compare_signals(other, "l2")).max() > 0.1


def test_layercfl_4_8_5() -> None:
    """From equal starts, distances between weights are distances between updates; cosines are not."""
    federation = planted("feature")

    def first_round(kind: str, **settings: Any) -> dict[str, LogGap]:
        return gaps_of(train(LayerCFL(layers="all", log_gaps="every", **settings), federation, 1), kind)

    updates, weights = first_round("distance"), first_round("distance", signal="weights")
    assert list(updates) == [FIRST, LAST, "all"]
    for name in updates:
        np.testing.assert_allclose(updates[name].matrix, weights[name].matrix, atol=1e-6)
    by_update, by_weight = first_round("similarity"), first_round("similarity", signal="weights")
    assert np.abs(by_update["all"].matrix - by_weight["all"].matrix).max() > 0.1


def splits(groups: int, seed: int, kind: str = "incongruent", decay: float = 0.98, **settings: Any) -> Trained:
    federation = planted(kind, groups, seed=seed)
    training = TRAINING.updated(lr_decay=decay)
    method = LayerCFL(**PUBLISHED | {"t_min": 5} | settings)
    return train(method, federation, 80, training=training, seed=seed, engine="batched")


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "layers"), [(1, "all"), (2, "all"), (4, "auto")])
def test_layercfl_4_8_6(groups: int, layers: str) -> None:
    """Incongruent groups, lr 0.1 x 0.98^t, r = 4, 80 rounds: K - 1 splits and ARI 1 for K = 2 and 4, none for 1."""
    run = splits(groups, 0, layers=layers)
    assert run.ari() == 1.0
    assert len(run.state.splits) == groups - 1


@pytest.mark.slow
def test_layercfl_4_8_6_constant_learning_rate() -> None:
    """Two groups are found without a decay as well; four are not (D5)."""
    run = splits(2, 0, decay=1.0, layers="all")
    assert run.ari() == 1.0
    assert len(run.state.splits) == 1
    assert len(splits(4, 0, decay=1.0, layers="all").state.splits) == 0
    assert splits(4, 0, decay=1.0, layers="all", eps1_frac=0.2).ari() == 1.0


@pytest.mark.slow
def test_layercfl_4_8_7() -> None:
    """IID clients are never split with r = 4, and are with r = 1, for any norm that falls satisfies that (D6).

    What halves of the clients' own data say of it stops that too (D9).
    """
    federation = planted("iid")

    def number_of_splits(**settings: Any) -> int:
        method = LayerCFL(**PUBLISHED | {"layers": "all", "t_min": 5} | settings)
        return len(train(method, federation, 60, engine="batched").state.splits)

    assert number_of_splits() == 0
    assert number_of_splits(ratio=1.0) > 0
    assert number_of_splits(ratio=1.0, gamma_max="noise") == 0


@pytest.mark.medium
def test_layercfl_4_8_8() -> None:
    """The tree is nested in every round, every client in one leaf; the log tells the same tree."""
    run = quick(10)
    parent: dict[int, int] = {}
    for number, (before, after) in enumerate(zip(run.states, run.states[1:], strict=False), 1):
        for leaf in range(len(after.nodes)):
            assert len(set(before.groups[after.groups == leaf])) == 1
        born = [log.values for log in run.logs[number - 1] if log.name == "leaf"]
        parent |= {int(leaf): int(of) for values in born for leaf, of in dict(values).items()}  # type: ignore[arg-type]
        (sizes,) = (dict(log.values) for log in run.logs[number - 1] if log.name == "leaf size")  # type: ignore[arg-type]
        expected = {str(node): (after.groups == k).sum() for k, node in enumerate(after.nodes)}
        assert sizes == expected
        assert sum(sizes.values()) == run.server.n
    assert parent == {0: -1, 1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2}
    assert run.state.splits[:, 0].tolist() == [0, 1, 2]


@pytest.mark.medium
def test_layercfl_4_8_9() -> None:
    """In a real first round of two groups, Gap1 > 0 and single and complete linkage return them."""
    for kind in ("feature", "incongruent"):
        federation = planted(kind, 2)
        assert federation.true_groups is not None
        for name, entry in gaps_of(train(LayerCFL(), federation, 2)).items():
            if gap(entry.matrix, federation.true_groups) > 0:
                for linkage in ("single", "complete"):
                    assert bipartition(1 - entry.matrix, linkage).tolist() == federation.true_groups.tolist()
            else:
                assert name != "all"


@pytest.mark.medium
def test_layercfl_4_4_newcomers_descend_the_tree() -> None:
    """At every split a newcomer trains once from the model of then, and goes on to the half it resembles."""
    clients = np.array([1, 4, 6, 7, 11])
    for layers in ("auto", "all"):
        run = quick(10, layers=layers)
        assert len(run.state.nodes) == 4
        run.runtime.begin_round(11)
        joined = drive(run.method.newcomer(run.state, clients, run.server), run.runtime.answer)
        assert joined.groups.tolist() == run.state.groups[clients].tolist()
        assert torch.equal(joined.models, run.state.models)
        sent = [client for client, way, _, _ in run.runtime.ledger.rows if way == "down"]
        assert sorted(sent) == sorted(clients.tolist() * 2)  # two splits on the way to any leaf
    alone = train(LayerCFL(), planted("feature", clients=4), 1)
    assert drive(
        alone.method.newcomer(alone.state, clients[:2], alone.server), alone.runtime.answer
    ).groups.tolist() == [0, 0]


@pytest.mark.medium
def test_layercfl_newcomers_who_do_not_answer_have_no_leaf() -> None:
    run = quick(10)
    run.runtime.client_dropout = 0.999999
    run.runtime.begin_round(11)
    joined = drive(run.method.newcomer(run.state, np.array([0, 1]), run.server), run.runtime.answer)
    assert joined.groups.tolist() == [-1, -1]


def test_layercfl_affinity_is_that_of_the_layers_that_decide() -> None:
    run = quick(6, layers=LAST)
    clients = np.array([0, 3, 7])
    affinity = run.method.affinity(run.state, run.server, clients)
    assert affinity is not None
    part = every_layer(run.server.layout)[LAST]
    np.testing.assert_allclose(
        affinity.matrix, 1 - compare_signals(part.take(run.state.updates[clients]), "cosine")
    )
    assert "cosine" in affinity.name


@pytest.mark.medium
def test_layercfl_only_the_chosen_layers_are_compared() -> None:
    """In the rounds of a choice every layer is; afterwards the chosen one alone, which is what saves computing."""
    federation = planted("feature", 2, clients=12)
    assert list(gaps_of(train(LayerCFL(layers=LAST), federation, 1))) == [LAST]
    assert list(gaps_of(train(LayerCFL(layers=LAST, log_gaps="every"), federation, 1))) == [FIRST, LAST, "all"]
    run = train(LayerCFL(t_min=4), federation, 5)
    assert list(gaps_of(run)) == [FIRST]
    sizes = {name: part.size for name, part in every_layer(run.server.layout).items()}
    expected = [12 * 13 / 2 * sizes[name] for name in ("all", "all", "all", FIRST, FIRST)]
    assert run.logged("multiplications") == expected
    assert train(CFL(), federation, 1).logged("multiplications") == expected[:1]


@pytest.mark.medium
def test_layercfl_signals_see_no_buffers() -> None:
    """Batch norm's running statistics are averaged with their layer, and are in no norm and no similarity."""
    federation = planted("incongruent", 4, clients=12)
    settings = QUICK | {"eps1_frac": 0.9, "ratio": 1.0, "log_gaps": "every"}
    run = train(LayerCFL(**settings), federation, 8, training=DECAY, network="narrow-batch-norm")
    layout = run.server.layout
    assert run.state.updates.shape == (12, layout.trainable.size)
    assert len(run.state.nodes) > 1
    ((_, replies),) = run.asked[-1]
    assert torch.equal(
        run.state.models, group_means(replies.models, run.state.groups, run.state.models, replies.samples)
    )
    assert list(gaps_of(run)) == [*layout.layers, "all"]


@pytest.mark.slow
def test_layercfl_8_9_batched_and_in_processes() -> None:
    """Splits and all, the bits do not depend on the number of workers, nor on messages as bytes."""
    federation = planted("incongruent", 4, clients=12)
    method = LayerCFL(**QUICK | {"gamma_max": "noise"})
    options: dict[str, Any] = {"engine": "batched", "training": DECAY}
    one = train(method, federation, 5, **options)
    for other in (
        train(method, federation, 5, workers=2, **options),
        train(method, federation, 5, remote=True, **options),
    ):
        assert all(same(a, b) for a, b in zip(one.states, other.states, strict=True))
        assert one.ledgers == other.ledgers
    assert len(one.asked[3]) > 1


def test_layercfl_one_client_and_one_sample() -> None:
    """Two clients are never split, and nothing in a degenerate federation is NaN."""
    settings: dict[str, Any] = {"t_min": 1, "eps1_frac": 2.0, "ratio": 0.0, "gamma_max": 0.0}
    for clients in (1, 2):
        run = train(LayerCFL(**settings), planted("incongruent", 2, clients=clients), 3)
        assert len(run.state.nodes) == 1
    tiny = without_client(planted("incongruent", 2, clients=6), 1)
    run = train(LayerCFL(**settings), tiny, 3)
    assert all(torch.isfinite(state.models).all() for state in run.states)
    assert tiny.true_groups is not None
    assert run.states[1].groups.tolist() == tiny.true_groups.tolist()  # whoever has one sample is with its like
    assert len(run.state.nodes) == 4
    for logs in run.logs:
        assert all(np.isfinite(list(log.values.values())).all() for log in logs if isinstance(log.values, dict))


def test_layercfl_8_6_identical_clients_are_never_split() -> None:
    """The longest update is then as long as the mean one: with r above 1 it is never long when that is short."""
    one = planted("iid", clients=1)
    federation = replace(one, bounds=np.repeat(one.bounds, 8, 0), names=one.names * 8, true_groups=None)
    training = DECAY.updated(batch_size=100)  # one batch: the order of samples differs between clients
    run = train(LayerCFL(t_min=1, eps1_frac=0.9, ratio=4.0, gamma_max=0.0), federation, 25, training=training)
    norms, limits = run.logged("update norm", "0"), run.logged("split threshold", "0")
    assert any(u < eps1 for u, eps1 in zip(norms, limits, strict=True) if u is not None and eps1 is not None)
    assert len(run.state.nodes) == 1
