"""A federation is diagnosed by what its clients send, which says what the simulation of the same clients says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

import coterie
from coterie.clients.data import build
from coterie.runs.schema.experiment import Experiment
from coterie.shipping.flower.parts import write_parts
from tests.shipping.flower.rehearsal import Place, own_data

ASKED = Experiment(
    method="fedavg",
    data={"name": "digits", "split": "rotated(2)", "clients": 8},
    training={"epochs": 2, "batch_size": 10, "lr": 0.1},
    run={"workers": 1},
)
OWN = ASKED.updated({"data": {"name": "remote", "clients": 8, "features": [8, 8, 1], "classes": 10}})


def clinics(folder: Path, telling: int = 0) -> Place:
    """Eight clients with data of their own, of whom the first few tell profiles."""
    parts = write_parts(build("digits", "rotated(2)", 8, 0), folder / "parts")
    place = own_data(folder, parts, "client {}")
    return Place(folder, [{**node, "tell-profiles": i < telling} for i, node in enumerate(place.nodes)])


def without_time(tables: dict[str, Any]) -> dict[str, Any]:
    """What is the same wherever it is asked: neither seconds nor what only a simulation knows."""
    unlike = ("seconds", "true_groups_ari", "suggestions", "notes", "kinds", "sentences")
    found: dict[str, Any] = json.loads(json.dumps({k: v for k, v in tables.items() if k not in unlike}))
    return found


@pytest.mark.slow
def test_a_federation_is_diagnosed_as_its_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "diagnosis"
    clinics(tmp_path).run(OWN, diagnose=str(folder))
    assert sorted(path.name for path in folder.iterdir()) == [
        "diagnosis.html",
        "diagnosis.json",
        "experiment.toml",
    ]
    told = json.loads((folder / "diagnosis.json").read_text("utf-8"))
    assert without_time(told) == without_time(coterie.diagnose(ASKED).tables())
    assert told["kinds"]["skew"] is None
    assert not (tmp_path / "runs").exists()
    said = capsys.readouterr().out
    assert all(word in said for word in ("8 clients", "seed 0", "4, 4 clients", "1. halves"))
    advised = Experiment.from_toml(folder / "experiment.toml")
    assert (advised.method.name, advised.data.name) == ("halves", "remote")


@pytest.mark.slow
def test_only_clients_that_were_let_tell_their_profiles(tmp_path: Path) -> None:
    telling = 5
    folder = tmp_path / "diagnosis"
    clinics(tmp_path, telling).run(OWN, diagnose=str(folder), profiles=True)
    kinds = json.loads((folder / "diagnosis.json").read_text("utf-8"))["kinds"]
    assert kinds["clients"] == telling
    assert kinds["skew"] is not None


@pytest.mark.medium
@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"diagnose": "taken"}, "taken'.*empty"),
        ({"diagnose": "new", "profiles": 3}, "profiles = 3 .*true or false"),
    ],
)
def test_what_is_not_possible_is_said_before_anybody_is_asked(
    config: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    config["diagnose"] = str(tmp_path / config["diagnose"])
    with pytest.raises(RuntimeError, match=sentence):
        Place(tmp_path, []).run(OWN, **config)
    assert not (tmp_path / "new").exists()


@pytest.mark.medium
def test_a_promise_of_privacy_keeps_a_federation_from_being_diagnosed(tmp_path: Path) -> None:
    private = OWN.updated({"privacy": {"unit": "client", "epsilon": 5.0}, "training.momentum": 0.0})
    with pytest.raises(RuntimeError, match="diagnosis"):
        Place(tmp_path, []).run(private, diagnose=str(tmp_path / "new"))
