"""A run in which nobody answers any more ends, and stays ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.errors import BadInput
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from tests.interrupted import Stopping


def diverging(folder: Path, rounds: int) -> Experiment:
    return Experiment(
        data={"name": "digits", "clients": 4},
        method="fedavg",
        training={"lr": 1e30, "epochs": 1},
        run={"rounds": rounds, "workers": 1, "folder": str(folder), "name": "lost"},
    )


def test_a_run_that_has_given_up_does_not_reach_its_end_by_being_resumed(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    for ends in ("1 to 3,", "1 to 4,", "last 4"):
        with pytest.raises(BadInput, match=f"nobody .*{ends}"):
            coterie.resume(lost) if lost.exists() else coterie.run(diverging(tmp_path, 4))
    assert RunFolder(lost).status == "interrupted"
    assert RunFolder(lost).divergences()  # the refusal takes nothing away


def test_a_run_that_is_over_before_it_gives_up_says_why_nobody_answered(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="client 0"):
        coterie.run(diverging(tmp_path, 2))
    assert "NaN" in RunFolder(tmp_path / "lost").divergences()[0]
    assert not any("alone" in warning for warning in RunFolder(tmp_path / "lost").warnings())


class Broken(Stopping):
    """An observer with a mistake in it."""

    def started(self, experiment: Any, description_lines: Any) -> None:
        raise ValueError("not yet")


def test_a_run_that_fails_before_a_round_is_finished_leaves_its_name_free(tmp_path: Path) -> None:
    wanted = Experiment(
        data={"name": "digits", "clients": 4},
        method="fedavg",
        run={"rounds": 1, "workers": 1, "folder": str(tmp_path), "name": "first"},
    )
    with pytest.raises(ValueError, match="not yet"):
        coterie.run(wanted, observers=[Broken(0)])
    assert list(tmp_path.iterdir()) == []
    assert coterie.run(wanted).folder == tmp_path / "first"
