"""A run that is read back in Python (`coterie.load`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import coterie
from coterie.errors import BadInput
from coterie.plugins import fresh_consent


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
    assert all(len(repr(shown).splitlines()) == 1 for shown in (found, one))
    assert "1,797" in repr(found)
    assert one.vector.shape == loaded.model().vector.shape


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(coterie.BadInput):
        coterie.load("nowhere", tmp_path)


def write_table(folder: Path) -> Path:
    """Four clients, every other one of which calls the classes the other way round."""
    rng = np.random.default_rng(0)
    rows = [f"{c},{a:.2f},{b:.2f},{int(a > b) ^ c % 2}" for c in range(4) for a, b in rng.normal(size=(40, 2))]
    path = folder / "clients.csv"
    path.write_text("client,a,b,label\n" + "\n".join(rows), "utf-8")
    return path


def train(folder: Path, **sections: Any) -> coterie.Result:
    run = {"rounds": 2, "folder": str(folder / "runs"), "name": "own"}
    return coterie.run(coterie.Experiment(data=str(write_table(folder)), run=run, **sections))


def test_each_row_is_answered_by_the_model_of_its_own_client(tmp_path: Path) -> None:
    trained = train(tmp_path, method="local-only")
    found = coterie.load(trained.folder).predict(tmp_path / "clients.csv").table()
    assert found["model"].n_unique() == 4
    assert found.height == 160


@pytest.mark.parametrize(("method", "answered"), [("local-only", 120), ("fedavg", 160)])
def test_a_client_unknown_to_the_run_costs_no_others_prediction(tmp_path: Path, method: str, answered: int) -> None:
    trained = coterie.load(train(tmp_path, method=method).folder)
    frame = pl.read_csv(tmp_path / "clients.csv")
    known = trained.predict(frame).table()
    found = trained.predict(frame.with_columns(client=pl.col("client").replace(1, 9))).table()
    assert found.height == answered
    # Rows 40 to 79 are the stranger's; all others keep their numbers.
    own = [table.filter(~pl.col("row").is_between(40, 79))["row", "predicted"] for table in (known, found)]
    assert own[0].equals(own[1])


@pytest.mark.slow
def test_a_frame_is_predicted_as_its_file_is(tmp_path: Path) -> None:
    trained = coterie.load(train(tmp_path, method="local-only").folder)
    found, frame = trained.predict(tmp_path / "clients.csv").table(), pl.read_csv(tmp_path / "clients.csv")
    for given in (frame, frame.to_pandas()):
        assert trained.predict(given).table()["model"].equals(found["model"])
        assert trained.predict(given).table()["predicted"].equals(found["predicted"])
    unlabelled = trained.predict(frame.select("b", "a"), client="2").table()
    assert unlabelled["predicted"].equals(trained.predict(frame, client="2").table()["predicted"])
    with pytest.raises(BadInput, match="column"):
        trained.predict(frame.select("client", "a"))
    with pytest.raises(BadInput, match="frame"):
        trained.predict([1, 2])


NETWORK = """
from torch import nn

class Plain(nn.Linear):
    def __init__(self, features, classes):
        super().__init__(features[0], classes)
"""


def test_a_network_of_ones_own_is_read_back_once_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_alone.py").write_text(NETWORK, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with fresh_consent(None):
        folder = train(tmp_path, method="fedavg", network="mine_alone:Plain").folder
    with fresh_consent(None), pytest.raises(BadInput, match="mine_alone:Plain"):
        coterie.load(folder).model()
    assert coterie.load(folder, allow=["mine_alone:Plain"]).model().vector.numel() == 6
