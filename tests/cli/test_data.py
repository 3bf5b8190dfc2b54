"""Refusals of people's own data through the command line: one sentence for each, before anything is trained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import coterie
from coterie.errors import BadInput
from tests.commandline import Terminal

RNG = np.random.default_rng(0)
TABLE = pl.DataFrame(
    {
        "age": RNG.integers(20, 90, 80),
        "bmi": RNG.normal(25, 3, 80),
        "ward": RNG.choice(["a", "b"], 80),
        "client": np.repeat(["east", "west"], 40),
        "label": RNG.integers(0, 2, 80),
    }
)
GAPS = pl.when(pl.int_range(80) != 41).then("bmi").alias("bmi")


def run(terminal: Terminal, *words: str) -> tuple[int, str]:
    code, _, err = terminal("run", "fedavg", "--rounds", "1", "--workers", "1", "--quiet", *words)
    return code, err.replace(f"{Path.cwd()}/", "")


@pytest.mark.parametrize(
    ("table", "settings", "sentence"),
    [
        (TABLE.with_columns(user=pl.lit(1)), [], r"a\.csv .*client and user"),
        (
            TABLE.rename({"label": "price"}),
            ["label=prise"],
            r"data\.label = 'prise' .*a\.csv; .*price, age, bmi, ward, client",
        ),
        (TABLE, ["label=ward", "client=ward"], r"data\.label and data\.client .*'ward'"),
        (TABLE.with_columns(split=pl.lit("later")), [], r"a\.csv: split in line 2 .*later; .*train"),
        (TABLE.with_columns(group=pl.int_range(80) % 2), [], r"a\.csv: .*'east' .*several groups"),
        (
            TABLE.with_columns(GAPS),
            [],
            r"a\.csv: column bmi .*line 43 \(client west\); .*bmi \(1\); data\.missing = mean, drop or zero",
        ),
        (
            TABLE.with_columns(bmi=pl.Series(["25.5", "tall", *map(str, range(78))])),
            [],
            r"a\.csv: column bmi .*'tall' in line 3 \(client",
        ),
        (
            TABLE.with_columns(bmi=pl.Series([f"{n},450.00" for n in range(10, 90)])),
            [],
            r"a\.csv: column bmi .*1450\.25",
        ),
        (TABLE.with_columns(label=pl.lit(None)), [], r"a\.csv: .*label"),
        (TABLE.select("client", "label"), [], r"a\.csv .*no features"),
    ],
)
def test_a_table_is_refused_in_one_sentence(
    terminal: Terminal, table: pl.DataFrame, settings: list[str], sentence: str
) -> None:
    table.write_csv("a.csv")
    code, err = run(terminal, "--data", "a.csv", *(word for text in settings for word in ("--set", text)))
    assert code == 2
    assert re.fullmatch(f"coterie: {sentence}.*\n", err)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"drop": "bmi"}, r"wards/b\.csv .*no column bmi.* wards/a\.csv"),
        ({"add": "height"}, r"wards/b\.csv .*column height.* wards/a\.csv"),
        ({"drop": "label"}, r"wards/b\.csv .*label"),
        ({"add": "split"}, r"wards/b\.csv .*split.* wards/a\.csv .*none"),
    ],
)
def test_files_of_a_folder_that_differ_are_refused(
    terminal: Terminal, change: dict[str, Any], sentence: str
) -> None:
    Path("wards").mkdir()
    whole = TABLE.drop("client")
    whole[:40].write_csv("wards/a.csv")
    other = whole[40:].drop(change.get("drop", []))
    if added := change.get("add"):
        other = other.with_columns(pl.lit(1).alias(added))
    other.select(reversed(other.columns)).write_csv("wards/b.csv")
    code, err = run(terminal, "--data", "wards")
    assert code == 2
    assert re.fullmatch(f"coterie: {sentence}.*\n", err), err


def test_data_of_python_are_said_to_be_what_they_are(terminal: Terminal) -> None:
    code, err = run(terminal, "--data", "given-0123456789abcdef")
    assert code == 2
    assert "Python" in err


@pytest.mark.medium
def test_label_and_client_are_called_as_the_experiment_says(terminal: Terminal) -> None:
    """In training and in what is done later; the usual names are features then."""
    own = TABLE.drop("ward").with_columns(y=pl.col("bmi") * 2).rename({"label": "ill", "client": "site"})
    own.write_csv("own.csv")
    named = ("--set", "label=ill", "--set", "client=site", "--set", "lr=0.001")
    assert run(terminal, "--data", "own.csv", *named, "--name", "own") == (0, "")
    said = terminal("predict", "own", "--data", "own.csv").out
    assert " 56 of " in " ".join(said.split())
    assert "models of 2 clients" in said
    assert re.search(r"data\.label = 'ill' .*'digits'", run(terminal, "--data", "digits", "--set", "label=ill")[1])


@pytest.mark.medium
def test_a_frame_is_read_as_the_experiment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = TABLE.rename({"label": "ill", "client": "site"})
    data: dict[str, Any] = {"name": frame, "label": "ill", "client": "site"}
    training = {"rounds": 1, "workers": 1}
    result = coterie.run(coterie.Experiment(data=data, method="fedavg", run={**training, "name": "frame"}))
    assert coterie.resume(result.folder, data=frame).status == "finished"
    given = coterie.Experiment(data=frame.rename({"ill": "label"}), method="fedavg", run=training)
    with pytest.raises(BadInput, match=r"data\.label = 'ward'"):
        given.updated({"data.label": "ward"}).check()
    with pytest.raises(BadInput, match=r"data\.label = 'ill'"):
        coterie.Experiment(data={"name": (np.zeros((20, 2)), np.arange(20) % 2), "label": "ill"})


@pytest.mark.slow
def test_a_table_that_names_no_client_is_said_to_be_dealt_at_random(terminal: Terminal) -> None:
    """Its owner may have meant one of the columns; whoever says how many clients there are has not."""
    rows = [f"{n % 4},{n % 7},{n % 2}" for n in range(240)]
    Path("sites.csv").write_text("\n".join(["site,age,label", *rows]), "utf-8")
    words = ("run", "fedavg", "--data", "sites.csv", "--rounds", "1", "--workers", "1", "--baselines", "none")
    assert "client=site" in terminal(*words).out
    for known in (["--clients", "4"], ["--set", "client=site"]):
        ended = terminal(*words, *known)
        assert ended.code == 0, ended.err
        assert "client=site" not in ended.out
