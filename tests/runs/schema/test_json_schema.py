"""Editors accept what Coterie accepts, and mark what it refuses."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from coterie.errors import BadInput
from coterie.models.networks import NETWORKS
from coterie.runs.schema.experiment import Experiment
from coterie.runs.schema.json_schema import experiment_schema
from coterie.runs.schema.names import catalog
from tests.commandline import Terminal

Draft7Validator: Any = pytest.importorskip("jsonschema").Draft7Validator


@pytest.fixture(scope="module")
def validator() -> Any:
    found = json.loads(json.dumps(experiment_schema()))
    Draft7Validator.check_schema(found)
    return Draft7Validator(found)


@pytest.mark.medium
def test_what_the_command_prints_accepts_a_file_with_every_setting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    call = Terminal(capsys)
    assert call("new", str(tmp_path / "all.toml")).code == 0
    printed = json.loads(call("schema").out)
    written = tomllib.loads((tmp_path / "all.toml").read_text("utf-8"))
    assert written
    Draft7Validator(printed).validate(written)


class Activated(nn.Module):
    """A network whose default is a class, which no JSON can hold."""

    def __init__(self, features: Any, classes: int, activation: type[nn.Module] = nn.ReLU) -> None: ...


def test_a_network_with_a_class_for_a_default_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NETWORKS, "entries", dict(NETWORKS.entries))
    NETWORKS.add("activated")(Activated)
    assert "activated" in json.dumps(experiment_schema())


@pytest.mark.parametrize("kind", ["method", "network", "task"])
def test_every_name_is_accepted_with_its_defaults(validator: Any, kind: str) -> None:
    for entry in catalog(kind):
        validator.validate({kind: entry.name})
        defaults = {s.name: s.default for s in entry.settings if isinstance(s.default, bool | int | float | str)}
        validator.validate({kind: {"name": entry.name, **defaults}})


@pytest.mark.parametrize(
    "wrong",
    [
        {"trainin": {}},
        {"training": {"lr": "fast"}},
        {"training": {"learning_rate": 0.1}},
        {"method": "nope"},
        {"method": {"name": "fesem", "cluster": 3}},
        {"method": {"name": "fesem", "clusters": 0}},
        {"network": {"name": "mlp", "channels": [3]}},
    ],
)
def test_what_is_refused_is_marked(validator: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Experiment.from_tables(wrong).check()
    assert not validator.is_valid(wrong)


@pytest.mark.parametrize(
    "short",
    [
        {"data": "digits"},
        {"network": {"name": "mlp", "hidden": 64}},
        {"network": {"name": "mlp", "hidden": "64,32"}},
        {"network": {"name": "cnn", "channels": 8}},
    ],
)
def test_what_is_written_shorter_is_accepted(validator: Any, short: dict[str, Any]) -> None:
    Experiment.from_tables(short).check()
    validator.validate(short)


def test_a_method_of_ones_own_may_have_any_settings(validator: Any) -> None:
    validator.validate({"method": {"name": "my_file:Mine", "strength": 3}})
