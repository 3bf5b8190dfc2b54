"""Halves (docs/methods/halves.md): groups by a test, as many as there are, and FedAvg in each of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from coterie.methods import FedAvg, Halves
from tests.federated import TRAINING, grouped, planted, train
from tests.survival import SIZES

MOMENTUM = TRAINING.updated(momentum=0.5, lr_decay=0.9)


@pytest.mark.medium
@pytest.mark.each_once
@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_halves_of_one_population_are_fedavg(engine: str, participation: float) -> None:
    federation = planted("iid", sizes=SIZES)
    settings: dict[str, Any] = {"training": MOMENTUM, "engine": engine, "participation": participation}
    ours = train(Halves(starts=1), federation, 3, **settings)
    fedavg = train(FedAvg(), federation, 3, **settings)
    assert ours.state.p > 0.05
    for one, other in zip(ours.states, fedavg.states, strict=True):
        assert torch.equal(one.models, other.model)
    (warning,) = ours.method.final_warnings(ours.state, ours.server, 3)
    assert re.search(r"one group: .*\(p = 0\.", warning)


@pytest.mark.medium
def test_halves_find_groups_of_different_sizes() -> None:
    assert train(Halves(), grouped("feature", (10, 6, 4)), 1).ari() == 1.0


@pytest.mark.medium
@pytest.mark.parametrize(("differing", "models"), [("together", 1), ("alone", 10)])
def test_halves_where_everybody_differs(differing: Any, models: int) -> None:
    federation = planted("label", 10, clients=10)
    run = train(Halves(differing=differing, alpha=0.2), federation, 2)
    assert run.state.all_differ
    assert len(run.state.models) == models
    (warning,) = run.method.final_warnings(run.state, run.server, 2)
    assert "(p = 0.001)" in warning


def test_halves_too_few_answers_are_asked_again() -> None:
    run = train(Halves(starts=1), planted("feature", 2, clients=5, samples=20), 3, client_dropout=0.8)
    untested = [state.p is None for state in run.states]
    assert untested[1]
    asked = [len(asked) for asked in run.asked]
    assert all(count == 2 for count, waiting in zip(asked, untested, strict=False) if waiting)


@pytest.mark.parametrize(("clients", "samples"), [(3, 40), (8, 1)])
def test_halves_of_too_few_are_one_group_at_once(clients: int, samples: int) -> None:
    run = train(Halves(starts=1), planted("feature", 2, clients=clients, samples=samples), 2)
    fedavg = train(FedAvg(), planted("feature", 2, clients=clients, samples=samples), 2)
    assert run.state.p == 1.0
    assert torch.equal(run.state.models, fedavg.state.model)
    (warning,) = run.method.warnings(run.server, 2)
    assert ("3 clients" in warning) == (clients == 3)
