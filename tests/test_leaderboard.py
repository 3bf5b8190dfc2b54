"""The leaderboard: results are kept with a digest, others join by a folder, and the page is of what is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import leaderboard, leaderboard_cells, leaderboard_page
from benchmarks.leaderboard_cells import Federation, Result, digest_of, file_of, join, keep, read
from coterie.errors import BadInput

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "examples" / "plugin" / "src"
OWN = "coterie_example.method:FedAvgMFocal"


def result(
    method: str,
    values: list[float],
    federation: str = "iid",
    *,
    trial: float = 0.5,
    adapted: float = -0.1,
    rate: float = 0.1,
) -> Result:
    """A result as it is kept, of two clients a seed; after an epoch on each client it has `adapted` more."""
    runs: list[dict[str, Any]] = [
        {
            "seed": seed,
            "groups": 1,
            "ari": None,
            "up_bytes": 1_000_000,
            "down_bytes": 500_000,
            "passes": None,
            "samples": 40.0,
            "worst10": value - 0.1,
            "value": value,
            "clients": [value - 0.1, value + 0.1],
        }
        for seed, value in enumerate(values)
    ]
    found: dict[str, Any] = {
        "federation": federation,
        "method": method,
        "settings": leaderboard_cells.settings_of(federation, "fedavg"),
        "failed": None,
        "measure": "macro_accuracy",
        "falls": False,
        "rate": rate,
        "trials": [{"rate": rate, "values": [trial], "losses": [trial]}],
        "rows": {method: runs, f"{method}+FT": [{**run, "value": run["value"] + adapted} for run in runs]},
        "again": [{**run, "value": run["value"] - 0.02} for run in runs] if method == "fedavg" else [],
    }
    return {**found, "digest": digest_of(found), "seconds": 1.0, "machine": {}}


def test_the_committed_page_is_that_of_the_committed_results() -> None:
    written = leaderboard.PAGE.read_text("utf-8")
    kept = read(leaderboard.KEPT) if leaderboard.KEPT.is_dir() else {}
    assert written == leaderboard_page.page(written, kept)


def test_every_committed_result_is_of_the_settings_of_today() -> None:
    """So the command has nothing to compute but what has never been."""
    for federation, method in read(leaderboard.KEPT) if leaderboard.KEPT.is_dir() else {}:
        assert leaderboard.is_kept(leaderboard.KEPT, federation, method), (federation, method)


def test_a_result_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = keep(tmp_path, result("fedavg", [0.5, 0.6, 0.7]))
    assert read(tmp_path)["iid", "fedavg"]["rows"]["fedavg"][2]["value"] == 0.7
    path.write_text(path.read_text("utf-8").replace("0.7,", "0.9,"), "utf-8")
    with pytest.raises(BadInput, match=r"fedavg\.json'.*[0-9a-f]{32}"):
        read(tmp_path)
    path.write_text("{}", "utf-8")
    with pytest.raises(BadInput, match=r"fedavg\.json"):
        read(tmp_path)


def test_a_folder_joins_only_with_new_methods_of_the_same_settings(tmp_path: Path) -> None:
    own = {("iid", "fedavg"): result("fedavg", [0.5, 0.6, 0.7])}
    keep(tmp_path / "mine", result("mine", [0.6, 0.7, 0.8]))
    assert sorted(join(own, [tmp_path / "mine"])) == [("iid", "fedavg"), ("iid", "mine")]
    keep(tmp_path / "again", result("fedavg", [0.6, 0.7, 0.8]))
    with pytest.raises(BadInput, match="'fedavg'"):
        join(own, [tmp_path / "again"])
    other = {**result("mine", [0.9]), "settings": {**own["iid", "fedavg"]["settings"], "seeds": [99]}}
    keep(tmp_path / "other", {**other, "digest": digest_of(other)})
    with pytest.raises(BadInput, match="'iid'"):
        join(own, [tmp_path / "other"])
    with pytest.raises(BadInput, match="nowhere"):
        join(own, [tmp_path / "nowhere"])


def test_the_page_says_what_to_try_first_and_which_cells_are_fedavg() -> None:
    """A method of one group with FedAvg's own trials at its rate is FedAvg; it is not among the three to try."""
    kept: dict[tuple[str, str], Any] = {
        ("labels", name): one
        for name, one in {
            "fedavg": result("fedavg", [0.70, 0.72, 0.71], "labels"),
            "layercfl": result("layercfl", [0.80, 0.82, 0.81], "labels", rate=0.2),
            # The same on validation samples by chance, and not on the others.
            "fedprox": result("fedprox", [0.60, 0.61, 0.62], "labels"),
            "ditto": result("ditto", [0.60, 0.62, 0.61], "labels", trial=0.4, adapted=0.3),
            "fedrep": result("fedrep", [0.5, 0.5, 0.5], "labels", trial=0.4),
        }.items()
    }
    # FedAvg was tried with both rates, and took the lower one.
    fedavg = kept["labels", "fedavg"]
    kept["labels", "fedavg"] = {**fedavg, "trials": [*fedavg["trials"], {**fedavg["trials"][0], "rate": 0.2}]}
    marks = "".join(
        f"<!-- begin {name} -->\n\n<!-- end {name} -->\n" for name in ("first", "summary", "federations")
    )
    page = leaderboard_page.page(marks, kept)
    (first,) = [line for line in page.splitlines() if line.startswith("* **")]
    assert all(part in first for part in ("Dirichlet", "(`labels`): "))
    assert "`ditto+FT` (91.0), `fedavg` (71.0), `fedprox` (61.0); " in first
    assert "| `layercfl` = fedavg, lr 0.2 | **81.0 ± 2.5** | best | 71.0 ± 2.5 |" in page
    assert page.count("` = fedavg") == 1
    assert re.search(r"FedAvg .*71\.0.* 69\.0 ", page)
    # With two groups in one seed it is not FedAvg any more.
    rows = json.loads(json.dumps(kept["labels", "layercfl"]))
    rows["rows"]["layercfl"][1]["groups"] = 2
    assert "= fedavg" not in leaderboard_page.page(marks, {**kept, ("labels", "layercfl"): rows})


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"name": "digits", "split": "iid", "clients": 4, "public": 20}
    network = {"name": "mlp", "hidden": [8]}
    one = Federation("Tiny.", "no skew", data, network, {"batch_size": 50}, rounds=2, rates=(0.02, 0.2))
    monkeypatch.setattr(leaderboard_cells, "FEDERATIONS", {"tiny": one})
    monkeypatch.setattr(leaderboard, "FEDERATIONS", {"tiny": one})
    monkeypatch.setattr(leaderboard_page, "FEDERATIONS", {"tiny": one})
    monkeypatch.setattr(leaderboard_cells, "SEEDS", (0, 1))
    monkeypatch.setattr(leaderboard_cells, "TUNING_SEEDS", (0,))
    monkeypatch.setattr(leaderboard_cells, "OTHER_SEEDS", (2,))
    monkeypatch.syspath_prepend(PLUGIN)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_a_method_of_ones_own_joins_by_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, mine, page = tmp_path / "ours", tmp_path / "mine", tmp_path / "page" / "mine.md"

    def call(*words: str) -> str:
        leaderboard.main(words)
        return capsys.readouterr().out

    assert re.match(r"2 cells.* 0 ", call("--only", "fedavg,local-only", "--folder", str(ours)))
    assert re.match(r"1 cells.* 0 ", call("--only", OWN, "--folder", str(mine)))
    (path,) = mine.glob("tiny/*.json")
    kept = json.loads(path.read_text("utf-8"))
    assert kept["failed"] is None
    assert [trial["rate"] for trial in kept["trials"]] == [0.02, 0.2]
    assert kept["rate"] == max(kept["trials"], key=lambda trial: trial["values"][0])["rate"]
    assert [run["seed"] for run in kept["rows"][OWN]] == [0, 1]
    assert {*kept["rows"]} == {OWN, f"{OWN}+FT"}
    # FedAvg is run again, from other seeds.
    fedavg = read(ours)["tiny", "fedavg"]
    assert [run["seed"] for run in fedavg["again"]] == [2]
    # Nothing is computed again, and the page has a row of it.
    only = ("--only", "fedavg,local-only", "--folder", str(ours))
    said = call(*only, "--with", str(mine), "--write", str(page))
    assert re.match(r"2 cells.* 2 ", said)
    lines = page.read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith(f"| `{OWN}` |")]
    assert len(rows) == 2
    assert (page.parent / "pictures" / "leaderboard.svg").exists()
    # An interruption costs the cell that it falls into.
    monkeypatch.setattr(leaderboard, "compute", interrupt_at("ditto"))
    with pytest.raises(KeyboardInterrupt):
        call("--only", "fedprox,ditto", "--folder", str(ours))
    assert file_of(ours, "tiny", "fedprox").exists()
    # Other settings, and it is computed again.
    monkeypatch.setattr(leaderboard_cells, "SEEDS", (0, 1, 3))
    assert not leaderboard.is_kept(ours, "tiny", "fedavg")


def interrupt_at(name: str) -> Callable[[str, str], Result]:
    """Compute as ever, and be interrupted at one method."""

    def compute(federation: str, method: str) -> Result:
        if method == name:
            raise KeyboardInterrupt
        return leaderboard_cells.compute(federation, method)

    return compute
