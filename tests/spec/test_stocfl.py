"""StoCFL (docs/methods/stocfl.md): clusters that merge as clients are sampled, beside a common model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.clients.rules import Train
from coterie.grouping.affinity import cosines
from coterie.methods import StoCFL
from coterie.runtime.runtime import drive
from tests.federated import planted, train
from tests.survival import asked

both_engines = pytest.mark.parametrize("engine", ["sequential", "batched"])


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
    for threshold, said in ((-1.0, "all clients"), (1.0, "every client")):
        run = train(StoCFL(threshold=threshold), planted("incongruent", 2, clients=6), 1)
        (warning,) = run.method.final_warnings(run.state, run.server, 1)
        assert warning.startswith(said)
