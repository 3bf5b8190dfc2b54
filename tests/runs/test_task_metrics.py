"""Runs on other tasks than classification, from the command line to the page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import clients_schema, rounds_schema
from tests.commandline import Terminal

pytestmark = pytest.mark.medium

CLIENTS, EACH = 8, 30
WORDS = ["--split", "by-user", "--rounds", "2", "--network", "mlp"]


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """In a folder with `own.npz`: two kinds of clients, each with its own linear target."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS * EACH, 4)).astype(np.float32)
    user = np.repeat(np.arange(CLIENTS), EACH)
    y = (x * rng.normal(size=(2, 4))[user % 2]).sum(1).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=y, user=user)
    return Terminal(capsys)


@pytest.mark.slow
def test_a_regression_from_its_run_to_its_page(terminal: Terminal) -> None:
    words = ["--set", "task.name=regression", "--set", "evaluation.adapt={epochs=1}", "--holdout-clients", "0.25"]
    ran = terminal("run", "fedavg", "--data", "own.npz", "--workers", "1", *WORDS, *words, "--name", "own")
    assert (ran.code, ran.err) == (0, "")
    folder = RunFolder(Path("runs/own"))
    metrics = folder.metrics
    assert [metric.name for metric in metrics.of][:2] == ["rmse", "mae"]
    assert {*rounds_schema(metrics)} < {*folder.rounds().columns}
    assert {*clients_schema(metrics)} < {*folder.clients().columns}
    row = folder.rounds().row(-1, named=True)
    last = folder.clients().filter(folder.clients()["round"] == 2)
    errors = last["rmse"].to_numpy()
    assert row["macro_rmse"] == pytest.approx(errors.mean())
    assert row["worst10"] == errors.max()
    assert row["rmse"] == pytest.approx(np.average(errors, weights=last["test_samples"]))
    assert row["adapted_macro_rmse"] == pytest.approx(last["adapted_rmse"].to_numpy().mean())
    line = f"RMSE {row['macro_rmse']:#.3g} ({row['adapted_macro_rmse']:#.3g} after adaptation), worst 10 % "
    assert f"\n{line}" in ran.out
    assert re.search(r"new     2 clients .*RMSE [\d.]+ on arrival, [\d.]+ after adaptation", ran.out)
    assert "ccuracy" not in ran.out
    assert "RMSE" in terminal("show", "own").out
    said = (folder.path / "report.html").read_text(encoding="utf-8")
    assert "RMSE, " in said
    assert "Unseen clients" in said
