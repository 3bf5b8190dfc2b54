"""What methods share that look for groups: they find planted ones, place who comes later, and train each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.rules import LocalUpdate
from coterie.grouping.aggregate import group_means
from coterie.methods import (
    CFLGP,
    FLHC,
    FLUX,
    IFCA,
    PACFL,
    FedAvg,
    FedGroup,
    FedSoft,
    FeSEM,
    FeSEMMA,
    Halves,
    Method,
    RobustTKM,
    Scaffold,
)
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.runtime.runtime import drive
from tests.federated import planted, train
from tests.survival import SIZES, local


def of_class(value: object) -> str:
    return type(value).__name__ if isinstance(value, Method) else str(value)


KINDS = [(kind, groups) for kind in ("feature", "label", "incongruent") for groups in (2, 4)]
FOUND: list[tuple[Method[Any], int, float]] = [
    (CFLGP(until=8), 9, 0.5),
    (FedGroup(), 1, 0.1),
    (FLUX(after=1), 2, 0.1),
    (PACFL(), 1, 0.1),
    (FLHC(after=1), 2, 0.5),
    (FLHC(after=1, distance="cosine"), 2, 0.5),
    (Halves(), 1, 1.0),
    (FedSoft(), 4, 0.6),
    (IFCA(init="kmeans"), 3, 1.0),
    (FeSEM(), 2, 0.6),
    (FeSEMMA(), 2, 0.6),
    (RobustTKM(), 1, 1.0),
]
"""The method, in how many rounds, and the share of the clients in one."""


@pytest.mark.medium
@pytest.mark.thinned(3)
@pytest.mark.parametrize(("method", "rounds", "participation"), FOUND, ids=of_class)
@pytest.mark.parametrize(("kind", "groups"), KINDS)
def test_planted_groups_are_found(
    method: Method[Any], rounds: int, participation: float, kind: str, groups: int
) -> None:
    if method.is_given_groups:
        method = type(method)(**{**vars(method), "clusters": groups})
    run = train(method, planted(kind, groups), rounds, participation=participation)
    assert run.ari() == 1.0
    if not isinstance(method, FeSEM):  # says that nobody moved after its K-means
        assert run.method.final_warnings(run.state, run.server, rounds) == []


ONE = [(PACFL(), 1), (FLUX(after=1), 2), (FLHC(after=1), 2)]


@pytest.mark.parametrize(("method", "rounds"), ONE, ids=of_class)
def test_one_population_is_one_group(method: Method[Any], rounds: int) -> None:
    found = [train(method, planted("iid", seed=seed), rounds, seed=seed).groups().max() for seed in range(5)]
    assert found == [0] * 5


ONCE: list[tuple[Method[Any], str, int]] = [
    (Halves(starts=1), "feature", 1),
    (PACFL(), "feature", 1),
    (FedGroup(clusters=2, pool=4), "incongruent", 1),
    (FLHC(after=1), "incongruent", 2),
    (FLUX(after=1), "feature", 2),
    (RobustTKM(clusters=2), "feature", 1),
]
"""The method, how clients differ, and the round in which groups are found."""


@pytest.mark.medium
@pytest.mark.parametrize(("method", "kind", "grouped"), ONCE, ids=of_class)
def test_one_shot_groups_place_late_clients_and_newcomers(method: Method[Any], kind: str, grouped: int) -> None:
    run = train(method, planted(kind, 2), 8, client_dropout=0.3)
    missed = run.states[grouped].groups < 0
    assert 0 < missed.sum() < 20
    for before, after in zip(run.states[grouped:], run.states[grouped + 1 :], strict=False):
        settled = before.groups >= 0
        assert (after.groups[settled] == before.groups[settled]).all()
    assert run.ari() == 1.0
    runtime = local(run)
    runtime.client_dropout = 0.0
    runtime.begin_round(9)
    joined = drive(run.method.newcomer(run.state, np.array([1, 4, 6]), run.server), runtime.answer)
    assert joined.groups.tolist() == run.groups()[[1, 4, 6]].tolist()


@pytest.mark.medium
@pytest.mark.parametrize(("method", "kind", "grouped"), ONCE[:-1], ids=of_class)
def test_one_shot_groups_are_trained_by_fedavg(method: Method[Any], kind: str, grouped: int) -> None:
    run = train(method, planted(kind, 2, sizes=SIZES), 4, participation=0.6)
    runtime = local(run)
    for number in range(grouped + 1, 5):
        before, groups, clients = run.states[number - 1], run.groups(), run.asked[number - 1][-1][0].clients
        runtime.begin_round(number)
        found = runtime.answer(Exchange(clients, LocalUpdate(), {"model": Send(before.models, groups[clients])}))
        assert isinstance(found, Replies)
        expected = group_means(found.models, groups[clients], before.models, found.samples)
        assert torch.equal(run.states[number].models, expected)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (FLHC(after=3), "never clustered"),
        (FLHC(after=1, threshold=1e9), "all clients are one group"),
        (PACFL(threshold=90.0), "degrees apart"),
    ],
    ids=of_class,
)
def test_one_shot_groups_say_why_there_is_one(method: Method[Any], said: str) -> None:
    run = train(method, planted("feature", 2, clients=6), 3)
    (warning,) = run.method.final_warnings(run.state, run.server, 3)
    assert said in warning


@pytest.mark.medium
@pytest.mark.parametrize(
    "method",
    [IFCA(init="kmeans"), FeSEM(), FeSEMMA(), FedAvg(), Scaffold()],
    ids=lambda method: type(method).__name__,
)
def test_newcomers_join_the_group_of_their_kind(method: Method[Any]) -> None:
    """And start from its model."""
    run, clients = train(method, planted("feature"), 4), np.array([1, 6, 11])
    run.runtime.begin_round(9)
    joined = drive(run.method.newcomer(run.state, clients, run.server), run.runtime.answer)
    assert joined.groups.tolist() == run.groups()[clients].tolist()
    assert torch.equal(joined.models, run.method.assignment(run.state, run.server).models)
