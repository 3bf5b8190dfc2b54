"""What is refused of data and their division, through the command line: one sentence each, before any work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commandline import Terminal


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Data of users with different numbers of samples, and what is wrong with other files of theirs."""
    rng = np.random.default_rng(0)
    users = np.repeat(["a", "b", "c"], [20, 20, 3])
    given: dict[str, Any] = {"x": rng.normal(size=(43, 4)).astype(np.float32), "y": np.arange(43) % 2}
    np.savez(tmp_path / "users.npz", client=users, **given)
    np.savez(tmp_path / "plain.npz", **given)
    np.savez(tmp_path / "train.npz", client=users, split=np.zeros(43, np.int8), **given)
    np.savez(tmp_path / "torn.npz", client=users, split=np.arange(43) % 2 * 2, segment=np.arange(43) // 4, **given)
    for name, code in (("half", 0xD800), ("beyond", 0x110000)):  # half of a pair, and what no character has
        texts = np.repeat(["aa", "bb", "cc"], [20, 20, 3])
        texts.view(np.uint32)[1] = code
        np.savez(tmp_path / f"{name}.npz", client=texts, **given)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "users.npz", "--set", "small_clients=refuse"], r"1 of 3 .*data\.min_samples = 10 .*c \(3\)"),
        (["--data", "users.npz", "--set", "min_classes=3"], "no client"),
        (["--data", "users.npz", "--set", "test_path=plain.npz"], "client column"),
        (["--data", "digits", "--set", "test_path=users.npz"], r"data\.test_path.*'digits'"),
        (["--data", "half.npz"], r"half\.npz: .*client"),
        (["--data", "beyond.npz"], r"beyond\.npz: .*client"),
        (["--data", "train.npz"], "split .*test"),
        (["--data", "torn.npz"], "segment"),
        (["--data", "users.npz", "--set", "augment=['flip']"], "flip .*images"),
        (["--data", "digits", "--set", "augment=['flop']"], "'flop' .*flip"),
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
    code, _, err = Terminal(capsys)("run", "fedavg", "--rounds", "1", "--workers", "1", *words)
    assert code == 2
    assert re.search(sentence, " ".join(err.split()))
    assert "Traceback" not in err
    assert not (files / "runs").exists()


def test_tokens_need_a_network_of_ones_own(
    capsys: pytest.CaptureFixture[str], data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = Terminal(capsys)("run", "fedavg", "--data", "shakespeare", "--clients", "4", "--workers", "1")
    assert code == 2
    assert re.match(r"coterie: network\.name = 'auto' .*tokens", err)
    assert not (tmp_path / "runs").exists()
