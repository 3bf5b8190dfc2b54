"""A diagnosis: what it says of federations whose groups are known, the same wherever clients are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie.advice.diagnose.diagnose import diagnose
from coterie.advice.diagnose.diagnosis import Diagnosis, Group, Membership, make_groups
from coterie.errors import BadInput
from coterie.grouping.halves import Division, PairingTest
from coterie.runs.schema.experiment import Experiment
from coterie.runs.setup import Backend
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from tests.federated import TRAINING, planted
from tests.loopback import LoopbackRuntime


def experiment(split: str = "rotated(2)", clients: int = 12, **sections: Any) -> Experiment:
    return Experiment(
        data={"name": "digits", "split": split, "clients": clients, **sections.pop("data", {})},
        method="fedavg",
        run={"workers": 1, "seed": 1, **sections.pop("run", {})},
        **sections,
    )


def some(**changes: Any) -> Diagnosis:
    """A diagnosis of four clients in two groups and one who stands apart."""
    groups = (Group(0, ("a", "b"), 0.9), Group(1, ("c", "d"), 0.7), Group(2, ("e",), 1.0))
    members = (
        *(Membership(name, 0, 0.9, 1, 0.1, True) for name in "ab"),
        *(Membership(name, 1, 0.7, 0, 0.3, True) for name in "cd"),
        Membership("e", 2, 1.0, 0, 0.0, True),
    )
    return replace(
        Diagnosis(
            clients=5,
            answered=5,
            size=30,
            starts=4,
            alpha=0.05,
            draws=999,
            structure=PairingTest(0.001, 0.4, 1.02),
            tests=(Division(5, 0.001, 0.05),),
            groups=groups,
            all_differ=False,
            memberships=members,
            resampled=(3,) * 18 + (2, 0),
            true_groups_ari=None,
            small=(),
            turned_round=(),
            missing={},
            notes=(),
            seconds=1.0,
        ),
        **changes,
    )


@pytest.mark.medium
def test_planted_groups_are_found_and_named() -> None:
    found = diagnose(experiment(), gains=False)
    assert found.has_structure
    assert found.true_groups_ari == 1.0
    assert [len(group.clients) for group in found.groups] == [6, 6]
    assert found.groups[0].clients == tuple(f"client {i}" for i in range(0, 12, 2))
    assert min(member.confidence for member in found.memberships) > 0.9
    assert json.loads(json.dumps(found.tables()))["sentences"] == list(found.sentences())


@pytest.mark.medium
def test_one_population_is_one_group() -> None:
    found = diagnose(experiment("iid"), gains=False)
    assert not found.has_structure
    assert len(found.groups) == 1
    assert found.resampled == ()
    said = found.sentences()
    assert "(p = 0." in said[0]
    assert len(said) == 3


@pytest.mark.medium
def test_the_number_of_workers_the_engine_and_vanishing_clients_change_nothing() -> None:
    one = diagnose(experiment(run={"engine": "sequential"}), starts=2, gains=False)
    other = diagnose(
        experiment(run={"engine": "batched", "workers": 2, "client_dropout": 0.5}), starts=2, gains=False
    )
    assert replace(one, seconds=0.0) == replace(other, seconds=0.0)


@pytest.mark.slow
def test_clients_that_are_reached_by_bytes_say_and_gain_the_same() -> None:
    federation, found = planted("feature", 2, clients=8, samples=40), list[Diagnosis]()
    spec = EngineSpec("planted-perceptron", {}, federation.features, federation, TRAINING, 0, "sequential")
    for runtime in (
        LocalRuntime(spec, federation.samples, 0.0, 1, None),
        LoopbackRuntime(spec.build(), federation.bounds, 0.0),
    ):
        backend = Backend(federation, np.empty(0, np.int64), runtime)
        found.append(diagnose(experiment(clients=8), backend=backend, starts=1, losses=True))
    assert replace(found[0], seconds=0.0) == replace(found[1], seconds=0.0)
    assert found[0].true_groups_ari == 1.0
    assert found[0].pay is not None
    assert {signal.name: signal.clients for signal in found[0].signals} == {"losses": 8, "predictions": 8}


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["sign-flip", "scale", "nan"])
def test_a_fifth_of_the_clients_does_not_turn_the_answer(kind: str) -> None:
    found = diagnose(experiment("rotated(2)", 20, attack={"kind": kind, "share": 0.2}), starts=3, gains=False)
    out = {*found.turned_round, *found.missing}
    truth = {f"client {i}": i % 2 for i in range(20)}
    honest = [member for member in found.memberships if member.client not in out]
    agree = [(truth[a.client] == truth[b.client]) == (a.group == b.group) for a in honest for b in honest]
    assert len(out) == (0 if kind == "scale" else 4)
    assert found.has_structure
    assert np.mean(agree) > 0.8


def test_too_few_clients_cannot_be_told_apart() -> None:
    found = diagnose(experiment("iid", 3), starts=1, gains=False)
    assert not found.is_possible
    assert "3 of 3 clients" in found.sentences()[0]


@pytest.mark.medium
def test_clients_with_few_samples_are_placed_and_said() -> None:
    found = diagnose(experiment("dirichlet(0.5) + rotated(2)", 12), starts=2, gains=False)
    small = {member.client for member in found.memberships if not member.tested}
    assert small == set(found.small)
    assert 0 < len(found.small) <= 2
    assert any(f": {found.small[0]}" in sentence for sentence in found.sentences())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"alpha": 0.0}, r"alpha = 0 .*0\.001"),
        ({"alpha": 1.0}, r"alpha = 1 .*0\.001"),
        ({"alpha": float("nan")}, r"alpha = nan .*0\.001"),
        ({"starts": 0}, "starts = 0 .*1000"),
        ({"starts": 10**9}, "starts = 1000000000 .*1000"),
    ],
)
def test_what_is_not_possible_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        diagnose(experiment(), **settings)


def test_what_was_promised_to_clients_is_kept() -> None:
    with pytest.raises(BadInput, match=r"privacy\.unit = 'client'.*diagnosis"):
        diagnose(experiment(privacy={"unit": "client", "epsilon": 8.0}))


def test_sentences_name_groups_who_stands_apart_and_who_sits_between() -> None:
    found = some()
    assert found.standing_apart == ("e",)
    assert [member.client for member in found.between] == ["c", "d"]
    structure, *others = found.sentences()
    assert all(
        number in structure
        for number in ("Yes (p < 0.002)", "0.400", "1.020", "5 clients", "30 samples", "4 initial models")
    )
    count, *others = others
    assert all(part in count for part in ("2, 2 clients", "1 client ", "0.05", "3 (18 of 20)", "2 (1 of 20)"))
    for sentence, part in zip(
        others,
        (
            "0: a, b (confidence 90%)",
            "1: c, d (confidence 70%)",
            ": e",
            ": c (group 1 70%, group 0 30%), d (group 1",
        ),
        strict=True,
    ):
        assert part in sentence


def test_where_nothing_was_learnt_only_what_was_found_is_answered() -> None:
    """Structure that was found stays; that none was found says nothing."""
    why = "unlearnt"
    said = some(unlearnt=why).sentences()
    assert "Yes" in said[0]
    assert said[-1].endswith(why)
    (said_alone,) = some(unlearnt=why, structure=PairingTest(1.0, 1.0, 0.5)).sentences()
    assert "p = 1" in said_alone
    assert said_alone.endswith(why)


def test_too_few_clients_are_told_no_number_of_groups() -> None:
    said = some(memberships=()).sentences()
    assert "0 of 5 clients" in said[0]
    assert len(said) == 2


def test_a_client_that_most_votes_place_elsewhere_is_told_so() -> None:
    between = Membership("a", 0, 0.6, 1, 0.4, True)
    assert between.say_between() == "a (group 0 60%, group 1 40%)"
    placed = replace(between, confidence=0.13, second_share=0.87).say_between()
    assert placed.startswith("a (group 0 13%, group 1 87%, ")
    assert placed.count("group 0") == 2


def test_memberships_say_the_second_likely_group() -> None:
    shares = np.array([[0.6, 0.1, 0.3], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    groups, members = make_groups(("a", "b", "c"), np.arange(3), shares, np.array([True, True, False]))
    assert [(m.group, m.confidence, m.second, m.second_share, m.tested) for m in members] == [
        (0, 0.6, 2, 0.3, True),
        (1, 1.0, 0, 0.0, True),
        (2, 1.0, 0, 0.0, False),
    ]
    assert [group.clients for group in groups] == [("a",), ("b",), ("c",)]


@pytest.mark.medium
def test_a_norm_over_the_batch_would_see_what_models_are_scored_on() -> None:
    found = diagnose(experiment(network={"name": "cnn", "norm": True}), starts=1)
    assert found.pay is None
    assert "batch normalisation" in found.notes[-1]


@pytest.mark.medium
def test_a_file_that_names_no_client_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"ward {i % 4},{rng.normal():.2f},{rng.normal():.2f},{rng.integers(2)}" for i in range(400)]
    path = tmp_path / "wards.csv"
    path.write_text("\n".join(["ward,age,dose,label", *lines]), encoding="utf-8")
    given = Experiment(data={"name": str(path), "clients": 5}, method="fedavg", run={"workers": 1})
    said = given.updated({"data.client": "ward", "data.clients": None})
    for asked, count in ((given, 1), (said, 0)):
        assert sum("data.client" in note for note in diagnose(asked, starts=1, gains=False).notes) == count


def test_sites_that_code_the_outcome_the_other_way_round_are_named_first(tmp_path: Path) -> None:
    rng, lines = np.random.default_rng(0), ["client,a,b,c,d,label"]
    for site in "ABCDEFGHIJKL":
        for _ in range(80):
            died = int(rng.random() < 0.25)
            numbers = rng.normal(size=4) + np.array([1.2, -0.8, 0.5, 0.0]) * died
            code = 1 - died if site in "FH" else died
            lines.append(",".join([site, *(f"{number:.2f}" for number in numbers), str(code)]))
    (tmp_path / "sites.csv").write_text("\n".join(lines) + "\n", "utf-8")
    data = {"name": str(tmp_path / "sites.csv"), "standardise": "global"}
    found = diagnose(Experiment(data=data, method="fedavg", run={"workers": 1}), gains=False)
    assert found.kinds is not None
    (recoding,) = found.kinds.recoded
    assert recoding.clients == ("F", "H")
    assert set(recoding.meanings) == {("0", "1"), ("1", "0")}
    assert found.sentences()[0] == recoding.sentence()


@pytest.mark.parametrize("split", ["iid", "rotated(2)", "dirichlet(0.5)"])
def test_other_inputs_and_other_shares_of_classes_are_no_other_coding(split: str) -> None:
    found = diagnose(experiment(split), gains=False, starts=2)
    assert found.kinds is not None
    assert not found.kinds.recoded


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 3])
def test_linear_models_tell_how_many_groups_there_are(groups: int) -> None:
    """Groups whose models predict held-out samples best are counted; clients of one population are not divided."""
    rng = np.random.default_rng(10 + groups)
    truth = np.arange(18) % groups
    slopes = 2 * rng.normal(size=(groups, 4))
    data = {}
    for client, group in enumerate(truth.tolist()):
        x = rng.normal(size=(60, 4)).astype(np.float32)
        data[f"c{client:02d}"] = x, (x @ slopes[group] + rng.logistic(size=60) > 0).astype(np.int64)
    found = diagnose(Experiment(data=data, network="linear", method="fedavg", run={"workers": 1}), gains=False)
    assert found.predicted == (groups > 1)
    assert len(found.groups) == groups
    members = {client: group.number for group in found.groups for client in group.clients}
    assert adjusted_rand_score(truth, [members[f"c{client:02d}"] for client in range(18)]) == 1
    told = found.tables()
    assert told["predicted"] == found.predicted
    assert told["structure"]["found"] == (groups > 1)
