"""Names of earlier versions, through the command line: one sentence each, with the name of today."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.commandline import Terminal

TINY = ("--rounds", "1", "--clients", "3", "--network", "mlp", "--set", "network.hidden=2", "--workers", "1")


def write(text: str) -> Callable[[Path], None]:
    """Return what writes an experiment file."""

    def save(run: Path) -> None:
        Path("old.toml").write_text(text, "utf-8")

    return save


def make_older(run: Path) -> None:
    """Make a run one of a version that kept no digests."""
    (run / "manifest.json").unlink()
    path = run / "environment.json"
    kept = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({key: value for key, value in kept.items() if key != "format"}), "utf-8")


def rename_file(run: Path) -> None:
    make_older(run)
    (run / "federation.parquet").rename(run / "people.parquet")


def rename_column(table: str, now: str, former: str) -> Callable[[Path], None]:
    """Return what renames a column of a run's table."""

    def rename(run: Path) -> None:
        make_older(run)
        path = run / f"{table}.parquet"
        pl.read_parquet(path).rename({now: former}).write_parquet(path)

    return rename


@pytest.mark.parametrize(
    ("words", "prepare", "sentence"),
    [
        ("run fedavg --set run.dropout=0.1", None, r"run\.dropout .*client_dropout"),
        ("run old.toml", write("[run]\ndropout = 0.1\n"), r"run\.dropout .*client_dropout"),
        ("run old.toml", write("[data]\nname = 'own'\n"), "'remote'"),
        ("run fedavg --data own", None, "'remote'"),
        ("show old", rename_column("rounds", "std", "spread"), r"rounds\.parquet .*std"),
    ],
)
def test_an_old_name_is_told_the_new_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    prepare: Callable[[Path], None] | None,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    terminal = Terminal(capsys)
    if words.endswith(" old"):
        assert terminal("run", "fedavg", *TINY, "--name", "old", "--quiet").code == 0
    if prepare is not None:
        prepare(tmp_path / "runs" / "old")
    code, _, err = terminal(*words.split())
    assert code == 2, err
    assert re.fullmatch(f".*{sentence}.*\n", err)


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (rename_file, r"people\.parquet .*federation\.parquet"),
        (rename_column("federation", "true_group", "planted"), r"federation\.parquet .*true_group"),
    ],
)
def test_a_page_notes_an_old_name_and_shows_the_rest(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prepare: Callable[[Path], None],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    terminal = Terminal(capsys)
    assert terminal("run", "fedavg", *TINY, "--name", "old", "--quiet").code == 0
    prepare(tmp_path / "runs" / "old")
    assert terminal("report", "old").code == 0
    assert re.search(sentence, html.unescape((tmp_path / "runs/old/report.html").read_text("utf-8")))
