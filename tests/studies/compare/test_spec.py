"""What a comparison says, how its cells are made, and everything that is refused before anything runs."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from coterie.errors import BadInput
from coterie.runs.schema.experiment import Experiment
from coterie.studies.compare.spec import Comparison, key_of

FILE = """
seeds = [3, 0]
baseline = "FedAvg"
target = 0.8

[methods.FedAvg]
method.name = "fedavg"
[methods."FeSEM (4)"]
method.name = "fesem"
method.clusters = 4
training.lr = 0.05

[experiment.data]
clients = 8
[experiment.training]
lr = 0.2

[settings."β = 0.2"]
data.split = "dirichlet(0.2)"
training.epochs = 2
[settings.rotated]
data.split = "rotated(4)"

[grid]
"run.participation" = [0.5, 1.0]
network.name = ["mlp"]
"""


def made(**tables: Any) -> Comparison:
    return Comparison.from_tables({"methods": ["fedavg", "ifca(clusters=2)"], "adapted": {}, **tables})


def problems(**tables: Any) -> list[str]:
    with pytest.raises(BadInput) as caught:
        made(**tables).check()
    return caught.value.problems


def test_short_form() -> None:
    comparison = Comparison.from_tables(
        {"methods": ["fedavg", "fesem(3, lr=0.05)", "fedper(private=2)"], "seeds": 2}
    )
    assert [v.name for v in comparison.methods] == ["fedavg", "fesem(3, lr=0.05)", "fedper(private=2)"]
    # A setting that the method has is the method's, whatever other section has one of that name.
    (method,) = made(methods=["flis(evaluated=mixture, lr=0.2)"]).methods
    assert method.tables == {"method": {"name": "flis", "evaluated": "mixture"}, "training": {"lr": 0.2}}
    assert comparison.methods[1].tables == {"method": {"name": "fesem", "clusters": 3}, "training": {"lr": 0.05}}
    assert (comparison.seeds, comparison.baseline, comparison.measure) == ((0, 1), "fedavg", "macro_accuracy")
    assert comparison.name == "fedavg-fesem-3-lr-0.05-fedper-private-2"
    split = Comparison.from_tables({"methods": ["fedavg"], "experiment": {"data.split": "rotated(4)"}})
    assert split.name == "rotated-4-fedavg"
    assert [cell.label for cell in comparison.cells()][1:3] == ["fedavg, seed 1", "fedavg+FT, seed 0"]
    assert {cell.setting for cell in comparison.cells()} == {""}


def test_cells_in_order_and_later_keys_win(tmp_path: Path) -> None:
    (tmp_path / "paper.toml").write_text(FILE, "utf-8")
    comparison = Comparison.from_toml(tmp_path / "paper.toml")
    comparison.check(tmp_path)
    cells = comparison.cells()
    settings = [f"{s}, participation = {p}, name = mlp" for s in ("β = 0.2", "rotated") for p in (0.5, 1.0)]
    assert [(c.setting, c.method, c.seed) for c in cells] == [
        (s, m, seed) for s in settings for m in ("FedAvg", "FedAvg+FT", "FeSEM (4)") for seed in (3, 0)
    ]
    assert (comparison.name, comparison.target) == ("paper", 0.8)
    first, other = cells[0].experiment, cells[4].experiment
    assert first == Experiment(
        data={"clients": 8, "split": "dirichlet(0.2)"},
        network="mlp",
        method="fedavg",
        training={"lr": 0.2, "epochs": 2},
        evaluation={"adapt": {}},  # for the row FedAvg+FT, which is read from this run
        run={"participation": 0.5, "seed": 3},
    )
    assert (other.training.lr, other.method.settings) == (0.05, {"clusters": 4})
    assert len({cell.key for cell in cells}) == sum(not cell.is_adapted for cell in cells)


def test_fedavg_after_adaptation_is_a_row_of_every_comparison_and_no_run_of_its_own() -> None:
    comparison = Comparison.from_tables({"methods": ["ifca", "fedavg", "fedavg(weights='uniform')"], "seeds": 1})
    assert comparison.rows == ("ifca", "fedavg", "fedavg+FT", "fedavg(weights='uniform')")
    ifca, fedavg, adapted, uniform = comparison.cells()
    assert (adapted.key, adapted.experiment, adapted.is_adapted) == (fedavg.key, fedavg.experiment, True)
    adapts = [cell.experiment.evaluation.adapt is not None for cell in (ifca, fedavg, uniform)]
    assert adapts == [False, True, False]
    assert Comparison.from_toml(comparison.to_toml()) == comparison
    # A comparison may leave it out, add others, be without FedAvg, or say itself how everybody adapts.
    without = Comparison.from_tables({**comparison.tables(), "adapted": {}})
    assert without.rows == ("ifca", "fedavg", "fedavg(weights='uniform')")
    assert without.cells()[1].experiment.evaluation.adapt is None
    both = Comparison.from_tables({**comparison.tables(), "adapted": {"fine": "ifca"}, "baseline": "fine"})
    assert both.rows == ("ifca", "fine", "fedavg", "fedavg(weights='uniform')")
    assert Comparison.from_tables({"methods": ["ifca"]}).rows == ("ifca",)
    steps = made(adapted={"x": "fedavg"}, experiment={"evaluation.adapt": {"steps": 3}})
    adapts_by = [cell.experiment.evaluation.adapt for cell in steps.cells()]
    assert {adapt.steps for adapt in adapts_by if adapt} == {3}


@pytest.mark.parametrize(
    "text",
    [
        FILE,
        'methods = ["fedavg", "grouped-layers(clusters=2, private=\'last:1\')"]\nseeds = 1\nmeasure = "worst10"',
        'methods = ["ifca"]\n[grid]\n"network.hidden" = [[8], [16, 8]]\n[experiment.network]\nname = "mlp"\n'
        '[tuned."hidden = [8]".ifca]\nmethod.clusters = 3',
    ],
)
def test_toml_there_and_back(text: str) -> None:
    comparison = Comparison.from_toml(text)
    assert Comparison.from_toml(comparison.to_toml()) == comparison
    assert Comparison.from_tables(comparison.tables()) == comparison
    assert [c.key for c in Comparison.from_toml(comparison.to_toml()).cells()] == [
        c.key for c in comparison.cells()
    ]


def test_what_was_picked_wins_in_its_setting_alone() -> None:
    comparison = made(settings={"a": {}, "b": {"training.epochs": 2}}, seeds=1)
    picked: dict[str, Any] = {"method": {"clusters": 5}, "training": {"lr": 0.3}}
    tuned = replace(comparison, tuned={"b": {"ifca(clusters=2)": picked}}).cells()
    lr = comparison.cells()[0].experiment.training.lr
    found = [(cell.experiment.method.settings.get("clusters"), cell.experiment.training.lr) for cell in tuned]
    assert found == [(None, lr), (2, lr), (None, lr), (5, 0.3)]


def test_another_name_drops_the_settings_of_the_former() -> None:
    own = Comparison.from_tables(
        {
            "methods": {"a": {"method.name": "ifca"}, "b": {}},
            "experiment": {"method": {"name": "fesem", "mu": 0.3}},
            "settings": {"s": {"method": {"clusters": 3}}},
        }
    )
    a, b = (cell.experiment.method for cell in own.cells() if cell.seed == 0)
    assert (a.name, a.settings) == ("ifca", {})
    assert (b.name, b.settings) == ("fesem", {"mu": 0.3, "clusters": 3})


def test_what_is_set_for_all_goes_to_all() -> None:
    one = made(methods=["ifca", "fesem"], experiment={"method": {"clusters": 3}})
    assert {cell.experiment.method.settings["clusters"] for cell in one.cells()} == {3}
    (said,) = problems(experiment={"method": {"clusters": 3}})
    assert re.search(r"fedavg: method\.clusters .*weights", said)


def test_a_file_of_ones_own_that_has_changed_is_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "from coterie.methods import FedAvg\n\n\nclass Averaged(FedAvg):\n    pass\n"
    (tmp_path / "averaged_here.py").write_text(text)
    experiment = Experiment(method="averaged_here:Averaged")
    before = key_of(experiment)
    (tmp_path / "averaged_here.py").write_text(f"{text}    # weighs otherwise\n")
    assert key_of(experiment) == before  # this process has imported what stood there
    monkeypatch.delitem(sys.modules, "averaged_here")
    assert key_of(experiment) != before


def test_the_key_is_the_run() -> None:
    base = Experiment(method="fesem", run={"rounds": 4})
    same = {
        "run.workers": 3,
        "run.client_timeout": 9.0,
        "run.checkpoint_every": 2,
        "run.folder": "x",
        "run.name": "y",
    }
    assert {key_of(base.updated({key: value})) for key, value in same.items()} == {key_of(base)}
    assert key_of(base.resolved()) == key_of(base)
    others = {
        "run.rounds": 5,
        "run.seed": 1,
        "run.link_mbit": 3.0,
        "method.mu": 0.9,
        "training.lr": 0.9,
        "data.clients": 7,
        "evaluation.every": 2,
        "network.name": "mlp",
    }
    keys = {key_of(base.updated({key: value})) for key, value in others.items()}
    assert len(keys) == len(others)
    assert key_of(base) not in keys
    assert all(len(key) == 16 and set(key) <= set("0123456789abcdef") for key in keys)


def test_all_methods_of_a_setting_get_the_same_public_samples() -> None:
    comparison = made(
        methods=["fedavg", "fedtsdp", "clusterfl"],
        settings={"open": {}, "said": {"data.public": 7}},
        seeds=1,
    )
    assert [cell.experiment.data.public for cell in comparison.cells()] == [179, 179, 179, 7, 7, 7]
    assert [cell.experiment.data.public for cell in made().cells()] == [None] * 6


def test_a_path_to_data_is_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.npz").write_bytes(b"")
    (tmp_path / "digits").mkdir()
    comparison = made(grid={"data": {"name": ["mine.npz", "digits"]}})
    assert [s.tables["data"]["name"] for s in comparison.settings] == [str(tmp_path / "mine.npz"), "digits"]
    assert made(experiment={"data": "mine.npz"}).experiment == {"data": {"name": str(tmp_path / "mine.npz")}}


def test_everything_that_is_wrong_with_the_tables_is_said_at_once() -> None:
    twice = ["fedavg", "fedavg"]
    assert len(problems(methods=twice, seeds=[1, 1], target=True, grids={}, name="a/b", settings={"": {}})) == 6
    found = problems(
        methods=["fedavg", "fesme", "fesem(muu=1)", "ifca("],
        baseline="x",
        measure="acc",
        experiment={"run": {"seed": 3}, "trainin": {}, "network": 3, "data.name": float("inf")},
        settings={"a": {"run.name": "x"}},
        grid={"run.seed": [1]},
        tuned={"b": {"fesem": {}}},
    )
    for said in (
        *("'trainin' .*training", r"network = 3 .*name, initial, start", r"experiment\.run\.seed .*seeds ="),
        *("'fesme' .*fesem", "muu .* mu", r"method 'ifca\('", r"settings\.a\.run\.name ", "measure 'acc'"),
        *(r"grid\.run\.seed .*seeds =", "setting 'b' .* a, seed = 1", r"'x' .*fedavg, fesem\(muu=1\), fesme"),
        r"experiment\.data\.name = inf .*finite",
    ):
        assert any(re.search(said, sentence) for sentence in found), said


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"methods": []}, r"methods = \[\] .*at least 1"),
        ({"methods": ["fesem@K(clusters=2)", "ifca@K"]}, "methods = .*once.*fesem@K4"),
        ({"methods": ["fesem@(clusters=2)"]}, "methods = .*label"),
        ({"methods": "fedavg"}, "methods = 'fedavg' .*list"),
        ({"methods": [1]}, "method '1' "),
        ({"adapted": "fedavg"}, "adapted = 'fedavg'"),
        ({"adapted": {"fedavg": "ifca(clusters=2)"}}, r"adapted\.fedavg .*already"),
        ({"adapted": {"x": "fedavgg"}}, "method 'fedavgg' .*fedavg"),
        ({"methods": {"A": {"training": {"lr": 0.1}}}}, r"methods\.A .*methods\.A\.method\.name"),
        ({"methods": {"A": {"method": "ifca", "data.split": "iid"}}}, r"methods\.A\.data\.split"),
        ({"methods": {"A": "ifca"}, "tuned": {"": {"A": {"data.split": "iid"}}}}, r"tuned\.\.A\.data\.split"),
        ({"target": -1, "measure": "loss"}, "target = -1 .*at least 0"),
        ({"grid": {"data.split": "iid"}}, r"grid\.data\.split = 'iid'"),
        ({"seeds": 0}, "seeds = 0 "),
        (
            {"grid": {"data.split": ["iid"]}, "settings": {"a": {"data.split": "iid"}}},
            r"grid .*data\.split.*settings\.a",
        ),
    ],
)
def test_tables_that_are_refused(tables: dict[str, Any], said: str) -> None:
    assert re.match(said, problems(**tables)[0])


def test_problems_name_the_methods_and_settings_that_have_them(tmp_path: Path) -> None:
    comparison = Comparison.from_tables(
        {
            "methods": {
                "A": "fesem(clusters=400)",
                "B": {"method.name": "fedavg", "training.lrr": 3},
                "C": "fedavg",
            },
            "settings": {"a": {"data": {"split": "iidd"}}, "b": {"run.rounds": 0}, "c": {}},
            "experiment": {"data": "nowhere.npz"},
        }
    )
    with pytest.raises(BadInput) as caught:
        comparison.check(tmp_path)
    found = caught.value.problems
    assert len(found) == len(set(found)) == 5
    assert "'nowhere.npz'" in found[0]
    where = {sentence.split(":")[0] for sentence in found[1:]}
    assert where == {"method A", "method B", "setting a", "setting b"}
    assert any(sentence.startswith("setting b: run.rounds = 0 ") for sentence in found)


def test_files_that_are_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.toml'"):
        Comparison.from_toml(tmp_path / "none.toml")
    (tmp_path / "run.toml").write_text(Experiment().to_toml(), "utf-8")
    with pytest.raises(BadInput, match=r"data .*experiment\.data"):
        Comparison.from_toml(str(tmp_path / "run.toml"))
    with pytest.raises(BadInput, match="line 1"):
        Comparison.from_toml("methods = [\n")


def test_a_named_dataset_says_by_which_metrics_methods_are_compared() -> None:
    texts = made(experiment={"data.name": "shakespeare", "network.name": "tests.own_networks:ViT"})
    assert texts.measure == "macro_perplexity"
    assert made(experiment={"data.name": "digits"}).measure == made().measure == "macro_accuracy"
    assert made(experiment={"data.name": "shakespeare", "task.metrics": ["accuracy"]}).measure == "macro_accuracy"
    mixed = {"a": {"data.name": "shakespeare"}, "b": {"data.name": "digits"}}
    assert made(settings=mixed).measure == made(settings={"a": {"data.name": "own.npz"}}).measure


def test_a_network_that_no_other_process_finds_is_refused() -> None:
    class Local(nn.Sequential):
        pass

    for network in (lambda: nn.Linear(64, 10), Local, Local(nn.Flatten(), nn.Linear(64, 10))):
        for form in (network, {"name": network}):
            with pytest.raises(BadInput, match=r"experiment\.network .*test_a_network"):
                Comparison.from_tables({"methods": ["fedavg"], "experiment": {"network": form}})


@pytest.mark.parametrize("how", ["network", "network.name"])
def test_a_network_may_be_given_in_python(how: str) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    comparison = Comparison.from_tables({"methods": ["fedavg"], "seeds": [0], "experiment": {how: module}})
    cell, *_ = comparison.cells()
    assert cell.experiment.network.name.startswith("given:torch.nn.modules.container.Sequential@")
    comparison.check()


@pytest.mark.parametrize("how", ["data", "data.name"])
def test_data_given_in_python_are_refused(how: str) -> None:
    experiment = {how: (np.zeros((20, 3)), np.arange(20) % 2)}
    with pytest.raises(BadInput, match=r"experiment\.data .*Python"):
        Comparison.from_tables({"methods": ["fedavg"], "experiment": experiment})


def test_a_label_stands_behind_the_name() -> None:
    found = Comparison.from_tables({"methods": ["fedavg", "fesem@K2(clusters=2)", "fesem@K4(clusters=4)"]})
    assert [variant.name for variant in found.methods] == ["fedavg", "K2", "K4"]
    assert [variant.tables["method"].get("clusters") for variant in found.methods] == [None, 2, 4]
