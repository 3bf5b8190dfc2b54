"""Which methods a diagnosis names: those that suit what pays, that the data allow, with settings that run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie.advice.diagnose.advice import Suggestion, predict_costs, suggest
from coterie.advice.diagnose.diagnosis import Diagnosis
from coterie.advice.diagnose.kinds import Kinds
from coterie.advice.diagnose.pay import Pay, weigh
from coterie.clients.rules.fold import OPTIONS
from coterie.runs.schema.experiment import Experiment, check
from tests.advice.diagnose.test_diagnose import some
from tests.advice.diagnose.test_pay import moments

ASKED = Experiment(data={"name": "digits", "clients": 8}, method={"name": "ifca", "clusters": 5})


def pay(best: str) -> Pay:
    scores = [0.5 + 0.3 * (option == best) for option in OPTIONS]
    clients, groups = np.array(list("abcde"), dtype=object), np.array([0, 0, 1, 1, 2])
    found = weigh(moments([scores] * 5, options=OPTIONS), "accuracy", clients, groups)
    assert found is not None
    assert found.best == best
    return found


def names(diagnosis: Diagnosis, asked: Experiment = ASKED) -> list[str]:
    found = suggest(diagnosis, asked)
    for suggestion in found:
        check(suggestion.experiment(asked))
    return [suggestion.method for suggestion in found]


@pytest.mark.parametrize(
    ("best", "methods"),
    [
        ("group", ["halves", "fesem", "fedcps"]),
        ("group-tuned", ["halves", "fesem", "fedcps"]),
        ("tuned", ["fedavg", "partial-pooling", "fedrep"]),
        ("personal", ["ditto", "partial-pooling", "fedrep"]),
        ("constants", ["partial-pooling", "fedavg", "fedrep"]),
        ("local", ["local-only", "ditto", "fedrep"]),
        ("global", ["fedavg", "fedprox", "ditto"]),
    ],
)
def test_what_pays_decides(best: str, methods: list[str]) -> None:
    assert names(some(pay=pay(best))) == methods


def test_settings_are_those_that_were_found() -> None:
    found = suggest(some(pay=pay("group")), ASKED)
    assert found[0].settings == {"training.epochs": 5, "method.alpha": 0.05}
    assert found[1].settings == {"training.epochs": 5, "method.clusters": 3}
    assert "+30.0 points" in found[0].reason
    made = found[1].experiment(ASKED)
    assert made.method.settings["clusters"] == 3
    assert made.training.epochs == 5
    longer = ASKED.updated({"training.epochs": 7})
    assert "training.epochs" not in suggest(some(pay=pay("group")), longer)[0].settings
    tuned = suggest(some(pay=pay("group-tuned")), ASKED)[0].experiment(ASKED)
    assert tuned.evaluation.adapt is not None


def test_without_gains_the_structure_and_its_kind_decide() -> None:
    one = some()
    labels = Kinds(5, None, ("labels",), 60, 60, "classes")
    assert names(one)[0] == "halves"
    assert names(replace(one, kinds=labels))[0] == "fedavg"
    assert names(replace(one, kinds=labels))[1:] == ["partial-pooling", "fedrep"]
    assert names(replace(one, all_differ=True))[1:] == ["partial-pooling", "fedrep"]
    assert names(replace(one, structure=replace(one.structure, p=0.5))) == ["fedavg"]


def test_where_one_group_alone_gains_its_method_is_named_beside_one_model_for_all() -> None:
    """Two of twelve clients gain a quarter by a model of their group, and the others lose a little."""
    most, few = [0.9, 0.85, 0.85, 0.8, 0.85, 0.84], [0.6, 0.6, 0.6, 0.6, 0.85, 0.8]
    scores = [most] * 10 + [few, [*few[:4], 0.84, 0.8]]
    who, groups = np.array([f"c{i}" for i in range(12)], dtype=object), np.array([0] * 10 + [1] * 2)
    weighed = weigh(moments(scores, samples=400), "accuracy", who, groups)
    assert weighed is not None
    assert (weighed.best, weighed.weighed) == ("global", "group")
    (paying,) = weighed.paying
    assert (paying.group, paying.clients) == (1, 2)
    assert "group 1 (2 clients) gains +24.5 points" in weighed.sentences()[0]
    found = suggest(some(pay=weighed), ASKED)
    assert [one.method for one in found] == ["fedavg", "halves", "fedprox"]
    assert "group 1 (2 clients) gains" in found[1].reason
    assert not pay("global").paying


def test_few_samples_have_no_layers_of_their_own() -> None:
    assert "fedrep" not in names(some(size=10, pay=pay("tuned")))
    assert names(some(size=10, pay=pay("group"))) == ["halves", "fedcps", "ifca"]


def test_clients_that_point_against_all_others_change_the_average() -> None:
    found = suggest(some(turned_round=("x",), pay=pay("group")), ASKED)
    assert found[0].settings["aggregation.rule"] == "trimmed-mean"


def test_what_the_task_does_not_allow_is_not_named() -> None:
    asked: Any = Experiment(data={"name": "digits", "clients": 8}, method="fedavg", task={"name": "regression"})
    found = names(some(pay=pay("group")), asked)
    assert found
    assert all(Suggestion(method).experiment(asked).task.name == "regression" for method in found)


@pytest.mark.medium
def test_costs_are_those_that_explain_predicts() -> None:
    (found,) = predict_costs((Suggestion("fedavg"),), ASKED.updated({"run.rounds": 3, "run.workers": 1}))
    assert found.up_bytes == found.down_bytes == 3 * 8 * 15010 * 4
    assert found.seconds is not None
