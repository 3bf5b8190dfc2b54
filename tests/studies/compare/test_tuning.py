"""Tuning: the same budget for every method, decided by validation data alone."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from scipy import stats

import coterie
from coterie.clients.data.federation import Federation, build
from coterie.errors import BadInput
from coterie.runs import setup
from coterie.runs.folder.metrics import summary
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment, Prepared, prepare
from coterie.runs.schema.names import catalog
from coterie.runs.schema.registry import section_settings
from coterie.runs.schema.toml import literal
from coterie.runs.setup import load_federation
from coterie.studies.compare import tuning
from coterie.studies.compare.cells import CellOutcome, run_cells
from coterie.studies.compare.samplers import check_sampler, describe_range, holds, range_of
from coterie.studies.compare.spec import Cell, Comparison
from coterie.studies.compare.tuning import TUNING, describe_shortfalls, grid_of, tune, tuned_settings

METHODS = sorted(catalog("methods").names())
QUICK = {"data": {"clients": 4}, "network": {"name": "mlp", "hidden": [8]}, "run": {"rounds": 2}}

PLAIN = {"training": {"optimizer": "sgd"}, "aggregation": {"optimizer": "none"}}
"""Leaves learning rates and a method's own settings to be tuned."""


def comparison(methods: Any, **more: Any) -> Comparison:
    return Comparison.from_tables({"methods": methods, "seeds": 2, "experiment": QUICK, **more}, "tuned")


def possible_cells(search: Any) -> list[Cell]:
    """The cells of all trials that a search of a grid has."""
    search.begin(1000)
    return [trial.cell for trial in search.due(0)]


def runner(pool: Path, asked: list[Cell] | None = None) -> Callable[[list[Cell]], Mapping[str, CellOutcome]]:
    """Runs cells in this process, one after the other, and notes what was asked for."""

    def run(cells: list[Cell]) -> dict[str, CellOutcome]:
        outcomes = {}
        for cell in cells:
            if asked is not None:
                asked.append(cell)
            if not (pool / cell.key).exists():
                own = {"run.folder": str(pool), "run.name": cell.key, "run.workers": 1}
                try:
                    coterie.run(cell.experiment.updated(own))
                except BadInput as problem:
                    outcomes[cell.key] = CellOutcome("failed", "; ".join(problem.problems))
                    continue
            done = RunFolder(pool / cell.key).status == "finished"
            outcomes[cell.key] = CellOutcome("finished") if done else CellOutcome("failed", "it broke off")
        return outcomes

    return run


# ---- the grids


@pytest.mark.medium
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_grid_around_its_defaults(method: str) -> None:
    settings = tuned_settings(method)
    assert settings
    assert "method.warm_up" not in settings  # at equal rounds, the longest would win by its passes
    for key, setting in settings.items():
        assert len(set(setting.grid)) == len(setting.grid) > 1, key
        numbers = [value for value in setting.grid if isinstance(value, int | float)]
        assert numbers == sorted(numbers), key
        if setting.default is not None and setting.default != "auto":
            assert setting.default in setting.grid, key
        for value in setting.grid:
            changed = Experiment(method=method).updated({key: value}).resolved().tables()
            section, _, name = key.partition(".")
            assert changed[section][name] == value
            if section == "method":
                assert type(catalog("methods")[method].bind({name: value})[name]) is type(value), key


def test_the_learning_rate_has_one_grid_for_all() -> None:
    lr = next(s for s in section_settings("training") if s.name == "lr")
    rates = {method: tuned_settings(method).get("training.lr") for method in METHODS}
    assert {method for method, rate in rates.items() if rate is None} == {"fedsgd", "lbfgs"}
    assert all(rate == lr for rate in rates.values() if rate is not None)
    assert tuned_settings("fedsgd")["method.lr"].grid == lr.grid


@pytest.mark.parametrize(
    ("method", "rounds", "key", "kept"),
    [
        ("fedrep", 20, "private", None),  # 1 of 2 layers is all that is left: 2 would be training alone
        ("fedper", 20, "private", None),
        ({"name": "lg-fedavg", "layers": 1}, 20, "pretrain", (0, 5, 10)),
        ({"name": "lg-fedavg", "layers": 1, "pretrain": 0}, 8, "pretrain", (0, 5)),  # 10 of 8 would be FedAvg
        ({"name": "lg-fedavg", "layers": 1, "pretrain": 0}, 8, "layers", None),
        ("cfl", 15, "t_min", (5, 10)),
        ({"name": "grouped-layers", "after": 1}, 4, "after", (1, 3)),
    ],
)
def test_no_value_makes_another_method_of_one(
    method: Any, rounds: int, key: str, kept: tuple[int, ...] | None
) -> None:
    experiment = Experiment(**{**QUICK, "method": method, "run": {"rounds": rounds}})
    assert grid_of(experiment).get(f"method.{key}") == kept
    deep = experiment.updated({"network.hidden": [8, 8, 8]})
    assert (grid_of(deep).get("method.private") == (1, 2, 3)) == (key == "private")


@pytest.mark.parametrize(
    ("settings", "other"),
    [
        ({"name": "fedrep", "private": 2}, "training alone"),
        ({"name": "fedrep", "private": 1}, ""),
        ({"name": "lg-fedavg", "layers": 2, "pretrain": 0}, "FedAvg"),
        ({"name": "lg-fedavg", "layers": 1, "pretrain": 2}, "FedAvg"),
        ({"name": "lg-fedavg", "layers": 1, "pretrain": 1}, ""),
        ({"name": "fedcps", "lambda_0": 0.0, "clusters": 1}, "FedAvg"),
        ({"name": "fedcps", "lambda_0": 0.0, "personal_layers": 2, "warm_up": 0}, "IFCA"),
        ({"name": "fedcps", "lambda_0": 0.0, "personal_layers": 1}, ""),
        ({"name": "fedcps", "lambda_0": 0.1, "clusters": 1}, ""),
        ({"name": "cfl", "t_min": 3}, "FedAvg"),
        ({"name": "grouped-layers", "after": 3}, "groups"),
        ("fedprox", ""),
    ],
)
def test_settings_that_are_another_method_are_known(settings: Any, other: str) -> None:
    assert re.fullmatch(other and f".*{other}", tuning.other_method(Experiment(**{**QUICK, "method": settings})))


def test_a_default_that_is_another_method_is_no_trial_either(tmp_path: Path) -> None:
    given = comparison({"LG": {"method": {"name": "lg-fedavg", "layers": 1}, **PLAIN}})
    (search,) = tuning.plan_searches(given, tmp_path)  # pretrain = 10 of 2 rounds, as it is
    tried = possible_cells(search)
    assert {cell.experiment.method.settings.get("pretrain", 10) for cell in tried} == {0}
    assert len(tried) == 6  # one for each learning rate


def test_a_grid_is_walked_in_random_order_without_replacement() -> None:
    grid = {"a": (1, 2, 3), "b": (1, 2, 3, 4), "c": (0,)}
    points = [tuple(point.values()) for point in tuning.draw_points(grid, 0, "fedavg")]
    assert sorted(points) == [(a, b, 0) for a in (1, 2, 3) for b in (1, 2, 3, 4)]
    assert points == [tuple(point.values()) for point in tuning.draw_points(grid, 0, "fedavg")]
    others = [tuning.draw_points(grid, 1, "fedavg"), tuning.draw_points(grid, 0, "fesem")]
    assert all(points != [tuple(point.values()) for point in other] for other in others)
    firsts = [next(tuning.draw_points({"a": (1, 2, 3)}, seed, ""))["a"] for seed in range(300)]
    assert all(70 < firsts.count(value) < 130 for value in (1, 2, 3))
    vast = {str(i): tuple(range(10)) for i in range(15)}
    assert len({tuple(point.values()) for point in islice(tuning.draw_points(vast, 0, ""), 100)}) == 100


# ---- the search


Tuned = tuple[Comparison, Comparison, pl.DataFrame, Path]
"""Three methods in two settings, before and after; the table; the pool."""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    pool = tmp_path_factory.mktemp("pool")
    before = comparison(
        {
            "FedAvg": {"method": {"name": "fedavg"}},
            "FedProx": {"method": {"name": "fedprox"}},
            "FedProx at 0.1": {"method": {"name": "fedprox"}, **PLAIN, "training": {"lr": 0.1, "optimizer": "sgd"}},
        },
        settings={"iid": {"data": {"split": "iid"}}, "skewed": {"data": {"split": "dirichlet(0.3)"}}},
    )
    return before, *tune(before, 4, runner(pool), pool), pool


@pytest.mark.slow
def test_every_method_has_the_same_budget_and_the_best_on_validation_data_is_picked(tuned: Tuned) -> None:
    before, after, table, pool = tuned
    assert table.schema == TUNING
    assert not any(" trials, because" in sentence for sentence in describe_shortfalls(before, table, 4))
    pairs = [(s.name, m.name) for s in before.settings for m in before.methods]
    assert list(dict.fromkeys(table.select("setting", "method").iter_rows())) == pairs
    for own in table.partition_by("setting", "method"):
        assert own["trial"].to_list() == [1, 2, 3, 4]
        assert own["changes"][0] == ""
        assert own["key"].n_unique() == 4
        assert own["picked"].arg_true().to_list() == [own["value"].arg_max()]
    assert sorted(path.name for path in pool.iterdir()) == sorted(table["key"].unique())
    for row in table.iter_rows(named=True):
        folder = RunFolder(pool / row["key"])
        assert folder.experiment()["evaluation"]["on"] == "validation"
        assert folder.experiment()["run"]["seed"] == 0
        assert row["value"] == summary(folder.rounds())["macro_accuracy"]
    # The same points in every setting; what a method's table says itself stays.
    points = [own["changes"].to_list() for own in table.partition_by("setting", "method")]
    assert points[:3] == points[3:]
    own = table.filter(method="FedProx at 0.1")
    assert not any("training.lr" in changes for changes in own["changes"])
    assert own["points"].unique().to_list() == [4]
    assert {c.experiment.training.lr for c in after.cells() if c.method == "FedProx at 0.1"} == {0.1}


@pytest.mark.medium
def test_the_picks_are_in_the_comparison(tuned: Tuned) -> None:
    before, after, table, _ = tuned
    assert replace(after, tuned=before.tuned) == before
    assert Comparison.from_toml(after.to_toml()) == after
    assert any(after.tuned.values())
    picked = table.filter("picked")
    for cell in after.cells():
        if cell.is_adapted:  # read from the runs of another row
            continue
        row = picked.row(
            by_predicate=(pl.col("setting") == cell.setting) & (pl.col("method") == cell.method), named=True
        )
        tables = cell.experiment.tables()
        for change in filter(None, row["changes"].split(", ")):
            key, _, value = change.partition(" = ")
            section, _, name = key.partition(".")
            assert literal(tables[section][name]) == value
        assert cell.experiment.evaluation.on == "test"


@pytest.mark.medium
def test_what_ties_with_the_pick_is_said(tuned: Tuned) -> None:
    before, _, table, pool = tuned
    tied = 0
    for own in table.partition_by("setting", "method"):
        (best,) = own.filter("picked")["key"]
        for row in own.filter(~pl.col("picked")).iter_rows(named=True):
            both = (RunFolder(pool / key).clients().filter(round=2).sort("client") for key in (row["key"], best))
            one, other = (frame["accuracy"].to_numpy() for frame in both)
            half = stats.t.ppf(0.975, len(one) - 1) * (one - other).std(ddof=1) / np.sqrt(len(one))
            assert row["tied"] == (abs((one - other).mean()) <= half)
            tied += row["tied"]
    assert table.filter("picked")["tied"].null_count() == 6
    said = [sentence for sentence in describe_shortfalls(before, table, 4) if "other trials" in sentence]
    assert tied
    assert sum(int(sentence.split(": ")[1].split()[0]) for sentence in said) == tied
    assert all("3 other trials" in sentence for sentence in said)


@pytest.mark.slow
def test_the_metric_of_the_task_decides(tmp_path: Path) -> None:
    """Of a regression's settings the one with the lowest RMSE is picked, not the highest."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(240, 3)).astype(np.float32)
    np.savez(tmp_path / "own.npz", inputs=inputs, labels=(inputs @ [1.0, -2.0, 0.5]).astype(np.float32))
    data = {"name": str(tmp_path / "own.npz"), "clients": 4, "split": "iid"}
    given = comparison(["fedavg"], experiment={**QUICK, "data": data, "task": {"name": "regression"}})
    _, table = tune(given, 3, runner(tmp_path), tmp_path)
    assert table["picked"].arg_true().to_list() == [table["value"].arg_min()]
    folder = RunFolder(tmp_path / table.filter("picked")["key"][0])
    assert table["value"].min() == summary(folder.rounds(), folder.metrics)["macro_rmse"]
    assert table["value"].n_unique() == 3


@pytest.mark.slow
def test_a_small_grid_ends_early_and_says_so(tmp_path: Path) -> None:
    given = comparison({"fedavg": {"method": {"name": "fedavg"}, **PLAIN}})
    _, table = tune(given, 9, runner(tmp_path), tmp_path)
    assert table.height == 6
    assert describe_shortfalls(given, table, 9)[0].startswith("fedavg: 6 of 9 trials, ")


@pytest.mark.medium
def test_settings_that_cannot_run_do_not_count(tmp_path: Path) -> None:
    """The network has two layers, and says so only when it is built."""
    fixed = {"name": "fedcps", "clusters": 2, "lambda_0": 0.1}
    given = comparison({"FedCPS": {"method": fixed, **PLAIN, "training": {"lr": 0.1, "optimizer": "sgd"}}})
    asked: list[Cell] = []
    _, table = tune(given, 3, runner(tmp_path, asked), tmp_path)
    assert grid_of(given.cells()[0].experiment)["method.personal_layers"] == (1, 2, 3)
    assert not any("personal_layers = 3" in changes for changes in table["changes"])
    assert (table.height, len(asked)) == (2, 3)


@pytest.mark.slow
def test_a_method_that_is_another_one_whatever_its_settings_is_said_to_be(tmp_path: Path) -> None:
    """No leaf is tested within two rounds, so that every trial would be of FedAvg."""
    given = comparison(["adacfl"])
    _, trials = tune(given, 3, runner(tmp_path), tmp_path)
    (said,) = describe_shortfalls(given, trials, 3)
    assert re.match("adacfl: .*FedAvg", said)


def test_settings_that_do_not_go_together_are_never_asked_for(tmp_path: Path) -> None:
    common = {**QUICK, "data": {"clients": 3}, "method": {"name": "fesem", "clusters": 2}}
    given = comparison({"FeSEM": {"method": {"name": "fesem"}, **PLAIN}}, experiment=common)
    (search,) = tuning.plan_searches(given, tmp_path)
    assert search.points == 3 * 4 * 6
    possible = [cell.experiment for cell in possible_cells(search)]
    tables = [(e.method.settings["clusters"], e.method.settings.get("mu", 0.1), e.training.lr) for e in possible]
    assert tables[0] == (2, 0.1, 0.05)
    assert len(set(tables)) == len(tables) == 2 * 4 * 6
    assert {clusters for clusters, _, _ in tables} == {2, 3}


@pytest.mark.medium
def test_a_run_that_breaks_off_is_a_trial_without_a_value(tmp_path: Path) -> None:
    given = comparison(["fedavg"], experiment={**QUICK, "run": {"rounds": 4}, "training": {"lr": 1e30}})
    after, table = tune(given, 3, runner(tmp_path), tmp_path)
    assert table["value"].is_null().to_list() == [True, False, False]
    assert table["picked"].sum() == 1
    assert after.tuned
    after, table = tune(given, 1, runner(tmp_path), tmp_path)
    assert not after.tuned
    assert [said.partition(":")[0] for said in describe_shortfalls(given, table, 1)] == ["fedavg"]


@pytest.mark.medium
def test_a_method_that_cannot_begin_is_not_searched_for_ever(tmp_path: Path) -> None:
    given = comparison(["fedcps(personal_layers=9)", "fedavg"])
    asked: list[Cell] = []
    after, table = tune(given, 2, runner(tmp_path, asked), tmp_path)
    assert [cell.method for cell in asked].count("fedcps(personal_layers=9)") == 2
    assert table["method"].unique().to_list() == ["fedavg"]
    assert "fedcps(personal_layers=9)" not in after.tuned.get("", {})
    assert describe_shortfalls(given, table, 2)[0].startswith("fedcps(personal_layers=9): 0 of 2 trials")


@pytest.mark.slow
def test_interrupted_trials_are_gone_on_with(tmp_path: Path) -> None:
    """Also in the second batch, which a sampler draws by what the first came to."""
    sampler, given, left = "tpe", comparison(["fedavg"]), 5

    def cut(cells: list[Cell]) -> Mapping[str, CellOutcome]:
        nonlocal left
        now, left = cells[:left], max(0, left - len(cells))
        later = {cell.key: CellOutcome("interrupted") for cell in cells[len(now) :]}
        return {**runner(tmp_path)(now), **later}

    with pytest.raises(KeyboardInterrupt):
        tune(given, 6, cut, tmp_path, sampler)
    resumed = tune(given, 6, runner(tmp_path), tmp_path, sampler)
    (tmp_path / "other").mkdir()
    straight = tune(given, 6, runner(tmp_path / "other"), tmp_path / "other", sampler)
    assert resumed[0] == straight[0]
    assert resumed[1].equals(straight[1])
    assert resumed[1]["changes"].n_unique() > 4


@pytest.mark.slow
@pytest.mark.usefixtures("forked_cells")
def test_processes_give_the_same(tmp_path: Path) -> None:
    """And a trial that is stopped at a quarter of its rounds goes on to the bits of one that is not."""
    given = comparison(["fedavg"], experiment={**QUICK, "run": {"rounds": 4}})
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    here = tune(given, 4, runner(one), one, "tpe", True)
    there = tune(given, 4, partial(run_cells, pool=two, jobs=2), two, "tpe", True)
    assert here[0] == there[0]
    assert here[1].equals(there[1])
    for key, rounds in here[1].select("key", "rounds").iter_rows():
        assert RunFolder(two / key).rounds().height == rounds  # no round more than it is judged by


@pytest.mark.slow
def test_pruned_trials_take_the_same_rounds_of_every_method(tmp_path: Path) -> None:
    given = comparison(["fedavg", "fedprox"], experiment={**QUICK, "run": {"rounds": 8}})
    after, table = tune(given, 4, runner(tmp_path), tmp_path, "tpe", prune=True)
    for method in ("fedavg", "fedprox"):
        own = table.filter(method=method)
        # Of each four trials two play 2 rounds, one plays 4 and one all 8.
        assert sorted(own["rounds"].to_list()) == [2, 2, 4, 8]
        assert own.filter(pl.col("rounds") < 8)["pruned"].all()
        assert own.filter("picked")["rounds"].to_list() == [8]
    assert not any(" trials, because" in sentence for sentence in describe_shortfalls(given, table, 4))
    assert set(after.tuned.get("", {})) <= {"fedavg", "fedprox"}


@pytest.mark.slow
def test_samplers_leave_the_grid_and_stay_within_its_ends(tmp_path: Path) -> None:
    _, table = tune(comparison(["fedprox"]), 8, runner(tmp_path), tmp_path, "random")
    rates = [RunFolder(tmp_path / key).experiment()["training"]["lr"] for key in table["key"]]
    grid = next(s for s in section_settings("training") if s.name == "lr").grid
    assert all(min(grid) <= rate <= max(grid) for rate in rates)
    assert sum(rate not in grid for rate in rates) >= 5
    assert table["changes"][0] == ""
    assert table["points"].is_null().all()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((0.01, 0.03, 0.1, 0.3), "0.01 to 0.3 (log)"),
        ((0, 0.001, 0.1), "0.001 to 0.1 (log)"),
        ((0.1, 0.5, 0.9), "0.1 to 0.9"),
        ((1, 2, 4), "1 to 4"),
        (("uniform", "samples"), 'in "uniform", "samples"'),
        ((True, False), "in true, false"),
    ],
)
def test_a_range_is_what_a_grid_spans(values: tuple[Any, ...], said: str) -> None:
    span = range_of(values)
    assert describe_range(span) == said
    assert all(holds(span, value) for value in values if value or len(values) < 3)
    assert not any(holds(span, value) for value in (1e9, -1.0, "else"))


def test_an_unknown_sampler_and_a_missing_library_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="'bayes'"):
        check_sampler("bayes")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_sampler("grid")
    with pytest.raises(BadInput, match=r"'tpe' .*optuna.*coterie\[tune\]"):
        check_sampler("tpe")


@pytest.mark.parametrize(
    ("trials", "more", "said"),
    [
        (0, {}, "tune = 0 .*at least 1"),
        (2, {"experiment": {**QUICK, "data": {"clients": 4, "validation": 0}}}, r"data\.validation = 0 "),
    ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path: Path, trials: int, more: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        tuning.check(comparison(["fedavg", "fedprox"], **more), trials, tmp_path)


# ---- no test data


@pytest.mark.slow
def test_tuning_never_looks_at_test_data(tmp_path: Path) -> None:
    """With other labels on all test samples the picks are the same to the bit, and the final accuracies are not."""
    data = tmp_path / "own.npz"
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    inputs = (rng.normal(size=(4, 6))[labels] + rng.normal(size=(400, 6))).astype(np.float32)
    np.savez(data, inputs=inputs, labels=labels)
    federation = build(str(data), "iid", 4, 0)
    tested = np.concatenate([federation.slice(client, "test")[0].numpy() for client in range(4)])
    held = (inputs[:, None] == tested[None]).all(axis=2).any(axis=1)
    assert held.sum() == len(tested) == federation.test_samples.sum()

    given = comparison(["ditto"], experiment={**QUICK, "data": {"name": str(data), "clients": 4}})
    found, finals = [], []
    for name, written in (("true", labels), ("false", np.where(held, (labels + 1) % 4, labels))):
        np.savez(data, inputs=inputs, labels=written)
        pool = tmp_path / name
        pool.mkdir()
        found.append(tune(given, 4, runner(pool), pool, "tpe", True))
        cells = found[-1][0].cells()
        runner(pool)(cells)
        finals.append([RunFolder(pool / cell.key).clients()["accuracy"].to_list() for cell in cells])
    (picks, table), (other_picks, other_table) = found
    assert picks == other_picks
    assert any(picks.tuned.values())
    assert table.equals(other_table)
    assert table["value"].is_not_null().all()
    assert table["pruned"].any()
    assert all(final != other for final, other in zip(*finals, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedcps", "dcpfl", "fedtsdp", "adacfl"])
def test_no_method_measures_test_data_where_validation_data_count(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scrambled(prepared: Prepared) -> Federation:
        federation = load_federation(prepared)
        inputs, labels = federation.inputs.clone(), federation.labels.clone()
        for client in range(federation.n):
            first, last = federation.bounds[client, 2:]
            inputs[first:last] = inputs[first:last].flip(0) * -1
            labels[first:last] = (labels[first:last] + 1) % federation.classes
        return replace(federation, inputs=inputs, labels=labels)

    experiment = Experiment(
        data={"clients": 4, "samples_per_client": 60},
        method=method,
        network={"name": "mlp", "hidden": [8]},
        run={"rounds": 2},
    )

    def measured(on: str) -> list[str]:
        rounds = coterie.rounds(experiment.updated({"evaluation.on": on}))
        return [repr({**round.metrics, "seconds": 0}) for round in rounds]

    validated, tested = measured("validation"), measured("test")
    monkeypatch.setattr(setup, "load_federation", scrambled)
    assert measured("validation") == validated != tested
    assert measured("test") != tested


def test_runs_that_count_may_train_on_validation_samples() -> None:
    """Trials do not, nor do methods that look at these samples themselves; the test samples stay the same."""
    methods = {"fedavg": "fedavg", "ditto": {"method": {"name": "ditto", "dynamic": True}}}
    before, after = comparison(methods, adapted={}), comparison(methods, adapted={}, refit=True)
    assert Comparison.from_toml(after.to_toml()) == after
    for own, refitted in zip(before.cells(), after.cells(), strict=True):
        kept, whole = (load_federation(prepare(cell.experiment)) for cell in (own, refitted))
        counts = [len(kept.slice(0, name)[0]) for name in ("train", "validation", "test")]
        trained = counts[0] if own.method == "ditto" else counts[0] + counts[1]
        assert len(whole.slice(0, "train")[0]) == trained
        assert torch.equal(whole.slice(0, "test")[0], kept.slice(0, "test")[0])
    for search in tuning.plan_searches(after, Path("pool")):
        assert all(cell.experiment.data.validation for cell in possible_cells(search))


def test_nobody_is_tested_on_what_trials_were_measured_on() -> None:
    """A few-shot client is validated and tested on classes that it has no training samples of."""
    split = "few-shot(0.5, samples_per_class=10, held_out=regular)"
    own, refitted = (
        load_federation(prepare(cell.experiment))
        for refit in (False, True)
        for cell in Comparison.from_tables(
            {"methods": ["fedavg"], "experiment": {"data": {"clients": 8, "split": split}}, "refit": refit}
        ).cells()[:1]
    )
    for client in range(own.n):
        assert torch.equal(refitted.slice(client, "test")[0], own.slice(client, "test")[0])


def test_a_picked_rate_at_an_end_of_the_grid_is_told() -> None:
    grid = {"training.lr": (0.001, 0.1, 0.5), "method.lam": (0.1, 1.0)}
    for rate, told in ((0.001, True), (0.1, False), (0.5, True)):
        assert bool(tuning.find_edges(grid, {"training.lr": rate, "method.lam": 0.1})) == told


def test_rates_come_first_then_optimizers_and_are_the_same_for_all() -> None:
    """All rates of the grid are tried before anything else; then optimizers take turns with the whole grid."""
    methods = {name: name for name in ("fedprox", "ditto", "apfl", "fedsoft")}
    *searches, plain, own_step = tuning.plan_searches(comparison(methods, adapted={}), Path("pool"))
    rates = len(grid_of(searches[0].cell.experiment)["training.lr"])
    for search in searches:
        search.begin(rates + 6)
    fedprox, ditto = ([trial.changes for trial in search.due(0)] for search in searches)
    assert fedprox[:rates] == ditto[:rates]
    assert [list(changes) for changes in fedprox[:rates]] == [[], *[["training.lr"]] * (rates - 1)]
    assert fedprox[rates::2] == ditto[rates::2]
    solvers = {"training.lr", "training.optimizer", "aggregation.optimizer"}
    assert all(set(changes) == solvers for changes in fedprox[rates::2])
    assert all("method.mu" in changes for changes in fedprox[rates + 1 :: 2])
    # APFL's steps are plain SGD, and FedSoft's models are mixtures.
    assert "training.optimizer" not in grid_of(plain.cell.experiment)
    assert "aggregation.optimizer" not in grid_of(own_step.cell.experiment)
