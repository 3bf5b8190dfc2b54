"""Models that are made without a fold, and scored on it: nothing of a fold is in what it scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.data.federation import Federation
from coterie.clients.rules.client import Client
from coterie.clients.rules.fold import FOLDS, OPTIONS, FoldScores, FoldUpdate, fold_rows
from coterie.clients.rules.half_data import HalfDirections
from coterie.clients.rules.rule import Rule
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.randomness import stream
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from tests.federated import TRAINING, planted, without_client


def client(samples: int, number: int = 0) -> Client:
    unused: Any = None
    return Client(number, 1, samples, 0, unused, TRAINING, {}, unused)


def ask(federation: Federation, rule: Rule, engine: Any = "sequential") -> Replies:
    """What all clients answer who are sent the initial model, and for that of their group as well."""
    spec = EngineSpec("planted-perceptron", {}, federation.features, federation, TRAINING, 0, engine)
    everyone = np.arange(federation.n)
    runtime = LocalRuntime(spec, federation.samples, 0.0, 1, None)
    runtime.begin_round(1)
    send = {"model": Send.same(spec.build().initial, everyone)}
    if isinstance(rule, FoldScores) and rule.grouped:
        send["group"] = send["model"]
    replies = runtime.answer(Exchange(everyone, rule, send))
    assert isinstance(replies, Replies)
    return replies


def with_other_labels(federation: Federation, rows: np.ndarray) -> Federation:
    labels = federation.labels.clone()
    labels[torch.from_numpy(rows)] = (labels[torch.from_numpy(rows)] + 1) % federation.classes
    return replace(federation, labels=labels)


@pytest.mark.parametrize("samples", [1, 2, 3, 41, 100])
def test_folds_are_parts_of_the_two_halves(samples: int) -> None:
    folds = [fold_rows(client(samples), 20, fold) for fold in range(FOLDS)]
    together = np.concatenate(folds)
    held = min(20, samples // 2)
    assert len(np.unique(together)) == len(together) == 2 * held
    order = stream(0, "halves", 0, 1).permutation(samples)  # as HalfDirections draws it
    for half in (0, 1):
        expected = np.sort(order[held * half : held * (half + 1)])
        np.testing.assert_array_equal(np.sort(np.concatenate(folds[2 * half : 2 * half + 2])), expected)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_labels_of_a_fold_change_no_model_that_is_made_without_it(engine: str) -> None:
    federation = planted(clients=2, samples=40)
    rows = fold_rows(client(40), 16, 1)
    changed = with_other_labels(federation, int(federation.bounds[0, 0]) + rows)
    one, other = (ask(f, FoldUpdate(16, 1), engine).models for f in (federation, changed))
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    one, other = (ask(f, FoldUpdate(16, 0), engine).models for f in (federation, changed))
    assert not torch.equal(one[0], other[0])


def test_labels_of_a_fold_change_its_scores_alone() -> None:
    """With every label of the fold another one, what was right is wrong: no model has seen them."""
    federation = planted(clients=1, samples=60, groups=1)
    rows = fold_rows(client(60), 30, 2)
    changed = with_other_labels(federation, rows)
    scores = FoldScores(30, 2, passes=20, tuning=5, grouped=True)
    one, other = (ask(f, scores).uploads["moments"][0] for f in (federation, changed))
    assert one[0, 0] == other[0, 0] == len(rows) == 15
    assert (one[0, 1:] + other[0, 1:] <= 1 + 1e-6).all()
    assert one[0, 1 + OPTIONS.index("local")] > 0.7


def test_moments_are_those_of_scores_of_single_samples() -> None:
    (moments,) = ask(planted(clients=1, samples=40), FoldScores(20, 0)).uploads["moments"].double()
    assert moments.shape == (6, 6)
    means, spread = moments[0, 1:], moments[1:, 1:]
    torch.testing.assert_close(spread.diagonal(), means * (1 - means))  # of 0 and 1
    torch.testing.assert_close(moments[1:, 0], torch.zeros(5, dtype=torch.float64))


def test_a_client_of_a_single_sample_scores_nothing() -> None:
    federation = without_client(planted(clients=2, samples=40), 1)
    assert (ask(federation, FoldScores(20, 0)).uploads["moments"][0] == 0).all()
    assert ask(federation, FoldUpdate(20, 0)).models.isfinite().all()


def test_halves_that_are_compared_are_those_that_are_scored() -> None:
    """Directions of a half do not change with the labels of a fold in the other half."""
    federation = planted(clients=1, samples=40)
    changed = with_other_labels(federation, fold_rows(client(40), 20, 3))
    one, other = (ask(f, HalfDirections(20)).uploads for f in (federation, changed))
    assert torch.equal(one["first"], other["first"])
    assert not torch.equal(one["second"], other["second"])
