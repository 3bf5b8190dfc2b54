"""No damage to a file of a run gives other numbers: a short campaign, and what is said of single files."""

from pathlib import Path

import pytest

from coterie.runs.folder.run_folder import RunFolder
from tests.commandline import Terminal
from tests.damage import campaign, make_runs


@pytest.mark.slow
def test_no_damage_is_accepted_that_gives_other_numbers(tmp_path: Path) -> None:
    assert list(campaign(tmp_path, 150, 5)) == []


@pytest.mark.medium
def test_what_is_damaged_is_named_and_the_rest_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs, terminal = make_runs(tmp_path / "runs", 1), Terminal(capsys)
    picture = runs["finished"] / "picture.npz"
    picture.write_bytes(picture.read_bytes()[:-1] + b"x")
    assert terminal("report", "finished").code == 0
    assert "picture.npz is damaged" in (runs["finished"] / "report.html").read_text()
    # Of several runs the sound ones are shown.
    ledger = runs["finished"] / "rounds.parquet"
    ledger.unlink()
    ended = terminal("show", "finished", "stopped")
    assert (ended.code, "stopped" in ended.out) == (2, True)
    assert "rounds.parquet" in ended.err
    # A run of an earlier version kept no digests, and is read; its list alone cannot be taken away.
    (runs["stopped"] / "manifest.json").unlink()
    assert terminal("show", "stopped").code == 2
    environment = runs["stopped"] / "environment.json"
    environment.write_text(environment.read_text().replace('"format": 2', '"format": 1'))
    assert terminal("show", "stopped").code == 0
    assert not RunFolder(runs["stopped"]).is_checked
