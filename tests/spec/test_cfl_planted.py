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
from tests.splitting import PUBLISHED

ALL: list[type[CFL]] = [CFL, LayerCFL, AdaCFL]
each_method = pytest.mark.parametrize("method", ALL)


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
@pytest.mark.thinned(6)
@each_method
@pytest.mark.parametrize("seed", range(4))
def test_iid_clients_are_never_split(method: type[CFL], seed: int) -> None:
    """At ordinary settings, though their model comes to rest and cuts are tried."""
    run = trained(method(), digits("iid", seed=seed), 45)
    assert len(run.state.nodes) == 1
    assert run.state.tests[3] > 0
    assert remark(run).startswith("no groups came about: every cut of ")


@pytest.mark.slow
@pytest.mark.thinned(4)
@each_method
@pytest.mark.parametrize("participation", [1.0, 0.3])
def test_two_incongruent_groups_are_found(method: type[CFL], participation: float) -> None:
    """Without a decay of the learning rate, and where few take part in a round."""
    run = train(method(), planted("incongruent", 2), 25, participation=participation)
    assert run.ari() == 1.0
    assert run.method.final_warnings(run.state, run.server, 25) == []


@pytest.mark.medium
@pytest.mark.thinned(6)
@pytest.mark.parametrize("split", ["iid + permuted-labels(4)", "iid + rotated(4)"])
@pytest.mark.parametrize(("method", "participation"), [(CFL, 1.0), (LayerCFL, 1.0), (LayerCFL, 0.3)])
def test_four_groups_are_found(method: type[CFL], participation: float, split: str) -> None:
    run = trained(method(), digits(split), 40, participation)
    assert run.ari() == 1.0


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


def value_of(sentence: str, setting: str) -> float:
    found = re.search(rf"method\.{setting} (?:=|above|below) ([\d.e-]+)", sentence)
    assert found is not None
    return float(found[1])


@pytest.mark.slow
def test_a_leaf_that_never_rests_says_how_near_it_came() -> None:
    """LayerCFL's own thresholds at a constant learning rate; the value that it names does split."""
    federation, settings = planted("incongruent", 4), PUBLISHED | {"layers": "all", "t_min": 5}
    run = train(LayerCFL(**settings), federation, 15)
    sentence = remark(run)
    assert "the leaf never came to rest" in sentence
    value = value_of(sentence, "eps1_frac")
    assert 0.1 < value < 1
    again = train(LayerCFL(**settings | {"eps1_frac": value * 1.01, "ratio": 0.0}), federation, 15)
    assert len(again.state.nodes) > 1


@pytest.mark.slow
def test_a_relative_threshold_says_which_ratio_would_do() -> None:
    federation = planted("incongruent", 2)
    run = train(CFL(ratio=50.0), federation, 8)
    again = train(CFL(ratio=value_of(remark(run), "ratio") * 0.99), federation, 8)
    assert len(run.state.nodes) == 1
    assert len(again.state.nodes) == 2


@pytest.mark.parametrize(
    ("settings", "participation", "words"),
    [
        ({"t_min": 9}, 1.0, "no leaf is tested before round 9; method.t_min = 6 or less would have tested it"),
        ({"stale": 0}, 0.5, r"known in too few rounds; raise run.participation, .*, or raise method.stale = 0$"),
        (
            {"eps1": 0.0},
            1.0,
            r"rest: with eps1 = 0 none does; method.eps1 above 0\.\d+ would have passed this test$",
        ),
        (
            {"eps1_frac": 0.0},
            1.0,
            r"rest: with eps1_frac = 0 none does; method.eps1_frac above \d.* would have passed this test$",
        ),
        ({"eps1": 1e-3}, 1.0, r"shorter than .* times eps1; method.eps1 above .* would have passed this test$"),
        (
            {"eps2": 1e3},
            1.0,
            r"the leaf's model suited all members: .*; method.eps2 = .* would have passed this test$",
        ),
        (
            {"gamma_max": 1.0},
            1.0,
            r"every cut of \d was refused: .* gamma_max = 1.0, .* such as 0, would have split them$",
        ),
    ],
)
def test_the_remark_names_the_test_that_never_fired(
    settings: dict[str, Any], participation: float, words: str
) -> None:
    run = train(
        CFL(**settings), planted("incongruent", 2, clients=8), 6, training=TRAINING, participation=participation
    )
    assert re.search(words, remark(run))


@pytest.mark.medium
def test_a_threshold_of_nothing_names_one_that_would_do() -> None:
    """With eps1 = 0 the shortest mean update is named as a length, and a little more than that does split."""
    federation = planted("incongruent", 2, clients=8)
    value = value_of(remark(train(CFL(eps1=0.0), federation, 8)), "eps1")
    assert len(train(CFL(eps1=value * 1.01, eps2=0.0), federation, 8).state.nodes) > 1


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
    assert remark(run).endswith("; a client of one training sample has none")


def test_two_clients_are_not_told_that_more_should_take_part() -> None:
    sentence = remark(train(CFL(), planted("incongruent", 2, clients=2), 6))
    assert sentence == "no groups came about: a leaf of one or two clients is never cut, and there are no more"
