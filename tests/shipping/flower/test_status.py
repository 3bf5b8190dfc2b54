"""What is written of a federation of real clients can be read again, and the run written last is found."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

import coterie
from coterie.errors import BadInput
from coterie.runs.folder.run_folder import RunFolder
from coterie.shipping.flower.status import ClientStatus, FederationStatus, latest_run

NOW = datetime(2026, 11, 5, 12, 30, tzinfo=UTC)


def written(folder: Path, round: int) -> RunFolder:
    run = RunFolder.create(folder, f"run{round}")
    run.write_experiment(coterie.Experiment().to_toml())
    run.write_status("running", round, 5)
    there = ClientStatus(0, "clinic-a", "17", 40, 1, True, 3, NOW, None)
    gone = ClientStatus(1, "clinic-b", None, None, None, False, None, None, "no answer")
    FederationStatus(round, 5, NOW, [there, gone]).write(run.path)
    return run


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    status = FederationStatus.read(written(tmp_path, 3))
    assert (status.round, status.of, status.written) == (3, 5, NOW)
    assert [(c.name, c.group, c.last_seen, c.problem) for c in status.clients] == [
        ("clinic-a", 1, NOW, None),
        ("clinic-b", None, None, "no answer"),
    ]


def test_the_run_written_last_is_found(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        latest_run(tmp_path)
    later, earlier = written(tmp_path, 2), written(tmp_path, 1)
    os.utime(earlier.path / "federation.json", (1, 1))
    assert latest_run(tmp_path).path == later.path


@pytest.mark.parametrize(("text", "named"), [(b"{", "its text"), (b'{"round": "x"}', "round")])
def test_a_damaged_status_is_named(tmp_path: Path, text: bytes, named: str) -> None:
    run = written(tmp_path, 3)
    (run.path / "federation.json").write_bytes(text)
    with pytest.raises(BadInput, match=rf"federation\.json.*{named}"):
        FederationStatus.read(run)
    (run.path / "federation.json").unlink()
    with pytest.raises(BadInput, match="simulation"):
        FederationStatus.read(run)
