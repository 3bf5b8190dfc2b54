"""What the command line refuses of targets that are not those of the task: one sentence, before any work."""

from __future__ import annotations

import re
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
        ([*DIGITS, "task.name=tests.no_task:Mine"], r"module tests\.no_task"),
        ([*DIGITS, "task.delta=1"], r"task\.name = 'auto' "),
        (["--data", "pair.npz", "task.name=binary", "task.class_weights=[-1.0, 1.0]"], "class_weights.* 0"),
        ([*DIGITS, "task.name=multilabel"], "a 0 or a 1"),
        (["--data", "several.npz", "task.name=classification"], r"several\.npz.*per sample"),
        (["--data", "endless.npz", "task.name=regression"], "label in row 7 "),
        (["--data", "short.npz"], "label .*70"),
        (["--data", "names.npz"], "feature .*once"),
        (["--data", "empty.npz", "data.missing=drop"], r"data\.missing .*mean or zero"),
        (["--data", "one.npz"], "labels are 0; .*two classes"),
        (["--data", "number.npz", "task.name=classification"], "integers or strings"),
        (["--data", "twos.npz", "task.name=multilabel"], "0, 1, or -1"),
        (["--data", "below.npz", "task.name=segmentation"], " 0 .*or -1"),
        (["--data", "pixels.npz", "task.name=segmentation", "network.name=mlp"], r"task\.name = 'segmentation'"),
        (["--data", "texts.npz", "task.name=language"], r"network\.name = 'auto'"),
        (["--data", "number.npz", SEVEN], r" 7 .*task\.name = 'regression'"),
        (["--data", "pair.npz", "task.name=binary", SEVEN], " 7 .* 1"),
        (["--data", "pair.npz", SEVEN], " 7 .* 2"),
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
    assert re.search(sentence, " ".join(err.split()))
    assert "Traceback" not in err
    assert not (files / "runs").exists()
