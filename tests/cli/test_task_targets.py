"""What the command line refuses of targets that are not those of the task: one sentence, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commandline import Terminal


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Data of four users whose targets are numbers, labels, pixels or tokens, and others that are wrong."""
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {"x": rng.normal(size=(80, 4)).astype(np.float32), "client": np.arange(80) % 4}
    number, several = rng.normal(size=80), rng.integers(0, 2, (80, 3))
    np.savez(tmp_path / "number.npz", y=number, **given)
    np.savez(tmp_path / "word.npz", y=np.array(["well", "ill"])[several[:, 0]], **given)
    np.savez(tmp_path / "pair.npz", y=np.arange(80) % 2, **given)
    np.savez(tmp_path / "one.npz", y=np.zeros(80, np.int64), **given)
    np.savez(tmp_path / "several.npz", y=several, **given)
    np.savez(tmp_path / "twos.npz", y=2 * several, **given)
    images = {"x": rng.normal(size=(80, 6, 6, 1)).astype(np.float32), "client": given["client"]}
    np.savez(tmp_path / "pixels.npz", y=rng.integers(0, 2, (80, 6, 6)), **images)
    np.savez(tmp_path / "dark.npz", y=np.full((80, 6, 6), -1), **images)
    np.savez(tmp_path / "below.npz", y=np.full((80, 6, 6), -2), **images)
    np.savez(tmp_path / "endless.npz", y=np.where(np.arange(80) == 7, np.inf, number), **given)
    np.savez(tmp_path / "short.npz", x=given["x"], y=number[:70], client=given["client"])
    np.savez(tmp_path / "wide.npz", y=number, split=np.zeros((80, 2), np.int8), **given)
    np.savez(tmp_path / "names.npz", y=number, columns=np.array(["a", "b"]), **given)
    np.savez(tmp_path / "empty.npz", x=np.full((80, 4), np.nan), y=number, client=given["client"])
    texts = rng.integers(0, 5, (80, 6))
    np.savez(tmp_path / "texts.npz", x=texts, y=texts, client=given["client"])
    return tmp_path


SEVEN = "network.name=tests.own_networks:seven"
DIGITS = ["--data", "digits", "--clients", "4"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([*DIGITS, "task.name=tests.no_task:Mine"], "there is no module tests.no_task"),
        ([*DIGITS, "task.delta=1"], "task.name = 'auto' takes no settings"),
        (["--data", "pair.npz", "task.name=binary", "task.class_weights=[-1.0, 1.0]"], "may be below 0"),
        ([*DIGITS, "task.name=multilabel"], "it must be a 0 or a 1 for each sample and label"),
        (["--data", "several.npz", "task.name=classification"], "it needs one entry per sample"),
        (["--data", "endless.npz", "task.name=regression"], "label in row 7 is"),
        (["--data", "short.npz"], "label has 70"),
        (["--data", "names.npz"], "it must name each feature once"),
        (
            ["--data", "empty.npz", "data.missing=drop"],
            "every sample lacks a value; data.missing must be mean or zero",
        ),
        (["--data", "one.npz"], "all labels are 0; there must be at least two classes"),
        (["--data", "number.npz", "task.name=classification"], "labels must be integers or strings"),
        (["--data", "twos.npz", "task.name=multilabel"], "it must be 0, 1, or -1 for unknown"),
        (["--data", "below.npz", "task.name=segmentation"], "whole numbers from 0 on, or -1"),
        (["--data", "pixels.npz", "task.name=segmentation", "network.name=mlp"], "task.name = 'segmentation'"),
        (["--data", "texts.npz", "task.name=language"], "network.name = 'auto' is not possible with samples"),
        (
            ["--data", "number.npz", SEVEN],
            "the network gives 7 numbers for a sample; with task.name = 'regression'",
        ),
        (["--data", "pair.npz", "task.name=binary", SEVEN], "it must give 1"),
        (["--data", "pair.npz", SEVEN], "gives 7 outputs a sample, and the data need 2"),
    ],
)
def test_refusals(
    capsys: pytest.CaptureFixture[str],
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(files)
    options = [part for word in words for part in (["--set", word] if "=" in word else [word])]
    code, _, err = Terminal(capsys)("run", "fedavg", "--rounds", "1", "--workers", "1", "--quiet", *options)
    assert code == 2
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err
    assert not (files / "runs").exists()
