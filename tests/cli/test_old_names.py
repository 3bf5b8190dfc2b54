"""Names of earlier versions, through the command line: one sentence each, with the name of today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commandline import Terminal


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run fedavg --set run.dropout=0.1", r"run\.dropout .*client_dropout"),
        ("reproduce --write kept.md", "'vacuous'.*'cannot be tested'"),
    ],
)
def test_an_old_name_is_told_the_new_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kept").mkdir()
    Path("kept/dcpfl-fig1-medium.json").write_text('{"claims": [{"verdict": "vacuous"}]}', "utf-8")
    code, _, err = Terminal(capsys)(*words.split())
    assert code == 2, err
    assert re.fullmatch(f".*{sentence}.*\n", err)
