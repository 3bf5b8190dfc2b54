"""What is read of run folders: the last evaluated round, totals, the way to the target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coterie import run
from coterie.errors import BadInput
from coterie.runs.folder.metrics import CLASSIFICATION
from coterie.runs.folder.run_folder import RunFolder
from coterie.studies.compare.measures import CELLS, CLIENTS, CURVES, Frames, measure_cells
from coterie.studies.compare.spec import Comparison
from coterie.studies.compare.table import summarise

from .by_hand import comparison, folder

NAN = math.nan


def measured(
    parent: Path, courses: Mapping[str, Sequence[Sequence[float | None] | None]], **more: Any
) -> tuple[Comparison, Frames]:
    """A comparison with the accuracy of each method, seed and round; None for a cell that is not finished."""
    plan = comparison(list(courses), seeds=len(next(iter(courses.values()))), **more)
    finished = {}
    for cell in plan.cells():
        course = courses[cell.method][plan.seeds.index(cell.seed)]
        if course is not None:
            finished[cell.key] = folder(parent, cell.key, course)
    found = measure_cells(plan, finished)
    assert (found.cells.schema, found.curves.schema, found.clients.schema) == (CELLS, CURVES, CLIENTS)
    return plan, found


def test_a_cell_has_its_last_evaluation_and_its_totals(tmp_path: Path) -> None:
    plan, found = measured(tmp_path, {"fedavg": [[None, 0.5, None, 0.75, None]]})
    row = found.cells.row(0, named=True)
    assert (row["setting"], row["method"], row["seed"], row["key"]) == ("", "fedavg", 0, plan.cells()[0].key)
    assert row["rounds"] == 5
    assert (row["macro_accuracy"], row["accuracy"], row["loss"]) == (0.75, 0.74, 0.25)
    assert row["worst10"] == pytest.approx(0.65)
    assert (row["groups"], row["ari"], row["nmi"]) == (5, 0.5, 0.25)
    assert (row["up_bytes"], row["down_bytes"]) == (1500, 150)
    assert (row["simulated_seconds"], row["seconds"], row["failed"]) == (15.0, 1.25, 3)


@pytest.mark.medium
def test_the_target_is_what_the_baseline_has_in_the_end_seed_by_seed(tmp_path: Path) -> None:
    courses: Mapping[str, Sequence[Sequence[float | None] | None]] = {
        "fedavg": [[0.3, 0.5, 0.5], [0.3, 0.6, 0.4], None],
        "ifca": [[0.5, 0.6, 0.7], [0.1, 0.2, 0.3], [0.9, 0.9, 0.9]],
    }
    plan, found = measured(tmp_path, courses)
    columns = ("method", "seed", "target", "rounds_to_target", "bytes_to_target", "seconds_to_target")
    assert found.cells.select(columns).rows() == [
        ("fedavg", 0, 0.5, 2, 330, 3.0),
        ("fedavg", 1, 0.4, 2, 330, 3.0),
        ("ifca", 0, 0.5, 1, 110, 1.0),
        ("ifca", 1, 0.4, None, None, None),  # never
        ("ifca", 2, None, None, None, None),  # there is no baseline to reach
    ]
    told = summarise(plan, found)
    assert told["aimed"].to_list() == [2, 2]
    assert told["reached"].to_list() == [2, 1]


@pytest.mark.parametrize(
    ("measure", "target", "course", "reached"),
    [
        # Rounds without an evaluation reach no target, but were sent and took their time all the same.
        ("macro_accuracy", 0.6, [None, None, 0.5, None, None, 0.9, None], (6, 110 * 21, 21.0)),
        ("macro_accuracy", 0.6, [NAN, 0.7, 0.9], (2, 330, 3.0)),
        ("macro_accuracy", 0.8, [0.8, 0.1], (1, 110, 1.0)),
        ("macro_accuracy", 0.9, [0.1, 0.2], (None, None, None)),
        ("loss", 0.5, [0.25, 0.5, 0.75], (2, 330, 3.0)),
    ],
)
def test_a_given_target_is_reached_in_the_first_evaluated_round_that_has_it(
    tmp_path: Path, measure: str, target: float, course: list[float | None], reached: tuple[Any, ...]
) -> None:
    _, found = measured(tmp_path, {"fedavg": [course]}, target=target, measure=measure)
    columns = ("target", "rounds_to_target", "bytes_to_target", "seconds_to_target")
    assert found.cells.select(columns).rows() == [(target, *reached)]


def test_what_is_not_a_number_is_null(tmp_path: Path) -> None:
    _, found = measured(tmp_path, {"fedavg": [[0.5, NAN]], "ifca": [[NAN, 0.5]]})
    first, second = found.cells.to_dicts()
    assert all(first[name] is None for name in CLASSIFICATION.columns)
    assert first["target"] is None
    assert second["macro_accuracy"] == 0.5
    assert found.curves["macro_accuracy"].to_list() == [0.5, None, None, 0.5]
    assert found.clients["accuracy"].to_list() == pytest.approx([None, None, 0.4, 0.6])
    for frame in (found.cells, found.curves, found.clients):
        assert not any(frame[name].is_nan().any() for name, kind in frame.schema.items() if kind == pl.Float64)


def test_a_run_that_was_never_evaluated(tmp_path: Path) -> None:
    _, found = measured(tmp_path, {"fedavg": [[None, None]], "ifca": [[0.5, 0.6]]})
    assert found.cells["macro_accuracy"].to_list() == [None, 0.6]
    assert found.cells["rounds_to_target"].to_list() == [None, None]
    assert found.clients["method"].unique().to_list() == ["ifca"]


def test_curves_are_summed_from_the_first_round(tmp_path: Path) -> None:
    _, found = measured(tmp_path, {"fedavg": [[None, 0.5, 0.75]], "ifca": [[0.25, 0.5]]})
    assert found.curves.select("method", "round", "bytes", "simulated_seconds", "macro_accuracy").rows() == [
        ("fedavg", 1, 110, 1.0, None),
        ("fedavg", 2, 330, 3.0, 0.5),
        ("fedavg", 3, 660, 6.0, 0.75),
        ("ifca", 1, 110, 1.0, 0.25),
        ("ifca", 2, 330, 3.0, 0.5),
    ]


def test_clients_are_those_of_the_last_evaluation(tmp_path: Path) -> None:
    _, found = measured(tmp_path, {"fedavg": [[0.25, 0.5, None]]})
    assert found.clients.drop("setting", "method", "seed").rows() == [
        (0, "hospital 0", 0, 0, 10, 0.4, None, None),
        (1, "hospital 1", 1, 1, 20, 0.6, None, None),
    ]


def test_a_federation_without_planted_groups_or_names(tmp_path: Path) -> None:
    plan = comparison(["fedavg"], seeds=1)
    kept = folder(tmp_path, "plain", [0.5], planted=False, people=False)
    found = measure_cells(plan, {plan.cells()[0].key: kept})
    assert found.cells.select("ari", "nmi").row(0) == (None, None)
    assert found.clients["name"].to_list() == ["client 0", "client 1"]
    assert found.clients["true_group"].to_list() == [None, None]
    assert summarise(plan, found)["ari_mean"].to_list() == [None]


def test_methods_that_are_the_same_run_have_a_row_each(tmp_path: Path) -> None:
    methods = {"one": {"method": {"name": "fedavg"}}, "two": {"method": {"name": "fedavg"}}}
    plan = Comparison.from_tables({"methods": methods, "seeds": 1, "name": "twins", "adapted": {}})
    key, same = (cell.key for cell in plan.cells())
    assert key == same
    found = measure_cells(plan, {key: folder(tmp_path, key, [0.5])})
    assert found.cells["method"].to_list() == ["one", "two"]
    assert found.clients.height == 4
    assert summarise(plan, found)["difference"].to_list() == [None, 0.0]


def test_nothing_is_finished() -> None:
    found = measure_cells(comparison(), {})
    assert (found.cells.schema, found.curves.schema, found.clients.schema) == (CELLS, CURVES, CLIENTS)
    assert (found.cells.height, found.curves.height, found.clients.height) == (0, 0, 0)


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    plan = comparison(["fedavg"], seeds=1)
    kept = folder(tmp_path, "cut", [0.5])
    (kept.path / "rounds.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInput, match=r"rounds\.parquet"):
        measure_cells(plan, {plan.cells()[0].key: kept})


@pytest.mark.slow
def test_real_runs_are_read_as_they_tell_themselves_before_and_after_adaptation(tmp_path: Path) -> None:
    experiment = {
        "data": {"clients": 4, "split": "dirichlet(0.3)", "samples_per_client": 50},
        "network": {"name": "mlp", "hidden": [8]},
        "run": {"rounds": 3, "workers": 1},
        "evaluation": {"every": 2},
    }
    plan = Comparison.from_tables({"methods": ["fedavg", "fedper"], "seeds": 2, "experiment": experiment})
    finished, results = {}, {}
    for key, one in {cell.key: cell.experiment for cell in plan.cells()}.items():
        results[key] = run(one.updated({"run.folder": str(tmp_path), "run.name": key}))
        finished[key] = RunFolder(results[key].folder)
    found = measure_cells(plan, finished)
    columns = [*CLASSIFICATION.columns, "ari", "nmi", "groups"]
    columns += ["up_bytes", "down_bytes", "simulated_seconds", "rounds"]
    for row in found.cells.filter(pl.col("method") != "fedavg+FT").to_dicts():
        told = results[row["key"]].summary
        assert {name: row[name] for name in columns} == {name: told[name] for name in columns}
    last = found.curves.group_by("method", "seed", maintain_order=True).last()
    assert last["bytes"].to_list() == (found.cells["up_bytes"] + found.cells["down_bytes"]).to_list()
    assert found.clients.height == 6 * 4
    means = found.clients.group_by("method", "seed", maintain_order=True).agg(pl.col("accuracy").mean())
    assert means["accuracy"].to_list() == pytest.approx(found.cells["macro_accuracy"].to_list())
    # The row after adaptation is read from the runs of FedAvg.
    of_first = found.cells.filter(seed=0)
    before, after = (of_first.filter(method=method).row(0, named=True) for method in ("fedavg", "fedavg+FT"))
    rounds = finished[before["key"]].rounds()
    assert before["adapted_macro_accuracy"] == after["macro_accuracy"] == rounds["adapted_macro_accuracy"][-1]
    assert after["worst10"] == after["adapted_worst10"] == rounds["adapted_worst10"][-1]
    assert after["up_bytes"] == before["up_bytes"]
    curve = found.curves.filter(method="fedavg+FT", seed=0)
    assert curve["macro_accuracy"].to_list() == rounds["adapted_macro_accuracy"].to_list()
    assert summarise(plan, found)["adapted_from"].to_list() == [None, "fedavg", None]
