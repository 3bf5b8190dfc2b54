"""What the command line refuses of a task, and the listing of tasks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commandline import Terminal

OWN = ("fedavg", "data.name=remote", "data.clients=3", "data.features=[4]")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("fedavg", "task.name=regresion"), "'regresion' .*regression"),
        (
            ("fedavg", "class_weights=balanced"),
            "class_weights .*classification, binary, segmentation.*--set task.name=classification",
        ),
        (("fedavg", "hidden=[64]"), "--set network.name=mlp"),
        (
            ("fedavg", "task.name=classification", "class_weights=[1.0, 2.0]"),
            r"task\.class_weights .*2 numbers; .*10",
        ),
        (
            ("fedavg", "task.name=regression", 'metrics=["accuracy"]'),
            r"task\.metrics = 'accuracy' .*regression; .*rmse, mae, r2",
        ),
        (("fedavg", "task.name=binary"), r"10 classes; task\.name = 'binary'"),
        (("fedavg", "task.name=segmentation"), "every pixel"),
        (("fedavg", "task.name=regression", "split=dirichlet(0.5)"), "'dirichlet' .*regression"),
        (("fedcr", "task.name=regression"), "regression.*classification"),
        (("flis", "task.name=regression"), "flis.*regression"),
        (
            (*OWN, "data.classes=1", "task.name=regression", "target_scale=[[5, 6], [2, 3]]"),
            r"task\.target_scale .*\[\[means\], \[deviations\]\]",
        ),
        ((*OWN, 'data.classes=["ill"]'), "two classes"),
        ((*OWN, "data.classes=3", "task.name=binary"), r"data\.classes .*3.*binary"),
        ((*OWN, "data.classes=1", "task.name=regression"), r"data\.name = 'remote'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    words: tuple[str, ...], sentence: str, terminal: Terminal, tmp_path: Path
) -> None:
    method, *settings = words
    done = terminal(
        "run",
        method,
        *(f"--set={each}" for each in settings),
        "--set",
        f"run.folder={tmp_path / 'runs'}",
        "--rounds",
        "1",
    )
    assert done.code == 2
    assert re.search(sentence, " ".join(done.err.split()))
    assert not list((tmp_path / "runs").glob("*"))


def test_tasks_are_listed_with_their_settings(terminal: Terminal) -> None:
    out = terminal("list", "tasks").out
    for name in ("binary", "classification", "forecasting", "language", "multilabel", "regression", "segmentation"):
        assert f"\n{name} " in f"\n{out}"
    assert re.search(r"^auto +\w+", out, re.MULTILINE)
    assert "label_smoothing = 0.0" in terminal("list", "tasks", "classification").out
