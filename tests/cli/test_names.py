"""Folders of runs and comparisons: a name is cut and never refused, and none is left in which nothing was begun."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.sections import LONGEST_NAME
from coterie.studies.compare.folder import ComparisonFolder
from tests.commandline import Terminal

LONG = "few-shot(0.0, samples_per_class=17, sets=windows, held_out=regular)"
WORDS = ["fedavg", "--quiet", "--split", LONG, "--set", "epochs=0"]


pytestmark = pytest.mark.usefixtures("forked_cells")


@pytest.mark.slow
@pytest.mark.parametrize("given", [[], ["--name", "n" * LONGEST_NAME]])
def test_a_long_name_is_taken_thrice(given: list[str], terminal: Terminal) -> None:
    for _ in range(3):
        outcome = terminal("run", *WORDS, "--rounds", "1", "--set", "run.workers=1", *given)
        assert outcome.code == 0, outcome.err
    names = [path.name for path in Path("runs").iterdir()]
    assert len(names) == 3
    for name in names:
        assert len(name) <= LONGEST_NAME
        assert name.startswith(
            "n" if given else "fedavg-digits-few-shot-0.0-samples-per-class-17-sets-windows-held"
        )
        assert given or "-s0" in name
        assert RunFolder(Path("runs") / name).status == "finished"


@pytest.mark.slow
def test_comparisons_of_one_long_name_are_apart(terminal: Terminal) -> None:
    for rounds in ("1", "2"):
        outcome = terminal("compare", *WORDS, "--seeds", "1", "--rounds", rounds)
        assert outcome.code == 0, outcome.err
    names = [path.name for path in Path("comparisons").iterdir()]
    assert len(names) == 2
    assert all(
        len(name) <= LONGEST_NAME and (Path("comparisons") / name / "summary.parquet").exists() for name in names
    )


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_failure_before_the_first_write_leaves_no_folder(
    command: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, what: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunFolder, "write_experiment", full)
    monkeypatch.setattr(ComparisonFolder, "write_comparison", full)
    outcome = terminal(command, "fedavg", "--clients", "4", "--name", "new")
    assert outcome.code == 2
    assert "disk" in outcome.err
    assert [path for path in Path().rglob("*") if path.name == "new"] == []
