"""EM groups (7.6 of docs/methods/em-groups.md): each client is of one of K groups, drawn by its likelihood."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from coterie.methods import EMGroups
from coterie.runtime.runtime import drive
from tests.federated import Trained, planted, train

both_engines = pytest.mark.parametrize("engine", ["sequential", "batched"])


def likely(run: Trained, models: torch.Tensor, client: int) -> torch.Tensor:
    """What shares a client of a perceptron has of models `[K]`, by the product of its samples' likelihoods."""
    inputs, labels = run.federation.slice(client, "train")
    total = []
    for model in models:
        w1, b1, w2, b2 = (entry.view(model).double() for entry in run.server.layout.entries)
        outputs = (inputs.flatten(1).double() @ w1.T + b1).relu() @ w2.T + b2
        total.append(-cross_entropy(outputs, labels, reduction="sum"))
    return torch.stack(total).softmax(0)


@both_engines
def test_em_groups_7_6_shares_are_likelihoods_of_all_samples(engine: str) -> None:
    run = train(EMGroups(clusters=2, init="plain"), planted("feature", clients=6, samples=20), 1, engine=engine)
    ((_, replies),) = run.asked[0]
    first = EMGroups(clusters=2, init="plain").start(run.server).models
    for client in range(6):
        told = [replies.numbers[f"share{k}"][client] for k in range(2)]
        np.testing.assert_allclose(told, likely(run, first, client), atol=1e-4)


def test_em_groups_7_6_heat_lets_clients_draw_what_is_less_likely() -> None:
    """At a great heat draws are even, whatever is likely; at 1 they are by the shares."""
    drawn = {}
    for heat in (1.0, 1e9):
        method = EMGroups(clusters=2, init="plain", heat=heat, cooling=10**6)
        run = train(method, planted("incongruent", 2, clients=20), 6)
        last = run.asked[-1][-1][1]
        told = np.stack([last.numbers["share0"], last.numbers["share1"]], 1)
        drawn[heat] = float((last.numbers["choice"] != told.argmax(1)).mean())
    assert drawn[1.0] <= 0.1
    assert drawn[1e9] >= 0.25


def test_em_groups_7_6_planted_groups_are_found_and_newcomers_join_them() -> None:
    run = train(EMGroups(clusters=2), planted("incongruent", 2, clients=12), 8)
    assert run.ari() == 1.0
    joined = drive(run.method.newcomer(run.state, np.arange(4), run.server), run.runtime.answer)
    assert joined.groups.tolist() == run.groups()[:4].tolist()
