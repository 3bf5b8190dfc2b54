"""Groups with private and with common layers (docs/methods/grouped-layers.md)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from coterie.errors import BadInput
from coterie.grouping.aggregate import group_means, mean
from coterie.methods import FedAvg, FedPer, GroupedLayers
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, planted, train

FIVE = TRAINING.updated(epochs=5)


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_before_groups_are_found_it_is_fedavg_or_fedper(participation: float) -> None:
    federation = planted("feature", clients=8, sizes=[40 + 3 * i for i in range(8)])
    for ours, theirs in (
        (GroupedLayers(after=9), FedAvg()),
        (GroupedLayers(after=9, common="first:1"), FedAvg()),
        (GroupedLayers(after=9, private="last:1"), FedPer(private=1)),
    ):
        own, other = (train(method, federation, 3, participation=participation) for method in (ours, theirs))
        for state, its in zip(own.states, other.states, strict=True):
            assert torch.equal(state.models, its.model)
        assert own.ledgers == other.ledgers
        assert own.accuracy().tolist() == other.accuracy().tolist()


@pytest.mark.each_once
@pytest.mark.parametrize("layers", [{}, {"private": "last:1"}, {"common": "last:1"}, {"private": "first:1"}])
@pytest.mark.parametrize("kind", ["feature", "incongruent"])
def test_planted_groups_are_found(layers: dict[str, Any], kind: str) -> None:
    run = train(GroupedLayers(clusters=2, after=2, **layers), planted(kind, 2, clients=8), 3, training=FIVE)
    assert [len(state.models) for state in run.states] == [1, 1, 2, 2]
    assert run.ari() == 1.0


def test_each_layer_is_averaged_where_it_belongs() -> None:
    """The first is everybody's, the second its group's: means by samples of what was uploaded."""
    federation = planted("feature", 2, clients=8, sizes=[40 + 3 * i for i in range(8)])
    run = train(GroupedLayers(clusters=2, after=1, common="first:1"), federation, 3, training=FIVE)
    first, last = run.server.layout.first_layers(1), run.server.layout.last_layers(1)
    for before, after, ((_, replies),) in zip(run.states, run.states[1:], run.asked, strict=False):
        everybodys = mean(replies.models, before.models[:1], replies.samples)
        assert torch.equal(first.take(after.models), first.take(everybodys).expand(2, -1))
        groups = group_means(replies.models, after.groups, after.models, replies.samples)
        assert torch.equal(last.take(after.models), last.take(groups))
    assert not torch.equal(last.take(run.state.models[0]), last.take(run.state.models[1]))
    kept = train(GroupedLayers(clusters=2, after=1, private="last:1"), federation, 3, training=FIVE)
    for ((_, replies),) in kept.asked:
        assert last.take(replies.models).isnan().all()
    assert kept.bytes("down", 3) == kept.bytes("up", 3) == 8 * 4 * first.size


def test_late_clients_and_newcomers_join() -> None:
    federation = planted("incongruent", 2, clients=10)
    method = GroupedLayers(clusters=2, after=1, private="last:1")
    run = train(method, federation, 6, training=FIVE, participation=0.5)
    assert (run.states[1].groups == -1).sum() == 5
    known = run.state.known
    assert known.sum() > 7
    assert (run.state.groups[~known] == -1).all()
    truth = np.arange(10) % 2
    assert all(len(set(truth[known & (run.state.groups == k)])) == 1 for k in (0, 1))
    run.runtime.begin_round(7)
    joined = drive(method.newcomer(run.state, np.array([3, 4]), run.server), run.runtime.answer)
    for client, group in zip((3, 4), joined.groups.tolist(), strict=True):
        assert set(truth[known & (run.state.groups == group)]) == {truth[client]}
    affinity = method.affinity(run.state, run.server, np.flatnonzero(known))
    assert affinity is not None
    assert affinity.matrix.shape == (known.sum(), known.sum())
    assert method.affinity(run.states[1], run.server, run.server.everyone) is None


def test_what_it_refuses_and_warns_of() -> None:
    federation = planted("feature", clients=4)
    whole: list[dict[str, Any]] = [
        {"private": "all"},
        {"common": "all"},
        {"private": "last:1", "common": "first:1"},
    ]
    for layers in whole:
        with pytest.raises(BadInput, match="layer"):
            train(GroupedLayers(**layers), federation, 0)
    with pytest.raises(BadInput, match=r"method\.private = 'last:3'"):
        train(GroupedLayers(private="last:3"), federation, 0)
    method = GroupedLayers(after=5)
    server = train(method, federation, 0).server
    (warning,) = method.warnings(server, 4)
    assert re.search(r"5 \(after\).*4$", warning)
    assert method.warnings(server, 5) == []
    assert method.amounts_to(server.layout, 4)
    assert not method.amounts_to(server.layout, 5)
