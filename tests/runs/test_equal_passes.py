"""A run that ends after a number of local passes: when, what is evaluated then, and that a kill changes nothing."""

import json
from pathlib import Path

import polars as pl
import pytest

import coterie
from coterie.errors import BadInput
from coterie.runs.folder.run_folder import RunFolder

SMALL = {
    "data": {"clients": 4, "samples_per_client": 40},
    "network": {"name": "mlp", "hidden": [8]},
    "training": {"epochs": 2},
    "evaluation": {"every": 4},
}


def experiment(folder: Path, passes: float | None = 7.0, **more: object) -> coterie.Experiment:
    run = {"rounds": 50, "workers": 1, "folder": str(folder), "passes": passes}
    return coterie.Experiment.from_tables({"method": "fedavg", **SMALL, "run": run, **more})


@pytest.mark.parametrize(("passes", "rounds"), [(7.0, 3), (7.1, 4), (8.0, 4), (0.5, 1)])
def test_the_round_that_comes_nearest_is_the_last_and_is_evaluated(
    tmp_path: Path, passes: float, rounds: int
) -> None:
    result = coterie.run(experiment(tmp_path, passes))
    assert result.status == "finished"
    assert result.rounds["passes"].to_list() == [2.0] * rounds
    assert result.rounds["accuracy"].is_not_null().to_list() == [False] * (rounds - 1) + [True]
    again = coterie.resume(result.folder)
    assert again.rounds.equals(result.rounds)


def test_a_warm_up_is_no_measure_of_the_rounds_after_it(tmp_path: Path) -> None:
    """Ten passes in the first round and two in each later one: after the first, two rounds are left."""
    fesem = {"name": "fesem", "clusters": 2, "warm_up": 10}
    result = coterie.run(experiment(tmp_path, 14.0, method=fesem))
    assert result.rounds["passes"].to_list() == [10.0, 2.0, 2.0]


def test_a_run_of_a_version_that_counted_no_passes_is_read(tmp_path: Path) -> None:
    result = coterie.run(experiment(tmp_path, None, run={"rounds": 2, "folder": str(tmp_path), "workers": 1}))
    folder = RunFolder(result.folder)
    path, environment = result.folder / "rounds.parquet", result.folder / "environment.json"
    metadata = {key: value for key, value in pl.read_parquet_metadata(path).items() if key.startswith("coterie")}
    pl.read_parquet(path).drop("passes").write_parquet(path, metadata=metadata)
    with pytest.raises(BadInput, match=r"rounds\.parquet .*damaged"):
        folder.rounds()
    # A run of a version that counted none kept no digests either.
    (result.folder / "manifest.json").unlink()
    kept = json.loads(environment.read_text())
    del kept["format"]
    environment.write_text(json.dumps(kept))
    older = RunFolder(result.folder)
    assert not older.is_checked
    assert older.rounds()["passes"].to_list() == [None, None]
    assert older.rounds().drop("passes").equals(result.rounds.drop("passes"))
