"""What an experiment names is made once, and whoever runs it takes what was made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import coterie
from coterie.errors import BadInput
from coterie.methods import METHODS
from coterie.methods.fedavg import FedAvg
from coterie.runs.events import LoggedNotes
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.setup import load_federation


@dataclass(frozen=True)
class Counted(FedAvg):
    """FedAvg that counts how often it is made."""

    made: ClassVar[list[int]] = []

    def __post_init__(self) -> None:
        self.made.append(1)


def test_a_run_makes_its_method_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "entries", dict(METHODS.entries))
    METHODS.add("counted")(Counted)
    small = {"clients": 3, "samples_per_client": 30}
    experiment = Experiment(method="counted", data=small, run={"rounds": 1, "workers": 1, "folder": str(tmp_path)})
    coterie.run(experiment, observers=[LoggedNotes()])
    assert len(Counted.made) == 1


def test_all_settings_are_written_out_and_paths_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", x=np.random.default_rng(0).random((60, 3)), y=np.arange(60) % 2, user=np.arange(60) % 3)
    experiment = Experiment(data="mine.npz", method={"name": "fesem", "clusters": 2})
    prepared = prepare(experiment)
    wanted = experiment.resolved().updated({"data.name": str(tmp_path / "mine.npz")})
    assert prepared.experiment == wanted
    assert prepared.experiment.to_toml() == wanted.to_toml()
    assert prepared.experiment.data.split == "by-user"
    assert prepared.method == METHODS["fesem"].target(clusters=2)
    assert prepared.task is None
    assert prepare(prepared) is prepared
    monkeypatch.chdir("/")
    assert load_federation(prepared).names == ("user 0", "user 1", "user 2")


def test_clients_with_data_of_their_own_have_classes_unless_a_task_is_named() -> None:
    own: dict[str, Any] = {"name": "remote", "clients": 3, "features": [4], "classes": 2}
    task = prepare(Experiment(data=own, method="fedavg", task={"metrics": ["f1"]})).task
    assert task is not None
    assert (task.name, task.metrics) == ("classification", ("f1",))
    numbers = prepare(Experiment(data=own, method="fedavg", task="regression")).task
    assert numbers is not None
    assert numbers.name == "regression"


def test_rules_between_sections_are_told_beside_a_section_that_is_wrong() -> None:
    with pytest.raises(BadInput) as caught:
        Experiment(method={"name": "fesem", "clusters": 9}, data={"clients": 5}, run={"rounds": 0})
    rounds, clusters = caught.value.problems
    assert rounds.startswith("run.rounds = 0 ")
    assert re.match(r"method\.clusters = 9 .*data\.clients = 5", clusters)


OWN: dict[str, Any] = {"name": "remote", "clients": 3, "features": [4], "classes": 2}
HIDDEN = {"unit": "client", "epsilon": 1}
SAMPLES = {"unit": "example", "epsilon": 1}


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"data": {"features": [4]}}, r"data\.features = \(4,\) .*data\.name = 'digits'"),
        ({"data": {**OWN, "min_classes": 2}},
         r"data\.min_classes = 2 .*data\.name = 'remote'"),
        ({"data": {"samples_per_client": 9}}, r"data\.samples_per_client = 9 .*min_samples = 10"),
        ({"data": {"validation": 0}, "evaluation": {"on": "validation"}},
         r"data\.validation = 0 .*evaluation\.on = 'validation'"),
        ({"data": {"split": "by-user"}}, "split = 'by-user' .*digits"),
        ({"data": {**OWN, "label": "a", "client": "a"}},
         r"data\.label and .*client .*'a'"),
        ({"training": {"momentum": 0.9, "optimizer": "adam"}}, r"training\.momentum = 0\.9 .*'sgd'"),
        ({"run": {"ray_address": "auto"}}, r"run\.ray_address = 'auto' .*run\.runtime = 'local'"),
        ({"run": {"holdout_clients": 0.5}, "data": {"clients": 6}, "method": "ifca"}, ".*clusters = 4 .*3 clients"),
        ({"method": "fedsr", "network": "mlp"}, r"network\.name = 'mlp' .*fedsr"),
        ({"method": "fedcr", "task": "regression", "network": "gaussian-mlp"}, "task.name = 'regression' .*fedcr"),
        ({"run": {"participation": 0.5}, "aggregation": {"rule": "fltrust", "trusted": ["client 0"]}},
         r"run\.participation = 0\.5 .*aggregation\.rule = 'fltrust'"),
        ({"method": "local-only", "aggregation": {"rule": "median"}}, r"aggregation\.rule = 'median' .*local-only"),
        ({"attack": {"share": 0.2}, "data": OWN}, r"attack\.share .*'remote'"),
        ({"run": {"passes": 7.0}, "privacy": HIDDEN}, r"run\.passes = 7 .*privacy"),
        ({"run": {"passes": 7.0}, "evaluation": {"every": 2, "last": 2}}, r"evaluation\.last = 2 .*run\.passes"),
        ({"privacy": HIDDEN, "aggregation": {"rule": "median"}}, r"aggregation\.rule = 'median' .*privacy"),
        ({"privacy": HIDDEN, "data": {"standardise": "global"}}, r"data\.standardise = 'global' .*privacy"),
        ({"privacy": HIDDEN, "data": {"missing": "mean"}}, r"data\.missing = 'mean' .*privacy"),
        ({"privacy": SAMPLES, "data": {"standardise": "client"}}, r"data\.standardise = 'client' .*privacy"),
        ({"privacy": SAMPLES, "evaluation": {"adapt": {"epochs": 1}}}, r"evaluation\.adapt .*privacy"),
        ({"privacy": {**HIDDEN, "noise_by": "clients"}, "data": OWN}, r"privacy\.delta .*missing"),
        ({"privacy": {**HIDDEN, "noise_seed": 0}, "data": OWN}, r"privacy\.noise_seed = 0 .*data"),
        ({"privacy": HIDDEN, "task": {"name": "classification", "class_weights": "balanced"}},
         r"task\.class_weights = 'balanced' .*privacy"),
        ({"privacy": HIDDEN, "task": {"name": "regression", "target_scale": "global"}},
         r"task\.target_scale = 'global' .*privacy"),
        ({"data": OWN, "task": {"name": "classification", "class_weights": "balanced"}},
         r"task\.class_weights = 'balanced' .*remote"),
        ({"privacy": HIDDEN, "method": "cfl"}, r"privacy\.noise_by = 'server' .*cfl: .*updates"),
        ({"privacy": HIDDEN, "method": "fesem"}, r"privacy\.noise_by = 'server' .*fesem: .*noise_by = 'clients'"),
        ({"privacy": HIDDEN, "method": "ifca"}, r"privacy\.noise_by = 'server' .*ifca: .*method\.init .*'plain'"),
    ],
)  # fmt: skip
def test_a_rule_is_one_sentence(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        Experiment(**{"method": "fedavg", **sections}).check()
    (sentence,) = caught.value.problems
    assert re.match(said, sentence)


def test_clients_that_are_hidden_may_standardise_by_their_own_samples() -> None:
    Experiment(method="fedavg", privacy=HIDDEN, data={"standardise": "client"}).check()
