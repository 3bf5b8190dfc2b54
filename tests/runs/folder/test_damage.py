"""No damage to a file of a run gives other numbers: a short campaign, and what is said of single files."""

from pathlib import Path

import pytest

from coterie.errors import BadInput
from coterie.runs.folder.run_folder import RunFolder
from tests.commandline import Terminal
from tests.damage import campaign, make_runs


@pytest.mark.slow
def test_no_damage_is_accepted_that_gives_other_numbers(tmp_path: Path) -> None:
    assert list(campaign(tmp_path, 150, 5)) == []


@pytest.mark.slow
def test_no_bit_of_an_archives_directory_changes_a_table(tmp_path: Path) -> None:
    """There a name, a place or a kind of compression stands, for which the archive itself has no checksum."""
    folder = make_runs(tmp_path, 1)["running"]
    run, (part, *_) = RunFolder(folder), sorted((folder / "metrics").iterdir())
    whole, clients, accepted = part.read_bytes(), run.clients(), 0
    for bit in range(8 * whole.index(b"PK\x01\x02"), 8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        part.write_bytes(damaged)
        try:
            assert run.clients().equals(clients), bit
        except BadInput:
            continue
        accepted += 1
    assert accepted < 100


@pytest.mark.slow
def test_what_is_damaged_is_named_and_the_rest_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs, terminal = make_runs(tmp_path / "runs", 1), Terminal(capsys)
    picture = runs["finished"] / "picture.npz"
    picture.write_bytes(picture.read_bytes()[:-1] + b"x")
    assert terminal("report", "finished").code == 0
    assert "picture.npz" in (runs["finished"] / "report.html").read_text()
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
