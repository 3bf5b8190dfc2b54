"""Rounds that wait in memory, and files that hold several of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from coterie.runs.folder.run_folder import RunFolder
from tests.runs.folder.test_run_folder import a_round, tables


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", "first")


def held(folder: RunFolder, numbers: range, accuracy: float = 0.5) -> RunFolder:
    """The folder, opened anew, after it held these rounds back and then put them on the disk."""
    writer = RunFolder(folder.path)
    writer.buffer_rounds()
    for number in numbers:
        writer.write_round(number, **a_round(number, accuracy))
    writer.flush()
    return RunFolder(folder.path)


def test_rounds_that_are_held_are_one_file_with_the_same_tables(folder: RunFolder, tmp_path: Path) -> None:
    single = RunFolder.create(tmp_path / "runs", "single")
    for number in range(1, 8):
        single.write_round(number, **a_round(number))
    writer = RunFolder(folder.path)
    writer.buffer_rounds()
    for number in range(1, 8):
        writer.write_round(number, **a_round(number))
        assert not (folder.path / "metrics").exists()
    assert folder.rounds().height == 0
    writer.flush()
    assert [p.name for p in (folder.path / "metrics").iterdir()] == ["000001-000007.zip"]
    for frame, wanted in zip(tables(folder), tables(single), strict=True):
        assert_frame_equal(frame, wanted)
    folder.compact()
    single.compact()
    for path in single.path.glob("*.parquet"):
        assert (folder.path / path.name).read_bytes() == path.read_bytes()


def test_whoever_holds_rounds_reads_them_too(folder: RunFolder) -> None:
    folder.buffer_rounds()
    folder.write_round(1, **a_round(1))
    folder.write_round(2, **a_round(2))
    assert folder.rounds()["round"].to_list() == [1, 2]
    assert RunFolder(folder.path).rounds()["round"].to_list() == [1, 2]
    folder.flush()
    assert [p.name for p in (folder.path / "metrics").iterdir()] == ["000001-000002.zip"]


@pytest.mark.parametrize("last", range(9))
def test_a_file_of_several_rounds_loses_those_that_are_measured_again(folder: RunFolder, last: int) -> None:
    held(folder, range(1, 4))
    held(folder, range(4, 9))
    folder.forget_after(last)
    assert [sorted(set(t["round"])) for t in tables(folder)][:3] == [list(range(1, last + 1))] * 3
    again = held(folder, range(last + 1, 9), 0.75)
    assert again.rounds()["accuracy"].to_list() == [0.5] * last + [0.75] * (8 - last)
    again.compact()
    assert again.ledger().height == 6 * 8


class Killed(BaseException):
    """Raised in place of a kill."""


def test_a_kill_before_a_file_is_removed_doubles_no_round(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(folder, range(1, 3))
    held(folder, range(3, 11))

    unlink = Path.unlink

    def killed(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".zip":
            raise Killed
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(Killed):
            folder.forget_after(6)
    files = {path.name for path in (folder.path / "metrics").iterdir()}
    assert {"000003-000010.zip", "000003-000006.zip"} < files
    assert RunFolder(folder.path).rounds()["round"].to_list() == list(range(1, 11))
    assert RunFolder(folder.path).ledger().height == 6 * 10
    folder.forget_after(6)
    assert folder.rounds()["round"].to_list() == list(range(1, 7))
    kept = folder.rounds()
    folder.compact()
    assert not (folder.path / "metrics").exists()
    assert_frame_equal(RunFolder(folder.path).rounds(), kept)
