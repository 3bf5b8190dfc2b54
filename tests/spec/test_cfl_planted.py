"""CFL, LayerCFL and AdaCFL at their defaults: planted groups are found, none are made up, and a run says why."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from coterie.clients.data.federation import Federation, build
from coterie.clients.rules import Training
from coterie.methods.adacfl import AdaCFL
from coterie.methods.cfl import CFL
from coterie.methods.layercfl import LayerCFL
from tests.federated import TRAINING, Trained, planted, train

ALL: list[type[CFL]] = [CFL, LayerCFL, AdaCFL]


def digits(split: str, clients: int = 20, seed: int = 0, sizes: tuple[int, ...] = ()) -> Federation:
    whole = build("digits", split, clients, seed, validation=0.1, test=0.2, min_samples=5, public=0, usual_public=0)
    if not sizes:
        return whole
    groups = len(sizes)
    return whole.reordered(np.array([groups * i + g for g, size in enumerate(sizes) for i in range(size)]))


def trained(method: CFL, federation: Federation, rounds: int = 40, participation: float = 1.0) -> Trained:
    """At the settings of training that a run has by default."""
    options: dict[str, Any] = {"training": Training(), "network": "mlp", "engine": "batched"}
    return train(method, federation, rounds, participation=participation, **options)


def remark(run: Trained) -> str:
    (sentence,) = run.method.final_warnings(run.state, run.server, len(run.states) - 1)
    return str(sentence)


@pytest.mark.medium
@pytest.mark.thinned(3)
@pytest.mark.parametrize(("method", "seed"), [(CFL, 0), (LayerCFL, 1), (AdaCFL, 2)])
def test_iid_clients_are_never_split(method: type[CFL], seed: int) -> None:
    """At ordinary settings, though their model comes to rest and cuts are tried."""
    run = trained(method(), digits("iid", seed=seed), 45)
    assert len(run.state.nodes) == 1
    assert run.state.tests[3] > 0
    assert "every cut" in remark(run)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "participation"), [(CFL, 1.0), (AdaCFL, 1.0), (LayerCFL, 0.3)])
def test_two_incongruent_groups_are_found(method: type[CFL], participation: float) -> None:
    """Without a decay of the learning rate, and where few take part in a round."""
    run = train(method(), planted("incongruent", 2), 25, participation=participation)
    assert run.ari() == 1.0
    assert run.method.final_warnings(run.state, run.server, 25) == []


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("method", "participation", "split"),
    [
        (CFL, 1.0, "iid + permuted-labels(4)"),
        (LayerCFL, 1.0, "iid + rotated(4)"),
        (LayerCFL, 0.3, "iid + permuted-labels(4)"),
    ],
)
def test_four_groups_are_found(method: type[CFL], participation: float, split: str) -> None:
    run = trained(method(), digits(split), 40, participation)
    assert run.ari() == 1.0


@pytest.mark.medium
@pytest.mark.parametrize("sizes", [(6, 6), (9, 3)])
def test_two_groups_of_twelve_clients_are_parted(sizes: tuple[int, int]) -> None:
    """A cut that the test on halves can hardly tell from chance, for there are few ways to pair so few clients."""
    options: dict[str, Any] = {"training": Training(lr=0.5), "network": "mlp", "engine": "batched"}
    for seed in range(3):
        federation = digits("iid + rotated(2)", 2 * max(sizes), seed, sizes)
        assert train(CFL(), federation, 14, **options).ari() == 1.0


@pytest.mark.slow
def test_four_groups_of_twelve_are_found() -> None:
    """Where every cut is accepted, groups are cut up as well."""
    federation = planted("incongruent", 4, clients=48, samples=60)
    assert train(LayerCFL(), federation, 24).ari() == 1.0
    assert len(train(LayerCFL(gamma_max=0.0), federation, 24).state.nodes) > 4


@pytest.mark.slow
def test_groups_of_unequal_sizes_are_found() -> None:
    """12, 6, 3 and 1 clients of 26 samples; the last four are too few to be told apart (D9)."""
    run = trained(LayerCFL(), digits("iid + permuted-labels(4)", 48, sizes=(12, 6, 3, 1)))
    assert run.groups().tolist() == [0] * 12 + [1] * 6 + [2] * 4


@pytest.mark.medium
def test_a_leaf_that_never_rests_says_how_near_it_came() -> None:
    """The setting and how many times eps1; so many times the setting, and a little more, does split."""
    federation = planted("incongruent", 2, clients=8)
    for settings, name, of in (
        ({"eps1_frac": 0.1}, "eps1_frac", 1),
        ({"eps1": 1e-3}, "eps1", 1),
        ({}, "ratio", -1),
    ):
        given: dict[str, Any] = {"ratio": 50.0, **settings}
        said = remark(train(CFL(**given), federation, 8))
        found = re.search(r"shorter than ([\d.e+-]+) times eps1 \(method\.(\w+)\)$", said)
        assert found is not None
        assert found[2] == name
        enough = given[name] * (float(found[1]) * 1.01) ** of
        again = train(CFL(**given | {name: enough} | ({"eps2": 0.0} if name != "ratio" else {})), federation, 8)
        assert len(again.state.nodes) > 1


@pytest.mark.parametrize(
    ("settings", "participation", "words"),
    [
        ({"t_min": 9}, 1.0, r" 9 \(method\.t_min\)$"),
        ({}, 0.1, r"run\.participation.* run\.client_dropout$"),
        ({"eps1": 0.0}, 1.0, r"inf times .*\(method\.eps1\)$"),
        ({"eps2": 1e3}, 1.0, r"0\.\d+ times .*\(method\.eps2\)$"),
        ({"gamma_max": 1.0}, 1.0, r"cut of \d .* 0\.\d+ times method\.gamma_max = 1$"),
    ],
)
def test_the_remark_names_the_test_that_never_fired(
    settings: dict[str, Any], participation: float, words: str
) -> None:
    run = train(
        CFL(**settings), planted("incongruent", 2, clients=8), 6, training=TRAINING, participation=participation
    )
    assert re.search(words, remark(run))


TESTED: dict[str, Any] = {"t_min": 1, "eps1_frac": 2.0, "ratio": 0.0}
"""Every leaf of which all updates are known passes both thresholds."""


def questions(run: Trained) -> int:
    """In how many rounds members were asked to train on halves."""
    return sum(len(exchanges) > 1 for exchanges in run.asked)


def test_members_are_asked_who_do_not_take_part_in_the_round() -> None:
    """Three of ten would tell nothing: the whole leaf trains on halves (D16)."""
    run = train(CFL(**TESTED), planted("incongruent", 2, clients=10), 25, participation=0.3)
    assert any(len(exchanges) > 1 and len(exchanges[-1][0].clients) == 10 for exchanges in run.asked)
    assert run.ari() == 1.0


def test_where_too_few_have_halves_nothing_is_refused() -> None:
    """Six of eight have one sample: nobody is asked, and that is no refusal (D16)."""
    run = train(CFL(**TESTED), planted("incongruent", 2, clients=8, sizes=[40] * 2 + [1] * 6), 4)
    assert questions(run) == 0
    assert run.state.tests[3] == run.state.until[0] == 0
    assert run.state.closest[2] == 0
    assert "4 members" in remark(run)


def test_two_clients_are_not_told_that_more_should_take_part() -> None:
    sentence = remark(train(CFL(), planted("incongruent", 2, clients=2), 6))
    assert "participation" not in sentence
