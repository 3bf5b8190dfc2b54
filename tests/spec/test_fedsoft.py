"""FedSoft (docs/methods/fedsoft.md): own models under pulls to K cluster models, by shares of the samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.rules import Train
from coterie.methods import FedSoft
from coterie.runtime.runtime import drive
from tests.federated import Trained, planted, train
from tests.survival import asked, kept

both_engines = pytest.mark.parametrize("engine", ["sequential", "batched"])


def find_shares(run: Trained, state: Any, client: int) -> Any:
    """For which share of a client's training samples each cluster model has the smallest loss `[K]`."""
    inputs, labels = run.federation.slice(client, "train")
    losses = []
    for model in state.models:
        w1, b1, w2, b2 = (entry.view(model).double() for entry in run.server.layout.entries)
        logits = (inputs.flatten(1).double() @ w1.T + b1).relu() @ w2.T + b2
        losses.append(-logits.log_softmax(1)[torch.arange(len(labels)), labels])
    nearest = torch.stack(losses).argmin(0)
    counts = np.bincount(nearest.numpy(), minlength=len(state.models))
    return np.maximum(counts / len(labels), 1e-4)


@both_engines
def test_fedsoft_7_5_a_round_is_as_in_the_paper(engine: str) -> None:
    run = train(FedSoft(clusters=3, lam=0.5, init="plain"), planted("incongruent", 3, clients=6), 3, engine=engine)
    before, after = run.states[2], run.states[3]
    ((_, replies),) = run.asked[2]
    ((_, earlier),) = run.asked[1]
    for client in range(6):
        np.testing.assert_allclose(after.shares[client], find_shares(run, before, client), atol=1e-6)
        u = torch.tensor(after.shares[client])
        anchor = ((u / u.sum()) @ before.models.double()).float()
        alone = Train(earlier.models[client], pull=0.5 * float(u.sum()), anchor=anchor)
        torch.testing.assert_close(replies.models[client], asked(run, client, 3, alone).model, atol=1e-5, rtol=0)
    weights = torch.tensor(after.shares * run.federation.samples[:, None])
    means = (weights / weights.sum(0)).T @ replies.models.double()
    torch.testing.assert_close(after.models.double(), means, atol=1e-6, rtol=0)


def test_fedsoft_7_5_shares_are_found_in_every_second_round() -> None:
    run = train(FedSoft(clusters=2, init="plain"), planted("incongruent", 2), 5)
    changed = [not np.array_equal(run.states[t].shares, run.states[t + 1].shares) for t in range(5)]
    assert changed[0]
    assert not changed[1]
    assert not changed[3]


@pytest.mark.medium
@pytest.mark.parametrize(("kind", "groups"), [("feature", 2), ("feature", 4), ("incongruent", 4)])
def test_fedsoft_7_5_finds_planted_groups_and_serves_own_models(kind: str, groups: int) -> None:
    run = train(FedSoft(clusters=groups), planted(kind, groups), 12, participation=0.6)
    assert run.ari() == 1.0
    for model, served in zip(kept(run, "model"), run.served(), strict=True):
        assert torch.equal(served, run.server.initial(0) if model is None else model)


def test_fedsoft_7_5_newcomers_start_from_the_mean_by_their_shares() -> None:
    run = train(FedSoft(clusters=2), planted("incongruent", 2), 8)
    joined = drive(run.method.newcomer(run.state, np.array([3, 6]), run.server), run.runtime.answer)
    for client, row in zip((3, 6), joined.served, strict=True):
        u = find_shares(run, run.state, client)
        expected = torch.tensor(u / u.sum()) @ run.state.models.double()
        torch.testing.assert_close(joined.models[row].double(), expected, atol=1e-6, rtol=0)
    assert joined.groups.tolist() == run.groups()[[3, 6]].tolist()
