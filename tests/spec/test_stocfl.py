"""StoCFL (docs/methods/stocfl.md): clusters that merge as clients are sampled, beside a common model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.rules import Train
from coterie.grouping.affinity import cosines
from coterie.methods import FedAvg, StoCFL
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, planted, train
from tests.survival import SIZES, asked

MOMENTUM = TRAINING.updated(momentum=0.5, lr_decay=0.9)
both_engines = pytest.mark.parametrize("engine", ["sequential", "batched"])


@pytest.mark.medium
@pytest.mark.each_once
@both_engines
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_stocfl_7_6_of_one_cluster_is_fedavg(engine: str, participation: float) -> None:
    """Merged whatever their cosine, and without a pull; the common model is FedAvg's whatever the clusters."""
    settings: dict[str, Any] = {"training": MOMENTUM, "engine": engine, "participation": participation}
    federation = planted("feature", sizes=SIZES)
    fedavg = train(FedAvg(weights="uniform"), federation, 3, **settings)
    one = train(StoCFL(threshold=-1.0, mu=0.0), federation, 3, **settings)
    many = train(StoCFL(threshold=0.9, mu=0.0), federation, 3, **settings)
    assert len(many.state.models) > 1
    for ours, others, theirs in zip(one.states[1:], many.states[1:], fedavg.states[1:], strict=True):
        assert torch.equal(ours.models, theirs.model)
        assert torch.equal(others.common, theirs.model)


@both_engines
def test_stocfl_7_6_a_round_is_as_in_the_paper(engine: str) -> None:
    run = train(StoCFL(mu=0.5), planted("incongruent", 2, clients=6), 3, engine=engine)
    before, after = run.states[2], run.states[3]
    ((exchange, replies),) = run.asked[2]
    assert len(exchange.clients) == 6
    for client in range(6):
        own = Train(before.models[before.groups[client]], pull=0.5, anchor=before.common[0])
        torch.testing.assert_close(replies.models[client], asked(run, client, 3, own).model, atol=1e-5, rtol=0)
        common = asked(run, client, 3, Train(before.common[0])).model
        torch.testing.assert_close(replies.uploads["common"][client], common, atol=1e-5, rtol=0)
    for k in range(2):
        expected = replies.models[torch.from_numpy(before.groups == k)].mean(0)
        torch.testing.assert_close(after.models[k], expected, atol=1e-6, rtol=0)


def test_stocfl_7_6_clusters_merge_by_the_cosine_of_first_updates() -> None:
    run = train(StoCFL(threshold=0.3), planted("incongruent", 4), 12, participation=0.4)
    assert run.federation.true_groups is not None
    counts = []
    for state in run.states[1:]:
        known = state.groups >= 0
        assert sorted(set(state.groups[known])) == list(range(len(state.models)))
        assert all(len(set(run.federation.true_groups[state.groups == k])) == 1 for k in set(state.groups[known]))
        counts.append(len(state.models))
    assert max(counts) > 4  # clients of one group that were not yet sampled together
    assert run.ari() == 1.0
    first = run.state.moved
    inside = run.federation.true_groups[:, None] == run.federation.true_groups
    assert cosines(first)[~inside].max() < cosines(first)[inside].min()
    assert run.method.final_warnings(run.state, run.server, 12) == []


def test_stocfl_7_6_who_was_never_sampled_has_the_common_model() -> None:
    run = train(StoCFL(), planted("incongruent", 2), 2, participation=0.3)
    never = np.flatnonzero(run.state.groups < 0)
    assert len(never)
    assert torch.equal(run.served()[never], run.state.common.expand(len(never), -1))


def test_stocfl_7_6_newcomers_join_who_is_alike_or_have_the_common_model() -> None:
    run = train(StoCFL(), planted("incongruent", 2), 3)
    joined = drive(run.method.newcomer(run.state, np.array([3, 6]), run.server), run.runtime.answer)
    assert joined.groups.tolist() == run.groups()[[3, 6]].tolist()
    strict = StoCFL(threshold=1.0)
    alone = drive(strict.newcomer(run.state, np.array([3, 6]), run.server), run.runtime.answer)
    assert alone.groups.tolist() == [-1, -1]
    assert torch.equal(alone.models[alone.served], run.state.common.expand(2, -1))


def test_stocfl_7_6_says_that_nobody_or_everybody_was_merged() -> None:
    for threshold, said in ((-1.0, "one group"), (1.0, "every client")):
        run = train(StoCFL(threshold=threshold), planted("incongruent", 2, clients=6), 1)
        (warning,) = run.method.final_warnings(run.state, run.server, 1)
        assert said in warning


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_stocfl_7_6_bytes(participation: float) -> None:
    """Two models each way; one more each way for who is sampled for the first time."""
    run = train(StoCFL(), planted("feature", 2, samples=40), 3, participation=participation)
    one, m = run.server.layout.size * 4, round(20 * participation)
    seen: set[int] = set()
    for number in (1, 2, 3):
        clients = set(run.asked[number - 1][-1][0].clients.tolist())
        expected = (2 * m + len(clients - seen)) * one
        assert run.bytes("down", number) == run.bytes("up", number) == expected
        seen |= clients
