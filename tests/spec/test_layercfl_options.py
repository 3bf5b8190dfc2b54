"""What LayerCFL decides, and each of its options (docs/methods/layercfl.md, D1 to D16)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import cross_entropy

from coterie.clients.data.federation import Federation
from coterie.errors import BadInput
from coterie.grouping.affinity import gap
from coterie.grouping.aggregate import group_means, mean
from coterie.grouping.cluster import bipartition
from coterie.grouping.layers import compare_signals, every_layer
from coterie.grouping.split_tree import separation
from coterie.methods import METHODS
from coterie.methods.layercfl import LayerCFL
from coterie.models.networks import channels_first
from coterie.randomness import stream
from tests.federated import TRAINING, planted, train
from tests.spec.gates import partitions, tree_of
from tests.splitting import DECAY, FIRST, GATES, LAST, PUBLISHED, QUICK, gaps_of, quick
from tests.survival import SIZES, kept, local


@pytest.mark.slow
def test_layercfl_the_gates_are_those_of_the_formulae() -> None:
    """Computed anew from what the clients sent: norms, thresholds, who is split when, and how."""
    gates: dict[str, Any] = GATES | {"ratio": 1.5}
    federation = planted("incongruent", 4, sizes=SIZES)
    run = train(LayerCFL(**gates, linkage="complete", layers=LAST), federation, 12, training=DECAY)
    part = every_layer(run.server.layout)[LAST]
    assert tree_of(run) == partitions(run, part, **gates, uniform=False)
    assert len(run.state.nodes) >= 3


def unequal(kind: str, seed: int = 0) -> Federation:
    """Four groups of 12, 6, 3 and 1 clients."""
    whole = planted(kind, 4, clients=48, seed=seed)
    return whole.reordered(
        np.array([4 * i + group for group, size in enumerate((12, 6, 3, 1)) for i in range(size)])
    )


@pytest.mark.slow
def test_layercfl_d2_auto() -> None:
    """Every layer is looked at before t_min, by its own grouping, and the one with the best score is taken."""
    federation = planted("feature", 2)
    run = train(LayerCFL(t_min=6), federation, 7)
    looks = {name: run.logged("silhouette", name) for name in (FIRST, LAST, "all")}
    for seen in looks.values():
        assert [value is not None for value in seen] == [True] * 5 + [False] * 2
    first, last, everything = (np.mean(np.array(seen[:5], float)) for seen in looks.values())
    assert first > everything > last > 0.3  # D3: rotations show in the first layer most
    assert run.logged("chosen", FIRST) == [None] * 5 + [1.0, None]
    assert [state.chosen for state in run.states] == [-1] * 6 + [0] * 2
    assert train(LayerCFL(t_min=6), planted("iid"), 6).state.chosen == 2  # everything: no layer parts the clients


@pytest.mark.slow
@pytest.mark.parametrize("federation", [planted("feature", 4), unequal("incongruent")])
def test_layercfl_d2_auto_of_four_groups(federation: Federation) -> None:
    """A cut in two puts several groups on a side; the best cut of the tree finds them all, and a layer is taken."""
    run = train(LayerCFL(), federation, 5)
    assert run.state.chosen == 0
    assert federation.true_groups is not None
    assert adjusted_rand_score(federation.true_groups, run.states[4].groupings[0]) > 0.95


def test_layercfl_d2_chosen_layers_are_logged_once() -> None:
    run = train(LayerCFL(layers=LAST), planted("feature"), 3)
    assert run.logged("chosen", LAST) == [1.0, None, None]
    assert run.logged("silhouette", LAST) == [None] * 3


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(3))
def test_layercfl_4_7_layers_tell_rotations_apart_by_the_first(seed: int) -> None:
    """With rotations the layer next to the input has the larger gap, and Δ more than w."""
    federation = planted("feature", 2, seed=seed)
    assert federation.true_groups is not None
    updates = gaps_of(train(LayerCFL(), federation, 1, seed=seed))
    weights = gaps_of(train(LayerCFL(signal="weights"), federation, 1, seed=seed))
    found = {name: gap(entry.matrix, federation.true_groups) for name, entry in updates.items()}
    assert found[FIRST] > found["all"] > found[LAST] > 0
    assert found[FIRST] > gap(weights[FIRST].matrix, federation.true_groups)


@pytest.mark.medium
@pytest.mark.parametrize("linkage", ["complete", "single", "average"])
def test_layercfl_d7_linkage(linkage: Any) -> None:
    """The two halves are those of the linkage that was asked for."""
    run = quick(linkage=linkage, layers="all")
    at = int(run.state.splits[0, 1])
    before, after = run.states[at - 1], run.states[at]
    sides = bipartition(1 - compare_signals(after.updates, "cosine"), linkage)
    assert before.groups.tolist() == [0] * 12
    assert after.groups.tolist() == sides.tolist()


@pytest.mark.medium
def test_layercfl_d9_separation_must_exceed_gamma_max() -> None:
    """A split is accepted just above its separation and refused at it."""
    run = quick(layers="all")
    at = int(run.state.splits[0, 1])
    after = run.states[at]
    found = separation(compare_signals(after.updates, "cosine"), after.groups)
    assert len(quick(at, layers="all", gamma_max=found - 1e-6).state.nodes) == 2
    assert len(quick(at, layers="all", gamma_max=found).state.nodes) == 1


@pytest.mark.slow
def test_layercfl_d10_a_refused_leaf_waits() -> None:
    """Ten rounds without a test, or as many as the setting says."""
    for cooldown in (0, 3, 10):
        settings = QUICK | {"gamma_max": 1.0, "cooldown": cooldown, "ratio": 0.0}
        run = train(LayerCFL(**settings), planted("incongruent", 2), 20, training=DECAY, engine="batched")
        tests = [n for n in range(1, 21) if run.states[n].until[0] > run.states[n - 1].until[0]]
        resting = [
            n
            for n in range(4, 21)
            if run.logged("update norm", "0")[n - 1] < run.logged("split threshold", "0")[n - 1]  # type: ignore[operator]
        ]
        expected, free = [], 0
        for n in resting:
            if n > free:
                expected.append(n)
                free = n + cooldown
        assert tests == expected
        assert len(tests) == (17 if cooldown == 0 else 5 if cooldown == 3 else 2)


def test_layercfl_d11_persist_opt() -> None:
    """Adam's memory carried over: two rounds of one client are two epochs of one solver, same minibatches."""
    federation = planted("iid", clients=1)
    for optimizer, names in (("adam", ("moments", "squares", "steps")), ("sgd", ("moments",))):
        training = TRAINING.updated(lr=0.01, optimizer=optimizer, momentum=0.9)
        run = train(LayerCFL(persist_opt=True), federation, 2, training=training)
        plain = train(LayerCFL(), federation, 2, training=training)
        engine = local(run).engine
        engine.layout.bind(engine.network, vector := run.states[0].models[0].clone())
        parameters = [engine.network.get_parameter(e.name) for e in engine.layout.tensors]
        solver: torch.optim.Optimizer = torch.optim.Adam(parameters, lr=0.01)
        if optimizer == "sgd":
            solver = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
        inputs, labels = federation.slice(0, "train")
        for number in (1, 2):
            order = torch.from_numpy(stream(0, "batches", 0, number).permutation(100))
            for picked in order.split(20):  # type: ignore[no-untyped-call]
                solver.zero_grad()
                cross_entropy(engine.network(channels_first(inputs[picked])), labels[picked]).backward()  # type: ignore[no-untyped-call]
                solver.step()
        torch.testing.assert_close(run.state.models[0], vector, atol=1e-6, rtol=0)
        assert not torch.allclose(plain.state.models[0], vector, atol=1e-4)
        assert set(local(run).states.kept) == set(names)
        assert all(kept(run, name)[0] is not None for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_layercfl_d12_d13_who_is_split_is_averaged_apart_at_once(weights: Any) -> None:
    """The updates that caused a split are averaged per child, by samples or alike."""
    federation = planted("incongruent", 4, sizes=SIZES)
    run = train(LayerCFL(**QUICK, weights=weights), federation, 9, training=DECAY)
    assert len(run.state.splits)
    for node, number in run.state.splits.tolist():
        before, after, ((_, replies),) = run.states[number - 1], run.states[number], run.asked[number - 1]
        share = replies.samples if weights == "samples" else None
        assert torch.equal(after.models, group_means(replies.models, after.groups, after.models, share))
        for leaf in range(len(after.nodes)):
            members = after.groups == leaf
            alone = mean(replies.models[members], before.models[:1], None if share is None else share[members])
            assert torch.equal(after.models[leaf], alone[0])
        assert node in before.nodes
        assert node not in after.nodes


@pytest.mark.slow
def test_layercfl_d16_partial_participation() -> None:
    """The absent count with their last update; a leaf waits for unknown members, not for ever."""
    federation = planted("incongruent", 2)
    published = PUBLISHED | {"t_min": 5, "layers": "all"}
    run = train(LayerCFL(**published), federation, 50, training=DECAY, participation=0.5, engine="batched")
    assert run.ari() == 1.0
    last = np.zeros(20, int)
    for number, (state, exchanges) in enumerate(zip(run.states[1:], run.asked, strict=True), 1):
        before, replies = run.states[number - 1], exchanges[0][1]
        last[replies.clients] = number
        assert state.updated_in.tolist() == last.tolist()
        rows = torch.from_numpy(before.groups[replies.clients])
        assert torch.equal(state.updates[replies.clients], replies.models - before.models[rows])
        away = np.setdiff1d(np.arange(20), replies.clients)
        assert torch.equal(state.updates[away], before.updates[away])
        made = np.where(
            before.nodes == 0, 0, before.splits[(before.nodes - 1) // 2, 1] if len(before.splits) else 0
        )
        known = last > made[before.groups]
        silent = number - np.maximum(last, made[before.groups])
        mute = 0.5**silent <= 0.001  # asked and silent, with a certainty of 99.9 %
        for leaf, node in enumerate(before.nodes):
            tested = run.logged("update norm", str(node))[number - 1] is not None
            of = before.groups == leaf
            assert tested == (known[of].any() and (known | mute)[of].all())


def test_layercfl_options_that_exclude_each_other_are_refused() -> None:
    both = r"^method\.gamma_max = 0\.5 .*distance = 'l2'.*0 or 'noise'\nmethod\.layers = 'auto' .*'l2'.*last:1$"
    with pytest.raises(BadInput, match=both):
        LayerCFL(distance="l2", gamma_max=0.5)
    for value in ("half", -0.5, 1.5, True, float("nan")):
        with pytest.raises(BadInput) as raised:
            METHODS["layercfl"].bind({"gamma_max": value}, "method")
        (problem,) = raised.value.problems
        assert re.search(rf"^method\.gamma_max = {value!r} .* or 'noise'$", problem)
    for value in (0, 0.13, 1, "noise"):
        assert METHODS["layercfl"].bind({"gamma_max": value})["gamma_max"] == value
    with pytest.raises(BadInput, match="conv layer"):
        train(LayerCFL(layers="feature_skew"), planted("feature"), 1)
