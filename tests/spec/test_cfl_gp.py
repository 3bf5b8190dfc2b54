"""CFL-GP (docs/methods/cfl-gp.md): clusters by clients' updates of several models, gathered over rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.clients.rules import LocalUpdate
from coterie.grouping.aggregate import group_means
from coterie.methods import CFLGP
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.runtime.runtime import drive
from tests.federated import planted, train
from tests.survival import SIZES, local


@pytest.mark.medium
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_cfl_gp_7_8_profiles_are_mean_updates_of_each_model(participation: float) -> None:
    """Models 0, 1, 0 are sent to everybody in rounds 1, 3 and 5."""
    run = train(CFLGP(clusters=2), planted("incongruent", 2, sizes=SIZES), 6, participation=participation)
    trainable, runtime, updates = run.server.layout.trainable, local(run), []
    for number, which in ((1, 0), (3, 1), (5, 0)):
        start = run.states[number - 1].models[which]
        runtime.begin_round(number)
        everyone = run.server.everyone
        replies = runtime.answer(Exchange(everyone, LocalUpdate(), {"model": Send.same(start, everyone)}))
        assert isinstance(replies, Replies)
        updates.append(trainable.take(replies.models - start))
    torch.testing.assert_close(run.state.profiles[:, 0], (updates[0] + updates[2]) / 2, atol=1e-6, rtol=0)
    assert torch.equal(run.state.profiles[:, 1], updates[1])
    assert run.state.visits.tolist() == [[2, 1]] * 20


@pytest.mark.medium
def test_cfl_gp_7_8_trains_each_cluster_from_its_own_model() -> None:
    run = train(CFLGP(clusters=2), planted("incongruent", 2, sizes=SIZES), 4, participation=0.6)
    runtime = local(run)
    for number in (2, 3, 4):
        before, groups = run.states[number - 1], run.states[number].groups
        clients = run.server.everyone if number == 3 else run.asked[number - 1][-1][0].clients
        runtime.begin_round(number)
        trained = runtime.answer(Exchange(clients, LocalUpdate(), {"model": Send(before.models, groups[clients])}))
        assert isinstance(trained, Replies)
        assert torch.equal(run.states[number].models, group_means(trained.models, groups[clients], before.models))


@pytest.mark.medium
def test_cfl_gp_7_8_clients_that_were_away_are_placed() -> None:
    """By their loss until they have a profile, and one who lacks a model's update by the others that it has."""
    run = train(CFLGP(clusters=2, every=3), planted("incongruent", 2), 9, client_dropout=0.3)
    missed = run.states[1].groups < 0
    assert 0 < missed.sum() < 20
    assert (run.states[2].groups[missed] >= 0).any()
    assert ((run.state.visits == 0).any(1) & run.state.visits.any(1)).any()
    assert run.ari() == 1.0
    runtime = local(run)
    runtime.client_dropout = 0.0
    runtime.begin_round(10)
    joined = drive(run.method.newcomer(run.state, np.array([1, 4, 6]), run.server), runtime.answer)
    assert joined.groups.tolist() == run.groups()[[1, 4, 6]].tolist()


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_cfl_gp_7_8_bytes(participation: float) -> None:
    """A model each way; when clients are grouped from everybody, and one more from those of other clusters."""
    run = train(CFLGP(clusters=2), planted("incongruent", 2, samples=40), 5, participation=participation)
    one, m, groups = run.server.layout.size * 4, round(20 * participation), run.groups()
    clients = {1: 20, 2: m, 3: 20 + (groups != 1).sum(), 4: m, 5: 20 + (groups != 0).sum()}
    for number, count in clients.items():
        assert run.bytes("down", number) == run.bytes("up", number) == count * one
