"""What the command line refuses of a task, and the listing of tasks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commandline import Terminal

DISTRIBUTIONS = "it compares distributions over classes, and the outputs of regression are none"

OWN = ("fedavg", "data.name=remote", "data.clients=3", "data.features=[4]")


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("fedavg", "task.name=regresion"), "task 'regresion' is unknown; did you mean regression?"),
        (
            ("fedavg", "class_weights=balanced"),
            "class_weights is a setting of tasks (classification, binary, segmentation), and task.name = 'auto'; "
            "name one of them: --set task.name=classification",
        ),
        (("fedavg", "hidden=[64]"), "--set network.name=mlp"),
        (
            ("fedavg", "task.name=classification", "class_weights=[1.0, 2.0]"),
            "task.class_weights has 2 numbers; it must have 10, one for each class",
        ),
        (
            ("fedavg", "task.name=regression", 'metrics=["accuracy"]'),
            "task.metrics = 'accuracy' is not possible with regression; it must be one of rmse, mae, r2",
        ),
        (("fedavg", "task.name=binary"), "there are 10 classes; task.name = 'binary' needs two"),
        (("fedavg", "task.name=segmentation"), "it must be a whole number for every pixel"),
        (
            ("fedavg", "task.name=regression", "split=dirichlet(0.5)"),
            "split = 'dirichlet' is not possible with regression: it goes by the class of a sample",
        ),
        (("fedcr", "task.name=regression"), "each sample must be of one class; it must be classification"),
        (("flis", "task.name=regression"), DISTRIBUTIONS),
        (
            (*OWN, "data.classes=1", "task.name=regression", "target_scale=[[5, 6], [2, 3]]"),
            "task.target_scale is not possible; it must be [[means], [deviations]] with 1 finite number each",
        ),
        ((*OWN, 'data.classes=["ill"]'), "there must be at least two classes"),
        ((*OWN, "data.classes=3", "task.name=binary"), "data.classes says 3, which is not possible with binary"),
        (
            (*OWN, "data.classes=1", "task.name=regression"),
            "data.name = 'remote' means data that clients hold elsewhere",
        ),
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
    assert sentence in " ".join(done.err.split())
    assert not list((tmp_path / "runs").glob("*"))


def test_tasks_are_listed_with_their_settings(terminal: Terminal) -> None:
    out = terminal("list", "tasks").out
    for name in ("binary", "classification", "forecasting", "language", "multilabel", "regression", "segmentation"):
        assert f"\n{name} " in f"\n{out}"
    assert re.search(r"^auto +Classification for texts and for numbers of at most 20 values", out, re.MULTILINE)
    assert "label_smoothing = 0.0" in terminal("list", "tasks", "classification").out
