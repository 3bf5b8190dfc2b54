"""Tables: columns by their names, text as levels, ids that are no features, missing values and labels."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from coterie.clients.data import load
from coterie.clients.data.agree.agreement import match_columns
from coterie.clients.data.read.columns import ROLES, Columns
from coterie.clients.data.read.datasets import check_and_convert, default_split
from coterie.clients.data.read.preparation import (
    AS_READ,
    MOST_LEVELS,
    Column,
    Missing,
    Preparation,
    Sums,
    find_columns,
    handle_missing,
    make_inputs,
    to_texts,
)
from coterie.clients.data.read.tables import read_table
from coterie.clients.tasks import CLASSIFICATION, Regression
from coterie.errors import BadInput
from coterie.runs.schema.experiment import Experiment
from coterie.studies.compare.spec import key_of

RNG = np.random.default_rng(0)
WARD = pl.DataFrame(
    {
        "age": RNG.integers(20, 90, 12),
        "bmi": RNG.normal(25, 3, 12).round(2),
        "sex": ["f", "m"] * 6,
        "label": [0, 1, 1] * 4,
    }
)


def refused(data: Path) -> str:
    with pytest.raises(BadInput) as caught:
        load(str(data))
    (sentence,) = caught.value.problems
    return sentence


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_of_another_order_are_the_same_data(tmp_path: Path, ending: str) -> None:
    WARD.write_csv(tmp_path / "north.csv")
    getattr(WARD.select(reversed(WARD.columns)), f"write_{ending}")(tmp_path / f"south.{ending}")
    data = load(str(tmp_path))
    assert data.user_names == ("north", "south")
    assert np.array_equal(data.inputs[:12], data.inputs[12:])
    assert [column.name for column in data.preparation.columns] == ["age", "bmi", "sex"]
    assert data.preparation.input_names == ("age", "bmi", "sex=f", "sex=m")
    assert np.array_equal(data.inputs[:, 2], [1, 0] * 12)


def test_a_table_and_an_array_do_not_go_together(tmp_path: Path) -> None:
    WARD.write_csv(tmp_path / "a.csv")
    np.savez(tmp_path / "b.npz", x=np.zeros((4, 4)), y=[0, 1] * 2)
    assert re.search("b.npz .*features.*named columns", refused(tmp_path))


def test_the_features_of_an_archive_may_have_names(tmp_path: Path) -> None:
    values = RNG.normal(size=(6, 2)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=values, y=[0, 1] * 3, columns=["age", "bmi"])
    np.savez(tmp_path / "b.npz", x=values[:, ::-1], y=[0, 1] * 3, columns=["bmi", "age"])
    assert np.array_equal(load(str(tmp_path)).inputs, np.concatenate([values, values]))
    np.savez(tmp_path / "b.npz", x=values, y=[0, 1] * 3, columns=["bmi", "bmi"])
    assert re.search(r"columns .*\(2,\) and x \(6, 2\)", refused(tmp_path))


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_roles_are_recognised_everywhere_and_are_no_features(tmp_path: Path, ending: str) -> None:
    table = pl.DataFrame(
        {
            "x1": RNG.normal(size=8),
            "x2": RNG.normal(size=8),
            "y": [0, 1] * 4,
            "Client": ["b"] * 4 + ["a"] * 4,
            "split": ["train", "val", "test", "training"] * 2,
            "segment": [0, 0, 1, 1] * 2,
            "group": ["east"] * 4 + ["west"] * 4,
        }
    )
    path = tmp_path / f"data.{ending}"
    if ending == "npz":
        beside = {name: np.array(table[name].to_list()) for name in table.columns[2:]}
        np.savez(path, x=table.select("x1", "x2").to_numpy(), **beside)  # type: ignore[arg-type]
    else:
        getattr(table, f"write_{ending}")(path)
    data = load(str(path))
    assert data.inputs.shape == (8, 2)
    assert data.user_names == ("a", "b")
    assert data.given_split is not None
    assert data.given_split.tolist() == [0, 1, 2, 0] * 2
    assert data.units is not None
    assert data.units.tolist() == [2, 2, 3, 3, 0, 0, 1, 1]  # every client numbers its own
    assert data.user_groups is not None
    assert data.user_groups.tolist() == [1, 0]
    assert default_split(str(path)) == "by-user"


def test_segments_of_two_files_are_not_the_same(tmp_path: Path) -> None:
    for name in "ab":
        WARD.with_columns(segment=pl.lit(0)).write_csv(tmp_path / f"{name}.csv")
    units = load(str(tmp_path)).units
    assert units is not None
    assert units.tolist() == [0] * 12 + [1] * 12


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"client": pl.Series(["a"] * 11 + [None])}, "client .*line 13"),
        ({"sex": pl.Series(["f"] * 10 + [None, "m"])}, "sex .*line 12"),
        ({"bmi": pl.Series([1e300] * 12)}, r"bmi .*1e\+300 .*line 2"),
    ],
)
def test_unusable_values(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    WARD.with_columns(**change).write_csv(tmp_path / "a.csv")
    assert re.search(says, refused(tmp_path / "a.csv"))


def test_a_line_is_named_though_samples_before_it_were_left_out(tmp_path: Path) -> None:
    """A row without a label is left out; the line that is named is still the one of the file."""
    label = pl.Series([None, None, *range(10)]) % 2
    WARD.with_columns(label=label, age=pl.Series([*range(11), None])).write_csv(tmp_path / "a.csv")
    assert re.search("age .*line 13", refused(tmp_path / "a.csv"))


@pytest.mark.parametrize("written", ["%Y-%m-%d", "%d/%m/%Y", "%Y-%m-%d %H:%M:%S"])
def test_dates_are_no_features_and_may_be_roles(tmp_path: Path, written: str) -> None:
    days = pl.date_range(pl.date(2024, 1, 20), pl.date(2024, 1, 31), eager=True).cast(pl.Datetime)
    table = WARD.with_columns(day=days.dt.strftime(written), segment=days.dt.truncate("1w").dt.strftime(written))
    table.write_csv(tmp_path / "a.csv")
    data = load(str(tmp_path / "a.csv"))
    assert data.inputs.shape == (12, 4)
    assert ": day (" in data.notes[0]
    assert data.units is not None
    assert data.units.tolist() == [0] * 2 + [1] * 7 + [2] * 3


def test_decimal_commas_are_read_where_another_sign_separates(tmp_path: Path) -> None:
    table = WARD.with_columns(ward=pl.Series(["a;b", "c"] * 6))
    table.write_csv(tmp_path / "point.csv", separator=";")
    table.write_csv(tmp_path / "comma.csv", separator=";", decimal_comma=True)
    point, comma = (load(str(tmp_path / f"{name}.csv")) for name in ("point", "comma"))
    assert np.array_equal(point.inputs, comma.inputs)
    assert comma.preparation.input_names == ("age", "bmi", "sex=f", "sex=m", "ward=a;b", "ward=c")


def test_of_many_decimal_commas_the_cell_that_is_no_number_is_named(tmp_path: Path) -> None:
    rows = [f"{'ab'[i % 2]};{i},5;{i % 2}" for i in range(40)]
    rows[6] = "a;>200;0"
    (tmp_path / "a.csv").write_text("\n".join(["client;crp;label", *rows]), "utf-8")
    with pytest.raises(BadInput, match=r"crp .*'>200' in line 8"):
        load(str(tmp_path / "a.csv"))


def test_lists_of_digits_stay_text_though_one_is_none(tmp_path: Path) -> None:
    rows = [f'{"ab"[i % 2]},"{1 + i % 3},{2 + i % 2}",{i % 2}' for i in range(40)]
    rows[6] = "a,other,0"
    (tmp_path / "a.csv").write_text("\n".join(["client,drugs,label", *rows]), "utf-8")
    assert "drugs=other" in load(str(tmp_path / "a.csv")).preparation.input_names


@pytest.mark.parametrize(
    ("values", "is_text"),
    [
        (["1,2", "1,3", "2,3", "1", "2", "1,2"], True),
        (["3,4", "3,4", "a"], True),
        (["52,13", "48,11"], True),
        ([f"{number},25" for number in range(12)], False),
        ([f"{number},450.00" for number in range(1, 13)], False),
        ([f"1.{number}.3" for number in range(12)], True),
    ],
)
def test_numbers_that_would_be_left_out_as_text_are_refused(
    tmp_path: Path, values: list[str], is_text: bool
) -> None:
    """Answers that were ticked are values of text."""
    WARD.with_columns(ticked=pl.Series(values * (12 // len(values)))).write_csv(tmp_path / "a.csv")
    if is_text:
        assert any("ticked (" in note for note in load(str(tmp_path / "a.csv")).notes)
    else:
        assert re.search(r"ticked .*1450\.25", refused(tmp_path / "a.csv"))


def test_what_an_experiment_declares_as_text_is_text() -> None:
    columns = Columns("a.csv", pl.DataFrame({"stage": ["1", "2", "2b", "3"] * 3}), None)
    with pytest.raises(BadInput, match=r"column stage .* 3 .*'2b'"):
        find_columns(columns, AS_READ, [])
    (stage,) = find_columns(columns, AS_READ, [], ["stage"]).columns
    assert stage.levels == ("1", "2", "2b", "3")


def test_labels_with_a_comma_are_classes_where_the_task_says_so() -> None:
    columns = Columns("a.csv", np.zeros((40, 2)), np.array([f"{n % 5},{n % 7}" for n in range(40)]))
    with pytest.raises(BadInput, match=r"labels.*numbers.*task\.name = 'classification'"):
        check_and_convert("a", columns)
    assert check_and_convert("a", columns, CLASSIFICATION).classes == 35


def test_who_can_set_nothing_is_told_no_flag() -> None:
    """As with `coterie predict`, or at a client of a real federation."""
    with pytest.raises(BadInput, match=r"1 of 2 .*missing"):
        handle_missing(np.array([[np.nan], [1]], np.float32), Columns("a", np.zeros((2, 1)), None), AS_READ, [])


@pytest.mark.parametrize("missing", ["mean", "zero", "drop"])
def test_what_is_done_about_missing_values_is_noted(missing: Missing) -> None:
    notes: list[str] = []
    inputs = np.array([[np.nan], [1], [np.nan]], np.float32)
    handle_missing(inputs, Columns("a", np.zeros((3, 1)), None), replace(AS_READ, missing=missing), notes)
    assert [note.split()[0] for note in notes] == ["2"]


def test_a_text_that_is_missing_is_one_value_however_many_inputs_it_becomes() -> None:
    table = pl.DataFrame({"stage": ["i", "ii", "iii", None] * 3, "age": [1.0, None, 3.0, 4.0] * 3})
    columns = Columns("a.csv", table, None)
    known, notes = replace(find_columns(columns, AS_READ, []), missing="mean"), list[str]()
    handle_missing(make_inputs(columns, known, []), columns, known, notes)
    assert [note.split()[0] for note in notes] == ["6"]


def test_no_id_becomes_a_feature(tmp_path: Path) -> None:
    table = WARD.with_columns(record_id=pl.Series(RNG.permutation(12)), visit=pl.Series(range(5, 17)))
    table.write_csv(tmp_path / "a.csv")
    data = load(str(tmp_path / "a.csv"))
    assert data.inputs.shape == (12, 4)
    assert re.search(r"^a\.csv: .*: record_id \(.*\), visit \(.*\)$", data.notes[0])


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_and_gaps_of_csv(tmp_path: Path, separator: str) -> None:
    WARD.with_columns(gap=pl.Series(["NA", "?", *map(str, range(10))])).write_csv(
        tmp_path / "a.csv", separator=separator
    )
    assert re.search(r"2 of 12 .* gap \(2\)", refused(tmp_path / "a.csv"))
    for content, says in (
        ("a,label\n1,ä\n".encode("latin-1"), "UTF-8"),
        (b"a,a,label\n1,2,0\n1,2,1\n", "'a' twice"),
        (b"\n", "table"),
        (b"", "empty"),
        (b"a,label\n1,0\n2,1,9\n", "line 3"),
        (b'a,label\n1,0\n"2,1\n3,0\n', "line 3"),
    ):
        (tmp_path / "a.csv").write_bytes(content)
        assert re.search(f"a.csv .*{says}", refused(tmp_path / "a.csv"))


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        ([0, 1, None, 1, 0, 1, -1, 1, 0, 0, 0, 1], 10),
        (["u", "v", None, "v", "", "v"] * 2, 8),
        ([-1, 1] * 6, 12),
        ([0, 1, 2] * 4, 12),
    ],
)
def test_no_label_is_no_class(tmp_path: Path, labels: list[Any], kept: int) -> None:
    WARD.with_columns(label=pl.Series(labels)).write_parquet(tmp_path / "a.parquet")
    data = load(str(tmp_path / "a.parquet"))
    assert len(data.labels) == len(data.inputs) == kept
    assert data.classes == len(
        {label for label in labels if label not in (None, "")} - ({-1} if kept < 12 else set())
    )
    assert (f"{12 - kept} of 12" in data.notes[0]) == (kept < 12)


def test_sums_of_clients_are_those_of_all() -> None:
    values = np.random.default_rng(0).normal(700, 2, (12, 3))
    values[:, 2] = 1 / 3
    clients = np.split(values, [1, 5])
    sums = Sums.of(*clients)
    assert np.array_equal(sums.rows, np.sum([Sums.of(client).rows for client in clients], 0))
    assert np.allclose(sums.mean, values.mean(0))
    assert np.allclose(sums.deviation, [*values.std(0)[:2], 1], rtol=1e-4)


def test_accepted_names_are_in_lower_case_and_mean_one_thing() -> None:
    names = [name for role in ROLES.values() for name in role.names]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() for name in names)


def test_text_of_many_values_is_left_out() -> None:
    table = pl.DataFrame({"a": range(200), "b": [f"n{i % 90}" for i in range(200)], "label": [0, 1] * 100})
    table = table.with_columns(a=pl.col("a") * 2)
    data = check_and_convert("x", read_table(table, "x", True))
    assert data.inputs.shape == (200, 1)
    assert [note.count(": b (") for note in data.notes] == [1]


def test_what_is_done_to_inputs_counts_in_a_key_only_where_it_is_asked_for() -> None:
    plain = Experiment()
    assert not {"missing", "standardise"} & set(plain.tables()["data"])
    keys = {key_of(plain.updated({f"data.{key}": value})) for key, value in CHANGES}
    assert len(keys | {key_of(plain)}) == len(CHANGES) + 1


CHANGES = [("missing", "drop"), ("missing", "mean"), ("standardise", "client"), ("standardise", "global")]


def test_the_page_on_data_says_every_name() -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text("utf-8")
    for role in ROLES.values():
        assert f"| {role.what} | {', '.join(f'`{name}`' for name in role.names)} | {role.meaning} |" in page
    assert f"more than {MOST_LEVELS} values" in page


@pytest.mark.parametrize(
    ("labels", "task", "note"),
    [
        (np.arange(90) % 70 + 18, "regression", "70 .* 18 to 87,"),
        (RNG.normal(size=90), "regression", "90 numbers from "),
        (np.where(np.arange(90) < 3, np.nan, np.arange(90) / 7), "regression", "3 of 90"),
        (np.arange(90) % 70, "classification", "70 .* 0 to 69,"),
        (np.arange(90) % 20 * 3, "classification", "0 is 0, 3 is 1"),
        (np.arange(90) % 70 - 1, "classification", "2 of 90"),
        (np.array([f"n{k % 70}" for k in range(90)]), "classification", "n0 is 0"),
    ],
)
def test_numbers_of_many_values_are_no_classes(labels: Any, task: str, note: str) -> None:
    data = check_and_convert("x", Columns("x", RNG.normal(size=(90, 2)), labels))
    assert data.task.name == task
    assert any(re.search(note, said) for said in data.notes), data.notes
    if task == "regression":
        assert (data.classes, data.outputs, data.labels.dtype.name) == (0, 1, "float32")


def test_a_regression_keeps_minus_one() -> None:
    labels = np.arange(90) % 70 - 1
    data = check_and_convert("x", Columns("x", RNG.normal(size=(90, 2)), labels), Regression())
    assert data.labels[:, 0].tolist() == labels.tolist()


def test_numbers_as_text_are_not_cut_off() -> None:
    values = [1.0, 1.2, -3.0, 1e30, None, float("nan")]
    assert to_texts(pl.Series(values)).to_list() == ["1", "1.2", "-3", "1e+30", None, None]
    assert to_texts(pl.Series(values[:2], dtype=pl.Float32)).to_list() == ["1", "1.2"]
    table = pl.DataFrame({"stage": [1.2, 2.0]})
    stages = Preparation((Column("stage", ("1", "2")),))
    notes: list[str] = []
    inputs = make_inputs(Columns("a.csv", table, None), stages, notes)
    assert inputs.tolist() == [[0, 0], [0, 1]]
    assert "'1.2' (1)" in notes[0]
    with pytest.raises(BadInput, match=r"column stage .*'1\.2'.* 1, 2"):
        match_columns(Columns("a.csv", table, None), stages.columns, stages)
