"""In what clients differ: planted kinds of skew are named, and nobody tells what was not asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from coterie.advice.diagnose.diagnose import diagnose
from coterie.advice.diagnose.diagnosis import Diagnosis
from coterie.advice.diagnose.kinds import Kinds
from coterie.methods.exchange import Exchange
from coterie.runs.schema.experiment import Experiment
from coterie.runs.setup import Backend
from coterie.runtime.local.runtime import EngineSpec
from tests.federated import TRAINING, planted
from tests.loopback import LoopbackRuntime


def diagnosed(split: str, **sections: Any) -> Diagnosis:
    experiment = Experiment(
        data={"name": "digits", "split": split, "clients": 20},
        method="fedavg",
        run={"workers": 1, "seed": 1},
        **sections,
    )
    return diagnose(experiment, starts=1, gains=False)


def kinds(split: str, **sections: Any) -> Kinds:
    found = diagnosed(split, **sections).kinds
    assert found is not None
    return found


@pytest.mark.medium
@pytest.mark.parametrize(
    ("split", "found"),
    [
        ("iid", ()),
        ("rotated(4)", ("features",)),
        ("permuted-labels(4)", ("concept",)),
        ("dirichlet(0.3)", ("labels",)),
        ("label-groups(4)", ("labels",)),
    ],
)
def test_planted_kinds_are_named(split: str, found: tuple[str, ...]) -> None:
    assert kinds(split).found == found


@pytest.mark.medium
def test_a_fifth_of_the_clients_does_not_turn_the_kind() -> None:
    attack = {"kind": "label-flip", "share": 0.2}
    assert kinds("permuted-labels(2)", attack=attack).found == ("concept",)
    assert kinds("iid", attack=attack).found == ()


@pytest.mark.slow
def test_a_few_clients_whose_labels_mean_something_else_may_be_hostile() -> None:
    attack = {"kind": "label-flip", "share": 0.2}
    for split, others in (("iid", "one group"), ("permuted-labels(2)", "2 groups")):
        found = diagnosed(split, attack=attack)
        (group,) = found.maybe_hostile
        assert len(group.clients) == 4
        assert found.tables()["maybe_hostile"] == [group.number]
        assert f"are {others}" in " ".join(found.sentences())
    # Labels alone that are skewed, other inputs, and groups of one size are none of that.
    for split in ("permuted-labels(2)", "rotated(2, sizes=[17, 3])", "label-groups(8, share=0.8)"):
        assert diagnosed(split).maybe_hostile == (), split


@pytest.mark.medium
@pytest.mark.parametrize(
    ("split", "found"),
    [("rotated(2, sizes=[17, 3])", "features"), ("permuted-labels(2, sizes=[17, 3])", "concept")],
)
def test_what_a_few_clients_have_alone_is_said_of_their_group(split: str, found: str) -> None:
    told = kinds(split)
    assert told.found == ()
    assert told.named == (found,)
    assert [(group.clients, group.found) for group in told.groups] == [(17, (found,)), (3, (found,))]
    assert told.say_group(1)
    assert not told.say_group(0)


@pytest.mark.medium
def test_a_regression_is_told_that_its_groups_depend_on_inputs_in_another_way(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(2, 6))
    inputs, clients = rng.normal(size=(1600, 6)), np.arange(1600) % 20
    targets = 5000 + 1000 * ((inputs * slopes[clients % 2]).sum(1) + 0.5 * rng.normal(size=1600))
    rows = {f"x{i}": inputs[:, i] for i in range(6)} | {"y": targets, "client": clients}
    pl.DataFrame(rows).write_csv(tmp_path / "slopes.csv")
    experiment = Experiment(
        data={"name": str(tmp_path / "slopes.csv"), "label": "y", "client": "client", "standardise": "global"},
        task={"name": "regression", "target_scale": "global"},
        method="fedavg",
        run={"workers": 1},
    )
    found = diagnose(experiment, starts=2, gains=False)
    assert found.kinds is not None
    assert found.kinds.found == found.kinds.named == ("labels", "concept")
    assert not found.maybe_hostile


@pytest.mark.medium
def test_targets_far_from_0_are_cut_as_well_as_others(tmp_path: Path) -> None:
    """Their squares lie beyond what 32 bits tell apart."""
    rng = np.random.default_rng(0)
    inputs, clients = rng.normal(size=(1600, 4)), np.arange(1600) % 20
    found = []
    for mean in (0.0, 1e6):
        targets = mean + 50 * (inputs[:, 0] * np.where(clients % 2, -1, 1) + 0.3 * rng.normal(size=1600))
        path = tmp_path / f"{mean:g}.npz"
        np.savez(path, features=inputs, label=targets, client=clients)
        told = diagnose(told_by(path, "regression"), starts=1, gains=False).kinds
        assert told is not None
        found.append(told.named)
    assert found == [("concept",)] * 2


@pytest.mark.medium
def test_clients_that_do_not_know_a_label_do_not_differ_by_that(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs, clients = rng.normal(size=(1600, 4)), np.arange(1600) % 20
    labels = (inputs @ rng.normal(size=(4, 3)) > 0).astype(np.float32)
    labels[clients % 2 == 1, 0] = np.nan
    np.savez(tmp_path / "some.npz", features=inputs, label=labels, client=clients)
    told = diagnose(told_by(tmp_path / "some.npz", "multilabel"), starts=1, gains=False).kinds
    assert told is not None
    assert (told.clients, told.found, told.targets) == (10, (), "labels")


def told_by(path: Path, task: str) -> Experiment:
    data = {"name": str(path), "label": "label", "client": "client"}
    return Experiment(data=data, task={"name": task}, method="fedavg", run={"workers": 1})


@pytest.mark.medium
@pytest.mark.parametrize("asked", [None, True])
def test_clients_elsewhere_tell_their_profiles_only_where_that_is_asked_for(asked: bool | None) -> None:
    federation, seen = planted("feature", 2, clients=8, samples=40), list[str]()
    spec = EngineSpec("planted-perceptron", {}, federation.features, federation, TRAINING, 0, "sequential")

    class Watched(LoopbackRuntime):
        def answer(self, ask: Any) -> Any:
            if isinstance(ask, Exchange):
                seen.append(ask.rule.name)
            return super().answer(ask)

    backend = Backend(federation, np.empty(0, np.int64), Watched(spec.build(), federation.bounds, 0.0))
    experiment = Experiment(data={"name": "digits", "clients": 8}, method="fedavg")
    found = diagnose(experiment, backend=backend, starts=1, gains=False, profiles=asked).kinds
    assert found is not None
    assert ("half-profiles" in seen) == ("input-moments" in seen) == bool(asked)
    assert (found.skew is not None) == bool(asked)
