"""FedGroup (docs/methods/fedgroup.md): groups by the directions of first updates, FedAvg in each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics.pairwise import cosine_similarity

from coterie.grouping.affinity import decomposed_cosines
from coterie.methods import FedAvg, FedGroup, FedProx, Method
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, planted, train
from tests.survival import SIZES, local

MOMENTUM = TRAINING.updated(momentum=0.5, lr_decay=0.9)


@pytest.mark.medium
@pytest.mark.each_once
@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize(("mu", "known"), [(0.0, FedAvg()), (0.1, FedProx(mu=0.1))], ids=["fedavg", "fedprox"])
def test_fedgroup_7_7_of_one_group_is_fedavg(
    engine: str, participation: float, mu: float, known: Method[Any]
) -> None:
    settings: dict[str, Any] = {"training": MOMENTUM, "engine": engine, "participation": participation}
    federation = planted("feature", sizes=SIZES)
    ours = train(FedGroup(clusters=1, mu=mu), federation, 3, **settings)
    theirs = train(known, federation, 3, **settings)
    for one, other in zip(ours.states, theirs.states, strict=True):
        assert torch.equal(one.models, other.model)


def test_fedgroup_7_7_cosines_are_those_with_the_leading_directions() -> None:
    """As scikit-learn's truncated decomposition has them, but for the sign of a direction."""
    updates = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 40)) + 0.5).float()
    exact = TruncatedSVD(3, algorithm="arpack").fit(updates.double().numpy())
    theirs = cosine_similarity(updates.double().numpy(), exact.components_)
    np.testing.assert_allclose(np.abs(decomposed_cosines(updates, 3)), np.abs(theirs), atol=1e-6)
    updates[4] = 0
    assert not decomposed_cosines(updates, 3)[4].any()


@pytest.mark.parametrize("kind", ["feature", "label", "incongruent"])
@pytest.mark.parametrize("groups", [2, 4])
def test_fedgroup_7_7_finds_planted_groups(kind: str, groups: int) -> None:
    assert train(FedGroup(clusters=groups), planted(kind, groups), 1, participation=0.1).ari() == 1.0


@pytest.mark.medium
def test_fedgroup_7_7_others_join_by_their_first_update() -> None:
    """Eight of twenty clients are grouped; the others when they take part, also where answers are lost."""
    run = train(FedGroup(clusters=2, pool=4), planted("incongruent", 2), 18, participation=0.3, client_dropout=0.2)
    counts = [(state.groups >= 0).sum() for state in run.states]
    assert 0 < counts[1] < 20
    assert counts[-1] == 20
    for before, after in zip(run.states[1:], run.states[2:], strict=False):
        settled = before.groups >= 0
        assert (after.groups[settled] == before.groups[settled]).all()
        assert torch.equal(before.updates, after.updates)
    assert run.ari() == 1.0
    runtime = local(run)
    runtime.client_dropout = 0.0
    runtime.begin_round(19)
    joined = drive(run.method.newcomer(run.state, np.array([1, 4, 6]), run.server), runtime.answer)
    assert joined.groups.tolist() == run.groups()[[1, 4, 6]].tolist()


def test_fedgroup_7_7_models_approach_each_other() -> None:
    """In the first round, by weights of `group_lr` over the other model's length."""
    federation = planted("incongruent", 2, clients=8)
    apart, near = (train(FedGroup(clusters=2, group_lr=rate), federation, 1).state.models for rate in (0.0, 0.5))
    for own, other in ((0, 1), (1, 0)):
        weight = 0.5 / apart[other].norm()
        expected = (apart[own] + weight * apart[other]) / (1 + weight)
        torch.testing.assert_close(near[own], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_fedgroup_7_7_bytes(participation: float) -> None:
    """A model each way; one more each way for who is given a group."""
    run = train(FedGroup(clusters=2, pool=4), planted("feature", 2, samples=40), 3, participation=participation)
    one, m = run.server.layout.size * 4, round(20 * participation)
    for number in (1, 2, 3):
        before, after = (run.states[i].groups >= 0 for i in (number - 1, number))
        expected = (m + after.sum() - before.sum()) * one
        assert run.bytes("down", number) == run.bytes("up", number) == expected
