"""A run that is read back in Python (`coterie.load`)."""

from __future__ import annotations

from pathlib import Path

import pytest

import coterie


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> coterie.Result:
    folder = str(tmp_path_factory.mktemp("runs"))
    return coterie.run(
        coterie.Experiment(
            data={"name": "digits", "clients": 4, "samples_per_client": 40},
            method="fedavg",
            run={"rounds": 2, "folder": folder, "name": "first"},
        )
    )


def test_a_loaded_run_is_what_the_run_returned(result: coterie.Result) -> None:
    loaded = coterie.load("first", result.folder.parent)
    assert loaded.rounds.equals(result.rounds)
    assert dict(loaded.summary) == dict(result.summary)
    assert coterie.load(result.folder).summary == loaded.summary


def test_a_loaded_run_predicts_with_its_model(result: coterie.Result) -> None:
    loaded = coterie.load(result.folder)
    found = loaded.predict("digits")
    assert found.table().height == 1797
    one = loaded.model("0")
    assert one.vector.shape == loaded.model().vector.shape


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(coterie.BadInput):
        coterie.load("nowhere", tmp_path)
