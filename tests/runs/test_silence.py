"""A run in which nobody answers any more ends, and stays ended."""

from __future__ import annotations

from pathlib import Path

import pytest

import coterie
from coterie.errors import BadInput
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment


def test_a_run_that_has_given_up_does_not_reach_its_end_by_being_resumed(tmp_path: Path) -> None:
    diverging = Experiment(
        data={"name": "digits", "clients": 4},
        method="fedavg",
        training={"lr": 1e30, "epochs": 1},
        run={"rounds": 4, "workers": 1, "folder": str(tmp_path), "name": "lost"},
    )
    for ends in ("in rounds 1 to 3,", "in rounds 1 to 4,", "in the last 4"):
        with pytest.raises(BadInput, match=f"nobody answered {ends}"):
            coterie.resume(tmp_path / "lost") if (tmp_path / "lost").exists() else coterie.run(diverging)
    assert RunFolder(tmp_path / "lost").status == "interrupted"
