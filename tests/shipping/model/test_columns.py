"""Columns by their names from training to prediction: order, levels, scales, gaps, and each client's model."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from coterie.clients.data import build
from coterie.runs.folder.reading import read_runs
from coterie.runs.folder.run_folder import RunFolder
from tests.commandline import Terminal

QUICK = "--rounds 6 --workers 1 --quiet --set epochs=5 --set lr=0.1 --name first"
CLIENTS = ("east", "north", "south", "west")


def patients(seed: int, clients: tuple[str, ...] = CLIENTS) -> pl.DataFrame:
    """Patients of several hospitals; in every other one, what is measured means the opposite."""
    rng = np.random.default_rng(seed)
    n = 60
    frames = []
    for number, client in enumerate(clients):
        label = rng.integers(0, 2, n)
        sign = 1 if number % 2 else -1
        frames.append(
            pl.DataFrame(
                {
                    "income": rng.normal(40_000 + 9_000 * sign * (2 * label - 1), 5_000),
                    "age": 50 + 20.0 * sign * (2 * label - 1) + rng.normal(0, 10, n),
                    "ward": [("a", "b")[value] for value in rng.integers(0, 2, n)],
                    "client": client,
                    "label": ["well" if value else "ill" for value in label],
                }
            )
        )
    return pl.concat(frames)


def train(terminal: Terminal, data: str, *words: str) -> str:
    code, out, err = terminal("run", "fesem", "--data", data, "--set", "clusters=2", *QUICK.split(), *words)
    assert code == 0, err
    return out + err


def accuracy(terminal: Terminal, *words: str) -> tuple[float, str]:
    code, out, err = terminal("predict", *words)
    assert code == 0, err
    found = next(line for line in out.splitlines() if line.startswith("accuracy "))
    return float(found.split()[1].rstrip(":%")) / 100, out


@pytest.mark.slow
def test_training_data_are_told_from_others_and_classes_keep_their_names(terminal: Terminal) -> None:
    patients(0).write_csv("wards.csv")
    patients(1).write_csv("fresh.csv")
    train(terminal, "wards.csv", "--set", "standardise=global")
    people = RunFolder("runs/first").federation()
    assert people is not None
    said = f" {people['train'].sum():,} of "
    for words in ([], ["--client", "east"]):
        note = " ".join(accuracy(terminal, "first", "--data", "wards.csv", *words)[1].split())
        assert said in note
        assert "coterie show first" in note
    assert "coterie show" not in accuracy(terminal, "first", "--data", "fresh.csv")[1]
    (run,) = read_runs([RunFolder("runs/first")])
    assert run.class_names == ("ill", "well")


@pytest.mark.slow
def test_the_order_of_columns_changes_nothing(terminal: Terminal) -> None:
    Path("wards").mkdir()
    whole = patients(0)
    for number, ((client,), table) in enumerate(whole.group_by("client", maintain_order=True)):
        table = table.drop("client")
        table.select(table.columns[:: 1 if number % 2 else -1]).write_csv(f"wards/{client}.csv")
    train(terminal, "wards", "--set", "standardise=client")
    fresh = patients(1)
    fresh.write_csv("fresh.csv")
    fresh.select(reversed(fresh.columns)).write_parquet("turned.parquet")
    each, out = accuracy(terminal, "first", "--data", "fresh.csv")
    assert "models of 4 clients" in out
    assert each > 0.9  # no one model is right in all hospitals
    assert accuracy(terminal, "first", "--data", "turned.parquet")[0] == each
    east = fresh.filter(pl.col("client") == "east").drop("client")
    east.write_csv("east.csv")
    east.select(sorted(east.columns)).write_csv("sorted.csv")
    alone, _ = accuracy(terminal, "first", "--data", "east.csv", "--client", "east")
    assert alone > 0.9
    assert terminal("export", "first", "--client", "east", "--to", "m.safetensors").code == 0
    assert accuracy(terminal, "m.safetensors", "--data", "sorted.csv")[0] == alone
    assert accuracy(terminal, "first", "--data", "sorted.csv", "--group", "0")[0] > 0.9


@pytest.mark.slow
def test_what_training_had_not_is_said_or_refused(terminal: Terminal) -> None:
    whole = patients(0)
    whole.write_csv("wards.csv")
    train(terminal, "wards.csv", "--set", "standardise=global")
    east = whole.filter(pl.col("client") == "east").drop("client")
    for table, said in (
        (east.drop("age"), "column age; .* income, age, ward"),
        (east.with_columns(height=pl.lit(1.8)), "column height"),
        (east.with_columns(age=pl.lit("old")), "column age in line 2 is 'old'"),
        (east.with_columns(pl.when(pl.col("age") > 50).then("age").alias("age")), "column age .* line "),
    ):
        table.write_csv("a.csv")
        code, out, err = terminal("predict", "first", "--data", "a.csv", "--client", "east")
        assert (code, out) == (2, "")
        assert re.fullmatch(f"coterie: a.csv.*{said}.*\n", err), err
    east.with_columns(ward=pl.Series(["c"] * 5 + ["a"] * 55)).write_csv("a.csv")
    _, out = accuracy(terminal, "first", "--data", "a.csv", "--client", "east")
    (note,) = [line for line in out.splitlines() if "column ward" in line]
    assert "'c' (5)" in note
    pl.concat([whole, east.with_columns(client=pl.lit("new")).select(whole.columns)]).write_csv("a.csv")
    code, out, _ = terminal("predict", "first", "--data", "a.csv")
    assert code == 0
    assert re.search(r"^note: .*\bnew\b", out, re.MULTILINE)


@pytest.mark.slow
def test_predictions_say_whose_they_are(terminal: Terminal) -> None:
    """Each row has its client, what is asked to be kept as it is written, and the model that answered."""
    table = patients(0).rename({"client": "Hospital", "label": "outcome"})
    table = table.with_columns(pl.col("outcome") == "ill")
    table.write_csv("wards.csv")
    train(
        terminal, "wards.csv", "--set", "standardise=client", "--set", "label=outcome", "--set", "client=Hospital"
    )
    numbers = [f"{row:04d}" for row in range(240)]
    fresh = table.with_columns(patient=pl.Series(numbers), visit=pl.int_range(240))[::-1]
    fresh.write_csv("fresh.csv")
    fresh.write_parquet("fresh.parquet")
    words = ("predict", "first", "--keep", "patient", "--keep", "visit", "--out", "p.csv")
    for data in ("fresh.csv", "fresh.parquet"):
        code, _, err = terminal(*words, "--data", data)
        assert (code, err) == (0, "")
        found = pl.read_csv("p.csv", schema_overrides={"patient": pl.String})
        assert found.columns[:6] == ["row", "Hospital", "patient", "visit", "model", "predicted"]
        assert found["patient"].to_list() == numbers[::-1]
        assert found["Hospital"].to_list() == fresh["Hospital"].to_list()
        assert found["label"].to_list() == fresh["outcome"].to_list()
        for client, model in found.select("Hospital", "model").iter_rows():
            assert f"'{client}'" in model
    assert terminal(*words[:-1], "p.npz", "--data", "fresh.csv", "--group", "0").code == 0
    with np.load("p.npz") as held:
        assert held["patient"].tolist() == numbers[::-1]
        assert set(held["model"].tolist()) == {held["model"][0]}
        assert "group 0" in held["model"][0]
    for refused in (("--keep", "pateint"), ("--keep", "predicted")):
        code, _, err = terminal("predict", "first", "--data", "fresh.csv", "--out", "q.csv", *refused)
        assert (code, len(err.splitlines()), Path("q.csv").exists()) == (2, 1, False)
        assert refused[1] in err
    code, _, err = terminal("predict", "first", "--data", "fresh.csv", "--keep", "patient")
    assert (code, "--out" in err) == (2, True)


@pytest.mark.slow
def test_a_table_for_a_model_of_images_is_told_the_shape_and_no_column(terminal: Terminal) -> None:
    assert terminal("run", "fedavg", "--rounds", "1", "--name", "r", "-q", "--baselines", "none").code == 0
    Path("patients.csv").write_text("client,sex,label\na,f,1\nb,m,0\n", "utf-8")
    ended = terminal("predict", "r", "--data", "patients.csv")
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert "8x8" in ended.err
    assert "sex" not in ended.err


@pytest.mark.medium
@pytest.mark.parametrize("setting", ["missing=mean", "standardise=global"])
def test_images_for_a_model_of_a_table_are_told_the_shapes(terminal: Terminal, setting: str) -> None:
    """Before they would be filled or scaled as its columns are."""
    patients(0).write_csv("patients.csv")
    train(terminal, "patients.csv", "--set", setting)
    np.savez("images.npz", features=np.zeros((5, 8, 8), np.float32))
    for data, shape in (("digits", "8x8x1"), ("images.npz", "(8, 8)")):
        ended = terminal("predict", "first", "--data", data, "--group", "0")
        assert (ended.code, len(ended.err.splitlines())) == (2, 1)
        assert shape in ended.err


@pytest.mark.medium
def test_kept_columns_of_any_name_are_written_and_are_no_features(terminal: Terminal) -> None:
    """`file` is the name of an argument of `np.savez`; a model of an array knows no names that would tell."""
    numbers = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    np.savez("whole.npz", features=numbers, label=numbers[:, 0] > 0, client=np.arange(80) % 4)
    train(terminal, "whole.npz")
    fresh = pl.DataFrame(numbers, schema=["a", "b", "c"]).with_columns(file=1000 + pl.int_range(80))
    fresh.with_columns(scan=pl.lit(b"x")).write_parquet("fresh.parquet")
    fresh.write_csv("fresh.csv")
    words = ("predict", "first", "--group", "0", "--keep", "file")
    code, _, err = terminal(*words, "--data", "fresh.csv", "--out", "p.npz")
    assert (code, err) == (0, "")
    with np.load("p.npz") as held:
        assert [int(number) for number in held["file"]] == list(range(1000, 1080))
    code, _, err = terminal(*words, "--keep", "scan", "--data", "fresh.parquet", "--out", "p.csv")
    assert (code, len(err.splitlines()), "scan" in err) == (2, 1, True)


@pytest.mark.medium
def test_files_may_write_the_name_of_their_column_of_clients_differently(terminal: Terminal) -> None:
    table = patients(0)
    table.write_csv("wards.csv")
    train(terminal, "wards.csv")
    Path("fresh").mkdir()
    table[:120].write_csv("fresh/a.csv")
    table[120:].rename({"client": "Client"}).write_csv("fresh/b.csv")
    code, _, err = terminal("predict", "first", "--data", "fresh", "--out", "p.csv")
    assert (code, err) == (0, "")
    assert pl.read_csv("p.csv")["client"].to_list() == table["client"].to_list()


@pytest.mark.medium
@pytest.mark.parametrize("missing", ["drop", "mean"])
def test_missing_values_go_by_a_policy(terminal: Terminal, missing: str) -> None:
    whole = patients(0).with_columns(pl.when(pl.int_range(240) % 10 != 3).then("age").alias("age"))
    whole.write_csv("wards.csv")
    words = ("run", "fesem", "--data", "wards.csv", "--rounds", "1", "--workers", "1", "--quiet")
    code, _, err = terminal(*words)
    assert code == 2
    assert re.search(r"wards\.csv: column age .*line 5 \(client east\)", err)
    assert re.search(r"24 of 240 rows.* age \(24\).*data\.missing = mean, drop or zero", err)
    train(terminal, "wards.csv", "--set", f"missing={missing}", "--set", "standardise=global")
    whole.write_csv("fresh.csv")
    if missing == "drop":
        code, _, err = terminal("predict", "first", "--data", "fresh.csv")
        assert (code, "line 5" in err) == (2, True)
    else:
        assert accuracy(terminal, "first", "--data", "fresh.csv")[0] > 0.8


def test_standardising_is_by_training_samples_alone(tmp_path: Path) -> None:
    patients(0).with_columns(pl.when(pl.int_range(240) % 10 != 3).then("age").alias("age")).write_csv(
        tmp_path / "wards.csv"
    )
    path = str(tmp_path / "wards.csv")
    plain = build(path, "by-user", None, 0, missing="mean")
    assert any("income varies" in note and "--set standardise=global" in note for note in plain.notes)
    training = np.concatenate([plain.slice(client, "train")[0].numpy() for client in range(4)])
    for standardise in ("global", "client"):
        found = build(path, "by-user", None, 0, missing="mean", standardise=standardise)
        assert not any("data.standardise" in note for note in found.notes)
        for client in range(4):
            before, after = (federation.slice(client, "test")[0].numpy() for federation in (plain, found))
            by = training if standardise == "global" else plain.slice(client, "train")[0].numpy()
            mean, deviation = by.mean(0, dtype=np.float64), by.std(0, dtype=np.float64)
            assert np.allclose(after, (before - mean) / deviation, atol=1e-4)
            own = found.preparation_of(client)
            assert np.allclose(own.mean, mean, rtol=1e-4)
            assert np.allclose(own.deviation, deviation, rtol=1e-4)
    turned = found.reordered(np.array([2, 0]))
    assert turned.preparation_of(0) == found.preparation_of(2)


@pytest.mark.medium
def test_a_named_dataset_is_standardised_for_prediction_too(terminal: Terminal) -> None:
    train(terminal, "digits", "--clients", "4", "--split", "iid", "--set", "standardise=global")
    assert accuracy(terminal, "first", "--data", "digits", "--client", "1")[0] > 0.8
