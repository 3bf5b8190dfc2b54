"""What the shell completes words to."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.main
from click.shell_completion import BashComplete

from coterie.cli import app
from coterie.runs.schema.experiment import Experiment


@pytest.mark.parametrize(
    ("words", "begun", "completed"),
    [
        ([], "re", ["report", "reproduce", "resume"]),
        (["run"], "fesem", ["fesem", "fesem-ma"]),
        (["run"], "exp", ["experiment.toml"]),
        (["run", "fesem", "--data"], "di", ["digits"]),
        (["run", "fesem", "--data"], "cl", ["clients.csv", "clinics/"]),
        (["run", "fesem", "--network"], "gaussian", ["gaussian-cnn", "gaussian-mlp"]),
        (["run", "fesem", "--split"], "rot", ["rotated"]),
        (["resume"], "fi", ["first", "five[0]"]),
        (["show"], "five[", ["five[0]"]),
        (["predict"], "fir", ["first"]),
        (["report", "--folder", "elsewhere"], "", ["other"]),
    ],
)
def test_words_are_completed(
    words: list[str], begun: str, completed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clinics").mkdir()
    for name in ("clients.csv", "clients.txt", "experiment.toml"):
        Path(name).touch()
    for name in ("runs/first", "runs/five[0]", "elsewhere/other"):
        Path(name).mkdir(parents=True)
        Path(name, "experiment.toml").write_text(Experiment().to_toml())
    Path("runs/finished-nothing").mkdir()
    complete = BashComplete(typer.main.get_command(app.app), {}, "coterie", "_COTERIE_COMPLETE")
    assert sorted(item.value for item in complete.get_completions(words, begun)) == completed
