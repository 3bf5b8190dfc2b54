"""The file of a folder's lock touches nothing else, and what a kill left half written goes with the next lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.errors import BadInput
from coterie.runs.folder.files import write_whole
from coterie.runs.folder.lock import LOCK, lock_folder, lock_run
from coterie.runs.folder.run_folder import RunFolder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the system has no such locks")


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """Else a run folder of somebody else's empties, or makes, any file of one's own."""
    mine, new = tmp_path / "mine.txt", tmp_path / "new.txt"
    mine.write_text("of value")
    for number, target in enumerate((mine, new)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / LOCK).symlink_to(target)
        with pytest.raises(BadInput, match="plain file"), lock_folder(folder, "busy"):
            pass
    assert mine.read_text() == "of value"
    assert not new.exists()


def test_a_lock_that_is_a_pipe_or_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    for name in ("pipe", "folder"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / LOCK)
    (tmp_path / "folder" / LOCK).mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(BadInput, match="plain file"), lock_folder(tmp_path / name, "busy"):
            pass


def test_what_a_kill_left_half_written_is_removed_when_the_run_goes_on(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    dead, mine, alive = ended.pid, os.getpid(), os.getppid()
    gone = [
        f".status.json.{dead}.new",
        f"checkpoints/.000002.safetensors.{mine}.new",
        f".x.{10**8}.new",
        f".coterie-{dead}-ab_1",
    ]
    stays = [
        f".report.html.{alive}.new",
        f"status.json.{dead}.new",
        ".note.new",
        f".coterie-{alive}-ab",
    ]
    for name in (*gone, *stays):
        (run / name).write_text("half")
    with lock_run(RunFolder(run)):
        assert [name for name in gone if (run / name).exists()] == []
        assert [name for name in stays if not (run / name).exists()] == []


def test_a_write_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a.json", b"{}")
    assert list(tmp_path.iterdir()) == []
