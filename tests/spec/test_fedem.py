"""FedEM (docs/methods/fedem.md): K models that all clients train together, and mix by shares of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.clients.rules import Train
from coterie.methods import FedEM
from coterie.runs.folder.run_folder import RunFolder
from coterie.runtime.runtime import drive
from coterie.shipping.model.served import trained_model
from tests.federated import Trained, planted, train
from tests.survival import asked

both_engines = pytest.mark.parametrize("engine", ["sequential", "batched"])


def logits(run: Trained, client: int, split: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What each component gives for a client's samples `[K, s, C]`, and their labels."""
    inputs, labels = run.federation.slice(client, split)
    found = []
    for model in run.state.models:
        w1, b1, w2, b2 = (entry.view(model).double() for entry in run.server.layout.entries)
        found.append((inputs.flatten(1).double() @ w1.T + b1).relu() @ w2.T + b2)
    return torch.stack(found), labels


@both_engines
def test_fedem_7_2_a_round_is_an_e_step_and_an_m_step(engine: str) -> None:
    run = train(FedEM(clusters=3), planted("incongruent", 3, clients=6), 3, engine=engine)
    run.states.pop()
    client, before = 4, run.state
    each, labels = logits(run, client, "train")
    likely = (
        each.log_softmax(2)[:, torch.arange(len(labels)), labels]
        + torch.tensor(before.shares[client])[:, None].log()
    ).softmax(0)
    ((_, replies),) = run.asked[2]
    shares = [replies.numbers[f"share{k}"][client] for k in range(3)]
    np.testing.assert_allclose(shares, likely.mean(1), atol=1e-5)
    for k in range(3):
        weighted = Train(
            before.models[k], weights=likely[k].float(), purpose=f"batches of component {k}" if k else "batches"
        )
        trained = asked(run, client, 3, weighted).model
        torch.testing.assert_close(replies.uploads["models"][client, k], trained, atol=1e-5, rtol=0)


@both_engines
def test_fedem_7_2_scores_the_mixture(engine: str) -> None:
    run = train(FedEM(clusters=2), planted("incongruent", 2, clients=6), 8, engine=engine)
    expected = []
    for client in range(6):
        each, labels = logits(run, client, "test")
        mixed = (torch.tensor(run.state.shares[client])[:, None, None] * each.softmax(2)).sum(0)
        expected.append(float((mixed.argmax(1) == labels).double().mean()))
    assert run.accuracy().tolist() == pytest.approx(expected)
    assert run.state.shares.min() > 0
    assert run.ari() == 1.0


def test_fedem_7_2_who_was_away_keeps_its_shares_and_newcomers_find_theirs() -> None:
    run = train(FedEM(clusters=2, init="plain"), planted("incongruent", 2), 3, participation=0.3)
    there = {client for exchanged in run.asked for exchange, _ in exchanged for client in exchange.clients.tolist()}
    assert set(np.flatnonzero(run.groups() >= 0)) == there
    assert len(there) < 20
    before, after = run.states[2].shares, run.states[3].shares
    away = np.setdiff1d(np.arange(20), run.asked[2][0][0].clients)
    np.testing.assert_array_equal(before[away], after[away])
    assert np.isfinite(run.accuracy()).all()  # who has no shares yet takes the component of the smallest loss
    joined = drive(run.method.newcomer(run.state, np.array([3, 6]), run.server), run.runtime.answer)
    assert joined.shares is not None
    for client, shares in zip((3, 6), joined.shares, strict=True):
        each, labels = logits(run, client, "train")
        likely = each.log_softmax(2)[:, torch.arange(len(labels)), labels].softmax(0).mean(1)
        np.testing.assert_allclose(shares, likely, atol=1e-5)
    assert joined.groups.tolist() == joined.shares.argmax(1).tolist()


def test_fedem_7_2_adapts_each_component_and_exports_none(tmp_path: Path) -> None:
    """A mixture adapts where any model would, newcomers too; it is no model that could be used by itself."""
    result = coterie.run(
        coterie.Experiment(
            data={"name": "digits", "split": "rotated(2)", "clients": 8, "samples_per_client": 40},
            method={"name": "fedem", "clusters": 2},
            evaluation={"adapt": {"epochs": 5}},
            run={"rounds": 3, "holdout_clients": 0.25, "folder": str(tmp_path), "workers": 1},
        )
    )
    assert result.summary["adapted_macro_accuracy"] > result.summary["macro_accuracy"]
    with pytest.raises(coterie.BadInput, match="2 models"):
        trained_model(RunFolder(result.folder), client="client 0")
    with pytest.raises(coterie.BadInput, match="2 models"):
        trained_model(RunFolder(result.folder), group=0)


def test_fedem_7_2_says_that_one_component_suits_everybody() -> None:
    run = train(FedEM(clusters=2), planted("incongruent", 2), 2)
    assert run.method.final_warnings(run.state, run.server, 2) == []
    alike = replace(run.state, shares=np.tile([0.4, 0.6], (20, 1)))
    (warning,) = run.method.final_warnings(alike, run.server, 2)
    assert "one of 2 components" in warning
