"""Baselines beside a comparison: which are added, which are not, and what stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.studies.compare import beside
from coterie.studies.compare.beside import find_missing, with_baseline
from coterie.studies.compare.compare import Compared
from coterie.studies.compare.folder import ComparisonFolder
from coterie.studies.compare.spec import Comparison

pytestmark = pytest.mark.usefixtures("forked_cells")

EXPERIMENT = {
    "data": {"name": "digits", "clients": 3, "samples_per_client": 40},
    "network": {"name": "mlp", "hidden": [8]},
    "run": {"rounds": 1},
}


def compare(folder: Path, baselines: beside.Which, methods: Any = ("ifca(clusters=2)",), **more: Any) -> Compared:
    tables = {"name": "own", "methods": list(methods), "seeds": 1, "experiment": EXPERIMENT, **more}
    return coterie.compare(tables, folder=folder, jobs=1, baselines=baselines)


def rows(compared: Compared) -> list[str]:
    assert compared.summary is not None
    return compared.summary["method"].to_list()


def test_what_is_there_is_not_missing() -> None:
    tables: dict[str, Any] = {"methods": {"mine": {"method": {"name": "fedavg"}}, "fedavg": "ifca"}}
    comparison = Comparison.from_tables({**tables, "adapted": {}})
    assert find_missing(comparison) == ["local-only"]
    wider = with_baseline(comparison, "local-only")
    assert wider.rows == ("mine", "fedavg", "local-only")
    assert wider.baseline == "mine"
    other = Comparison.from_tables({"methods": {"fedavg": "ifca"}})
    assert find_missing(other) == ["fedavg", "local-only"]
    named = with_baseline(other, "fedavg")
    assert named.rows == ("fedavg", "fedavg (beside)", "fedavg (beside)+FT")
    assert [cell.key for cell in named.cells()][:3] == [cell.key for cell in other.cells()]


@pytest.mark.slow
def test_cheap_baselines_are_rows_and_stay_until_nobody_wants_them(tmp_path: Path) -> None:
    alone = compare(tmp_path, "done")
    assert rows(alone) == ["ifca(clusters=2)"]
    kept = ComparisonFolder(tmp_path / "own").comparison()
    wanted = [*rows(alone), "fedavg", "fedavg+FT", "local-only"]
    found = compare(tmp_path, "cheap")
    assert rows(found) == wanted
    assert not found.notes
    assert found.status == "finished"
    assert ComparisonFolder(tmp_path / "own").comparison() == kept
    assert found.summary is not None
    assert alone.summary is not None
    assert found.summary["macro_accuracy_mean"][0] == alone.summary["macro_accuracy_mean"][0]
    assert rows(compare(tmp_path, "done")) == wanted
    assert rows(compare(tmp_path, "none")) == rows(alone)


@pytest.mark.slow
def test_what_is_not_run_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "CHEAP_SECONDS", 0.0)
    found = compare(tmp_path, "cheap", ["fedavg"])
    assert rows(found) == ["fedavg", "fedavg+FT"]
    (note,) = found.notes
    assert all(word in note for word in ("local-only", "--baselines all"))
    assert rows(compare(tmp_path, "all", ["fedavg"])) == ["fedavg", "fedavg+FT", "local-only"]
    private = {**EXPERIMENT, "privacy": {"unit": "client", "noise_by": "clients", "noise_multiplier": 1.0}}
    promised = compare(tmp_path, "all", ["fedavg"], name="private", experiment=private, adapted={})
    assert rows(promised) == ["fedavg"]
    assert "privacy" in promised.notes[0]
