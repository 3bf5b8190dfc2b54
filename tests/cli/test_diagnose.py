"""`coterie diagnose`: what it takes, what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from coterie.runs.folder.run_folder import RunFolder
from tests.commandline import Terminal

FEW = ("--clients", "8", "--workers", "1", "--starts", "2", "--no-gains", "--set", "samples_per_client=60")


@pytest.mark.slow
def test_a_dataset_an_experiment_and_a_run_are_diagnosed_alike(terminal: Terminal, tmp_path: Path) -> None:
    split = ("--split", "rotated(2)")
    data = terminal("diagnose", "digits", *split, *FEW, "--json", "found.json")
    assert data.code == 0, data.err
    assert data.out.startswith("start 1 of 2: ")
    assert "\nstart 2 of 2: " in data.out
    assert re.search(r"8 clients .*digits, rotated\(2\), seed 0\n", data.out)
    assert "Yes (p " in data.out
    assert "4, 4 clients" in data.out
    assert "\nGroup 1: client 1, client 3, client 5, client 7 (confidence " in data.out
    assert "1.00 (ARI)" in data.out
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [group["clients"] for group in found["groups"]] == [
        [f"client {i}" for i in range(g, 8, 2)] for g in (0, 1)
    ]
    text = (
        'method = "fedavg"\n[data]\nname = "digits"\nsplit = "rotated(2)"\nclients = 8\nsamples_per_client = 60\n'
    )
    RunFolder.create(tmp_path / "runs", "first").write_experiment(f"{text}[run]\nworkers = 1\n")
    again = terminal("diagnose", "first", "--starts", "2", "--no-gains")
    assert answers(again.out) == answers(data.out)
    assert re.search(r"^next .*--write FILE\.toml", again.out, re.MULTILINE)


@pytest.mark.slow
def test_what_it_advises_is_written_and_runs(terminal: Terminal, tmp_path: Path) -> None:
    words = ("digits", "--split", "rotated(2)", *FEW, "--write", "advised.toml", "--page", "found.html")
    told = terminal("diagnose", *words)
    assert told.code == 0, told.err
    assert re.search(r" 1\. halves .*method\.alpha=0\.05", told.out)
    assert re.search(r"\n +2\. fesem .*method\.clusters=2", told.out)
    assert " up, " in told.out
    assert told.out.endswith("page    found.html\nnext    coterie run advised.toml\n")
    assert "chart-distances" in (tmp_path / "found.html").read_text(encoding="utf-8")
    assert "# Group 0: client 0, client 2" in (tmp_path / "advised.toml").read_text(encoding="utf-8")
    ran = terminal("run", "advised.toml", "--name", "advised", "--rounds", "1")
    assert ran.code == 0, ran.err
    again = terminal("diagnose", *words)
    assert again.code == 2
    assert "--write 'advised.toml' " in again.err


def answers(out: str) -> list[str]:
    """The lines that say what was found; what it costs differs from time to time."""
    lines = out.splitlines()
    first = next(number for number, line in enumerate(lines) if "(p " in line)
    return [line for line in lines[first:] if not line.startswith(("Which method?", "   ", "next", "all of it"))]


@pytest.mark.slow
def test_a_file_of_clients_is_diagnosed(terminal: Terminal, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["client,a,b,c,d,label"]
    for client in range(10):
        for _ in range(40):
            x = rng.normal(size=4)
            label = int((x @ [1, -1, 2, 0.5]) * (1 if client % 2 else -1) > 0)
            lines.append(f"site {client}," + ",".join(f"{v:.4f}" for v in x) + f",{label}")
    (tmp_path / "sites.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = terminal("diagnose", "sites.csv", "--workers", "1")
    assert found.code == 0, found.err
    assert "10 clients on " in found.out
    assert "Group 0: site 0, site 2, site 4, site 6, site 8 (confidence " in found.out
    assert re.search("pay.* Yes: .*each group", found.out)
    assert re.search(r" 10 clients .*\(site 0, ", found.out)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["x"], "'x' .*'runs'"),
        (["x.toml"], r"'x\.toml' .*coterie new x\.toml"),
        (["x.csv"], r"data = 'x\.csv' .*\.csv, \.npz or \.parquet"),
        (["sties.cvs"], r"'sties\.cvs' .*sites\.csv"),
        (["old.xlsx"], r"data = 'old\.xlsx' .*\.csv, \.npz or \.parquet"),
        (["nothing.csv"], r"nothing\.csv .*empty"),
        (["sites.csv"], r"sites\.csv: .*--set client=site.*--clients N; .*site, a, b, label"),
        (["sites.csv", "--set", "client=place"], r"data\.client = 'place' .*sites\.csv"),
        (["digits", "--page", "x.txt"], r"--page 'x\.txt' .*\.html"),
        (["no/x"], "data = 'no/x'"),
        (["digits", "--alpha", "0"], r"alpha = 0 .*0\.001"),
        (["digits", "--starts", "0"], "starts = 0 .* 1 to 1000"),
        (["digits", "--split", "rotatd(4)"], "'rotatd' .*rotated"),
        (["digits", "--page", "no/x.html"], r"--page 'no/x\.html' .*'no'"),
        (["digits", "--write", "x.json"], r"--write 'x\.json' .*\.toml"),
        (["digits", "--write", "no/x.toml"], r"--write 'no/x\.toml' .*'no'"),
        (["digits", "--json", "no/x.json"], r"--json 'no/x\.json' .*'no'"),
        ([], r"FILE\.toml\|RUN\|DATA"),
    ],
)
def test_what_is_not_possible_is_said_in_one_sentence(terminal: Terminal, words: list[str], sentence: str) -> None:
    Path("sites.csv").write_text("site,a,b,label\n" + "north,1,2,0\nsouth,2,1,1\n" * 20, encoding="utf-8")
    Path("old.xlsx").touch()
    Path("nothing.csv").touch()
    found = terminal("diagnose", *words)
    assert found.code == 2
    (line,) = found.err.splitlines()
    assert re.match(f"coterie: .*{sentence}", line)
    assert not found.out


def test_client_and_label_are_asked_for_at_once(terminal: Terminal) -> None:
    Path("sites.csv").write_text("site,a,quality\nnorth,1,good\nsouth,2,bad\n", encoding="utf-8")
    first, second = terminal("diagnose", "sites.csv").err.splitlines()
    assert "--set label=COLUMN" in first
    assert "--set client=COLUMN" in second
    # Who deals samples out at random is not asked.
    (only,) = terminal("diagnose", "sites.csv", "--clients", "4").err.splitlines()
    assert only == first


def test_the_client_is_asked_for_in_the_data_that_are_named_beside_the_file(terminal: Terminal) -> None:
    Path("old.csv").write_text("site,a,label\nnorth,1,0\nsouth,2,1\n", encoding="utf-8")
    Path("new data.csv").write_text("ward,b,label\nnorth,1,0\nsouth,2,1\n", encoding="utf-8")
    Path("e.toml").write_text('method = "fedavg"\n[data]\nname = "old.csv"\n', encoding="utf-8")
    (asked,) = terminal("diagnose", "e.toml", "--set", "data.name=new data.csv").err.splitlines()
    assert re.match("coterie: new data.csv: .* ward, b, label$", asked)


@pytest.mark.slow
def test_a_folder_whose_files_have_a_column_of_places_asks_who_the_client_is(
    tmp_path: Path, terminal: Terminal
) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    for name in "ab":
        rows = [f"p{row},h{row % 3},{row % 7},{row % 2}" for row in range(60)]  # a patient is in one row
        (folder / f"{name}.csv").write_text("\n".join(["patient,Hospital,x,label", *rows]), "utf-8")
    code, _, asked = terminal("diagnose", str(folder))
    assert code == 2
    assert "--set client=Hospital" in asked
    assert "--split by-user" in asked
    for answer in (("--split", "by-user"), ("--set", "client=Hospital")):
        assert terminal("diagnose", str(folder), "--starts", "1", *answer).code == 0
    (folder / "b.csv").unlink()
    (folder / "a.csv").write_text("Hospital,x,label\n" + "h0,1,0\nh0,2,1\n" * 20, "utf-8")
    assert "Hospital" not in terminal("diagnose", str(folder), "--starts", "1").err


def test_several_files_are_to_be_put_into_a_folder(tmp_path: Path, terminal: Terminal) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("client,x,label\nc,1,0\n", "utf-8")
    code, _, said = terminal("diagnose", str(tmp_path / "a.csv"), str(tmp_path / "b.csv"))
    assert code == 2
    assert "folder" in said
