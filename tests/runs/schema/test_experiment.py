"""The experiment: what it accepts, what it refuses, how it is changed, and the check before a run."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from coterie.clients.rules.training import Training
from coterie.errors import BadInput
from coterie.runs.schema.experiment import Experiment, check
from coterie.runs.schema.names import absolute_data
from coterie.runs.schema.sections import Data, Evaluation, MethodChoice, Network, Run


def problems(action: Any, *arguments: Any, **keys: Any) -> list[str]:
    with pytest.raises(BadInput) as caught:
        action(*arguments, **keys)
    return caught.value.problems


# ---- what an experiment accepts


def test_without_anything_there_are_defaults() -> None:
    experiment = Experiment()
    assert (experiment.data.name, experiment.network.name, experiment.run.rounds) == ("digits", "auto", 20)
    assert experiment.training == Training()
    experiment.check()


def test_a_name_stands_for_its_section() -> None:
    short = Experiment(method="ifca", data="mnist", network="cnn", run="trial")
    assert short.method == MethodChoice(name="ifca")
    assert (short.data, short.network, short.run) == (Data(name="mnist"), Network(name="cnn"), Run(name="trial"))


def test_sections_are_given_as_themselves_or_as_mappings() -> None:
    by_mapping = Experiment(
        method={"name": "fesem", "clusters": 3},
        training={"lr": 1, "epochs": 2},
        evaluation={"every": 5},
        run={"rounds": np.int64(7), "folder": Path("some/where"), "participation": 1},
        network={"name": "mlp", "hidden": [8, np.int32(4)]},
    )
    by_section = Experiment(
        method=MethodChoice(name="fesem", clusters=3),
        training=Training(lr=1.0, epochs=2),
        evaluation=Evaluation(every=5),
        run=Run(rounds=7, folder="some/where"),
        network=Network(name="mlp", hidden=(8, 4)),
    )
    assert by_mapping == by_section
    assert by_mapping.method.settings == {"clusters": 3}
    assert by_mapping.network.settings == {"hidden": (8, 4)}
    assert isinstance(by_mapping.run.participation, float)
    assert type(by_mapping.run.rounds) is int


def test_an_experiment_is_frozen_and_travels_whole() -> None:
    experiment = Experiment(method={"name": "fesem", "clusters": 3})
    with pytest.raises(ValidationError, match="frozen"):
        experiment.run.rounds = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        experiment.run = Run()  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        experiment.method.clusters = 4  # type: ignore[attr-defined]
    assert deepcopy(experiment) == experiment


# ---- what it refuses, in one sentence each


SCHEMA_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"run": {"rounds": 0}}, r"run\.rounds = 0 .* 1$"),
    ({"run": {"rounds": True}}, r"run\.rounds = True .*integer"),
    ({"run": {"rounds": "20"}}, r"run\.rounds = '20' .*integer"),
    ({"run": {"participation": 0}}, r"run\.participation = 0 .* 0$"),
    ({"run": {"participation": 2.0}}, r"run\.participation = 2\.0 .* 1$"),
    ({"run": {"client_dropout": 1.0}}, r"run\.client_dropout = 1\.0 .* 1$"),
    ({"run": {"seed": -1}}, r"run\.seed = -1 .* 0$"),
    ({"run": {"engine": "tpu"}}, r"run\.engine = 'tpu' .*'auto', 'sequential', 'batched' or 'gpu'"),
    ({"run": {"client_timeout": 0}}, r"run\.client_timeout = 0 .* 0$"),
    ({"run": {"quarantine_after": 0}}, r"run\.quarantine_after = 0 .* 1 or 'never'"),
    ({"run": {"link_mbit": float("inf")}}, r"run\.link_mbit = inf .*finite"),
    ({"run": {"folder": ""}}, r"run\.folder = '' .*at least 1"),
    ({"run": {"round": 3}}, r"run\.round .*rounds"),
    ({"data": {"clients": 0}}, r"data\.clients = 0 .* 1$"),
    ({"data": {"test": 0}}, r"data\.test = 0 .* 0$"),
    ({"data": {}}, r"data = \{\} .*\{client: \(x, y\)\}"),
    ({"data": {"clinets": 5}}, r"data\.clinets .*clients"),
    ({"training": {"lr": -0.1}}, r"training\.lr = -0\.1 .* 0$"),
    ({"training": {"epochs": -1}}, r"training\.epochs = -1 .* 0$"),
    ({"training": {"optimizer": "sdg"}}, r"training\.optimizer = 'sdg' .*'sgd' or 'adam'"),
    ({"evaluation": {"every": 0}}, r"evaluation\.every = 0 .* 1$"),
    ({"evaluation": {"on": "train"}}, r"evaluation\.on = 'train' .*'test' or 'validation'"),
    ({"scale": {"sketch_above": 0}}, r"scale\.sketch_above = 0 .* 1$"),
    ({"scale": {"js": "fast"}}, r"scale\.js = 'fast' .*'exact' or 'low-rank'"),
    ({"scale": {"sketches_above": 9}}, r"scale\.sketches_above .*sketch_above"),
    ({"scale": {"states_mb": -1}}, r"scale\.states_mb = -1 .* 0$"),
    ({"sketch_above": 9}, r"sketch_above .*scale\.sketch_above"),
    ({"method": {"name": 3}}, r"method\.name = 3 .*string"),
    ({"rounds": 3}, r"rounds .*run\.rounds"),
    ({"metod": {}}, "metod .*method"),
    ({"evaluation": 3}, "evaluation = 3 .*every, last, on"),
    ({"evaluation": {1: 2}}, r"evaluation = \{1: 2\} .*every, last, on"),
    ({"evaluation": "often"}, "evaluation = 'often' .*every, last, on"),
]


@pytest.mark.parametrize(("sections", "said"), SCHEMA_PROBLEMS)
def test_each_wrong_key_gets_one_sentence(sections: dict[str, Any], said: str) -> None:
    (sentence,) = problems(Experiment, **sections)
    assert re.match(said, sentence)


@pytest.mark.parametrize("name", ["a/b", "a\\b", "..", ".hidden", "-x", "_x", "a b", "a\n", ""])
def test_a_run_is_named_like_a_folder(name: str) -> None:
    (sentence,) = problems(Experiment, run=name) if name else problems(Experiment, run={"name": name})
    assert sentence.startswith(f"run.name = {name!r} ")


def test_a_run_s_name_has_room_in_a_folder() -> None:
    assert Experiment(run="a" * 80).run.name == "a" * 80
    (sentence,) = problems(Experiment, run="a" * 300)
    assert re.match(f"run.name = '{'a' * 99}… .*300 .*80", sentence)


@pytest.mark.parametrize("value", [None, float("nan"), [1, float("inf")], {"a": None}, object(), 1j])
def test_a_setting_is_what_toml_can_hold(value: Any) -> None:
    (sentence,) = problems(Experiment, method={"name": "fesem", "mu": value})
    assert re.match(r"method\.mu = .*finite number", sentence, re.DOTALL)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    found = problems(
        Experiment,
        data={"name": "digts", "split": "rotatd(4)", "clients": 0},
        network="mpl",
        method={"name": "fesm", "clusters": None},
        training={"lr": "fast"},
        run={"rounds": 0, "sede": 1},
        extra=1,
    )
    keys = ["data.clients", "method.clusters", "training.lr", "run.rounds", "run.sede", "extra", "network 'mpl'",
            "method 'fesm'", "data 'digts'", "split 'rotatd'"]  # fmt: skip
    assert [sentence for key in keys for sentence in found if sentence.startswith(key)] == found
    assert len(found) == len(keys)


# ---- the check before a run


CHECK_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"method": "fesm"}, "method 'fesm' .*fesem"),
    ({"network": "mpl"}, "network 'mpl' .*mlp"),
    ({"method": {"name": "fesem", "cluster": 4}}, r"method\.cluster .*clusters"),
    ({"method": {"name": "fesem", "clusters": 0}}, r"method\.clusters = 0 .* 1$"),
    (
        {"network": {"name": "auto", "hidden": [8]}},
        r"network\.name = 'auto' .*network\.hidden.*network\.name = 'mlp'",
    ),
    ({"network": {"name": "mlp", "hidden": ["8"]}}, r"network\.hidden\.0 = '8' .*integer"),
    ({"method": {"name": "fesem", "clusters": 6}, "data": {"clients": 5}}, r"method\.clusters = 6 .*clients = 5"),
    ({"method": {"name": "fesem", "clusters": 21}}, r"method\.clusters = 21 .*data\.clients = 20"),
    ({"data": {"split": "rotated(4) + dirichlet(0.5) + rotated(2)"}}, "split = .*rotated 2 times"),
]


@pytest.mark.parametrize(("sections", "said"), CHECK_PROBLEMS)
def test_the_check_names_what_cannot_run(sections: dict[str, Any], said: str) -> None:
    experiment = Experiment(**sections)
    (sentence,) = problems(experiment.check)
    assert re.match(said, sentence)
    assert problems(check, experiment) == [sentence]


def test_the_check_asks_the_federation() -> None:
    found = problems(Experiment(data={"name": "digts", "split": "rotatd(4)"}).check)
    assert any("digts" in s and "digits" in s for s in found)
    assert any("rotatd" in s and "rotated" in s for s in found)
    assert len(found) == 2
    (sentence,) = problems(Experiment(data={"validation": 0.5, "test": 0.5}).check)
    assert re.match(r"data\.validation = 0\.5 .*data\.test = 0\.5", sentence)


def test_a_folder_for_runs_can_be_made(tmp_path: Path) -> None:
    Experiment(run={"folder": str(tmp_path / "not" / "there")}).check()
    file = tmp_path / "file"
    file.write_text("x", encoding="utf-8")
    for folder in (file, file / "below"):
        (sentence,) = problems(Experiment(run={"folder": str(folder)}).check)
        assert repr(str(file)) in sentence
    assert list(tmp_path.iterdir()) == [file]


def test_as_many_clusters_as_clients_can_run() -> None:
    Experiment(method={"name": "fesem", "clusters": 5}, data={"clients": 5}).check()
    Experiment(data={"clients": 20}, run={"participation": 0.001}).check()


@pytest.mark.parametrize("what", ["fesem", "experiment.toml", None, 3])
def test_only_an_experiment_is_checked(what: Any) -> None:
    (sentence,) = problems(check, what)
    assert re.match(rf"{what!r} .*coterie\.Experiment", sentence)
    assert ("from_toml" in sentence) == (what == "experiment.toml")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder here in which nobody can make one")
def test_a_folder_that_cannot_be_made_is_refused() -> None:
    (sentence,) = problems(Experiment(run={"folder": "/proc/here"}).check)
    assert re.match(r"run\.folder = '/proc/here' .*'/proc'", sentence)
    (sentence,) = problems(Experiment(run={"folder": "x" * 300}).check)
    assert sentence.startswith("run.folder = 'xxx")


# ---- the split that fits the data


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("digits", "rotated(4)"),
        ("cifar10", "rotated(4)"),
        ("uci-har", "by-user"),
        ("mnist-writers", "by-user"),
        ("hub:owner/name", "iid"),
    ],
)
def test_auto_is_the_split_that_fits(name: str, split: str) -> None:
    experiment = Experiment(data=name)
    assert experiment.data.split == "auto"
    assert experiment.resolved().data.split == split
    assert experiment.resolved().resolved() == experiment.resolved()


def test_auto_looks_for_users_in_own_data(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"x": np.ones((40, 3), np.float32), "y": np.arange(40) % 2}
    users: dict[str, Any] = {"Client": np.arange(40) % 4}
    np.savez(tmp_path / "plain.npz", **columns)
    np.savez(tmp_path / "users.npz", **columns, **users)
    pl.DataFrame({"a": [1.0, 2.0], "y": [0, 1]}).write_parquet(tmp_path / "plain.parquet")
    pl.DataFrame({"a": [1.0, 2.0], "y": [0, 1], "user": [0, 1]}).write_parquet(tmp_path / "users.parquet")
    (tmp_path / "folder").mkdir()
    np.savez(tmp_path / "folder" / "one.npz", **columns)
    found = {p.name: Experiment(data=str(p)).resolved().data.split for p in tmp_path.iterdir()}
    assert found == {
        "plain.npz": "iid",
        "plain.parquet": "iid",
        "users.npz": "by-user",
        "users.parquet": "by-user",
        "folder": "by-user",
    }
    for name in ("plain.npz", "users.npz"):
        Experiment(method="fedavg", data=str(tmp_path / name)).check()


# ---- changes


def test_updated_reaches_every_section() -> None:
    changed = Experiment(method={"name": "fesem", "clusters": 3}).updated(
        {"run.rounds": 30, "method.mu": 0.0, "training.lr": 0.2, "data.clients": 5, "network": "cnn"}
    )
    assert (changed.run.rounds, changed.training.lr, changed.data.clients) == (30, 0.2, 5)
    assert changed.method == MethodChoice(name="fesem", clusters=3, mu=0.0)
    assert changed.network == Network(name="cnn")
    assert changed.updated({"training": Training(), "run": {"rounds": 2}}).run == Run(rounds=2)


def test_another_name_drops_the_settings_of_the_former() -> None:
    experiment = Experiment(method={"name": "fesem", "mu": 0.5}, data={"name": "mnist", "clients": 5})
    assert experiment.updated({"method.clusters": 2, "method.name": "ifca"}).method == MethodChoice(
        name="ifca", clusters=2
    )
    assert experiment.updated({"method.name": "fesem"}).method == experiment.method
    assert experiment.updated({"data.name": "digits"}).data.clients == 5


def test_none_puts_a_key_back() -> None:
    experiment = Experiment(method={"name": "fesem", "mu": 0.5}, run={"rounds": 3, "name": "x"})
    assert experiment.updated({"method.mu": None, "run.rounds": None, "run.name": None}) == Experiment(
        method="fesem"
    )


def test_updated_refuses_what_an_experiment_refuses() -> None:
    rounds, section = problems(Experiment().updated, {"run.rounds": 0, "rnu.seed": 1})
    assert re.match(r"run\.rounds = 0 .* 1$", rounds)
    assert re.match("rnu .*run", section)
    (sentence,) = problems(Experiment().updated, {"evaluation": 3, "evaluation.every": 2})
    assert re.match("evaluation = 3 .*every, last, on, evaluated, adapt", sentence)


def test_only_a_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is a file of the same name."""
    monkeypatch.chdir(tmp_path)
    for name in ("remote", "digits", "mine.npz"):
        (tmp_path / name).touch()
    names = [absolute_data(name) for name in ("remote", "digits", "mine.npz", "none.npz")]
    assert names == ["remote", "digits", str(tmp_path / "mine.npz"), "none.npz"]
