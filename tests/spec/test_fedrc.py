"""FedRC (docs/methods/fedrc.md): mixtures whose components are not told apart by how often classes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.methods import FedEM, FedRC
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, Trained, planted, train

both_engines = pytest.mark.parametrize("engine", ["sequential", "batched"])


def likelihoods(run: Trained, state: Any, client: int, shares: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """How likely each of a client's training samples is of each cluster `[K, s]`, and their labels."""
    inputs, labels = run.federation.slice(client, "train")
    found = []
    for model, classes in zip(state.models, state.classes, strict=True):
        w1, b1, w2, b2 = (entry.view(model).double() for entry in run.server.layout.entries)
        logits = (inputs.flatten(1).double() @ w1.T + b1).relu() @ w2.T + b2
        found.append(logits.log_softmax(1)[torch.arange(len(labels)), labels] - classes.double().log()[labels])
    return (torch.stack(found) + torch.tensor(shares)[:, None].log()).softmax(0), labels


@both_engines
def test_fedrc_7_4_likelihoods_are_divided_by_the_shares_of_classes(engine: str) -> None:
    run = train(FedRC(clusters=3), planted("label", 2, clients=6), 4, engine=engine)
    before, after = run.states[3], run.states[4]
    assert (before.classes.amax(1) > 2 * before.classes.amin(1)).any()
    counts = torch.zeros(3, 10, dtype=torch.float64)
    for client in range(6):
        likely, labels = likelihoods(run, before, client, before.shares[client])
        np.testing.assert_allclose(after.shares[client], likely.mean(1), atol=1e-5)
        counts.index_add_(1, labels, likely)
    torch.testing.assert_close(after.classes.double(), counts / counts.sum(1, keepdim=True), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_fedrc_7_4_does_not_part_clients_by_their_labels() -> None:
    """Two groups of clients see other classes and agree on what they mean; FedEM parts them the further."""
    apart = []
    for method in (FedRC(clusters=2, init="plain"), FedEM(clusters=2, init="plain")):
        run = train(method, planted("label", 2), 25, training=TRAINING.updated(epochs=2))
        means = [run.state.shares[group::2].mean(0) for group in (0, 1)]
        apart.append(float(np.abs(means[0] - means[1]).max()))
    assert apart[0] < apart[1] / 2


def test_fedrc_7_4_newcomers_find_their_shares() -> None:
    run = train(FedRC(clusters=2), planted("incongruent", 2), 6, participation=0.5)
    joined = drive(run.method.newcomer(run.state, np.array([3, 6]), run.server), run.runtime.answer)
    assert joined.shares is not None
    for client, shares in zip((3, 6), joined.shares, strict=True):
        likely, _ = likelihoods(run, run.state, client, [0.5, 0.5])
        np.testing.assert_allclose(shares, likely.mean(1), atol=1e-5)
    assert run.federation.true_groups is not None
    assert len(set(joined.groups)) == 2
