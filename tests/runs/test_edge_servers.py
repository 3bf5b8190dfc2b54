"""Edge servers change no bit of a run, and what crosses behind them follows from what a method asks for."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import coterie
from coterie.errors import BadInput

CLIENTS, ROUNDS = 12, 3
SIZE = 64 * 4 + 4 + 4 * 10 + 10
"""Parameters of the perceptron."""


def play(folder: Path, edges: int | None, method: str = "fedavg", **settings: object) -> coterie.Result:
    experiment = coterie.Experiment.model_validate(
        {
            "method": {"name": method, **settings},
            "data": {"name": "digits", "clients": CLIENTS, "samples_per_client": 30},
            "network": {"name": "mlp", "hidden": [4]},
            "run": {
                "rounds": ROUNDS,
                "workers": 1,
                "folder": str(folder),
                "name": f"{method}-{edges}",
                "edge_servers": edges,
            },
        }
    )
    return coterie.run(experiment)


def count_edge_bytes(result: coterie.Result) -> list[tuple[float, float]]:
    """Up and down of each round."""
    log = pl.read_parquet(result.folder / "log.parquet").filter(pl.col("name") == "edge bytes")
    ways = [log.filter(pl.col("of") == way)["value"].to_list() for way in ("up", "down")]
    return list(zip(*ways, strict=True))


@pytest.mark.parametrize("edges", [1, 5, CLIENTS])
def test_an_edge_sends_one_sum_and_hears_a_model_once(tmp_path: Path, edges: int) -> None:
    result, plain = play(tmp_path, edges), play(tmp_path, None)
    assert result.rounds.drop("seconds").equals(plain.rounds.drop("seconds"))
    assert result.ledger.equals(plain.ledger)
    up = 8 * (SIZE + 2) if edges < CLIENTS else 4 * SIZE  # the sum of one model is that model
    assert count_edge_bytes(result) == [(edges * up, edges * 4 * SIZE)] * ROUNDS
    assert not count_edge_bytes(plain)


def test_models_that_a_method_looks_at_are_passed_on(tmp_path: Path) -> None:
    result = play(tmp_path, 3, "fesem", clusters=2)
    assert [up for up, _ in count_edge_bytes(result)] == result.rounds["up_bytes"].to_list()


def test_an_edge_sends_a_sum_for_each_group_that_its_clients_chose(tmp_path: Path) -> None:
    result = play(tmp_path, 1, "ifca", clusters=2, init="plain")
    groups, choices = result.rounds["groups"].to_list(), 4 * CLIENTS
    sums = [(choices + 8 * (SIZE + 2) * count, 4 * 2 * SIZE) for count in groups]
    assert count_edge_bytes(result)[:-1] == sums[:-1]  # in the last round the page compares the groups' layers


def test_models_for_every_group_cross_as_one_message(tmp_path: Path) -> None:
    result = play(tmp_path, 3, "fedem", clusters=2)
    shares = 4 * 2 * CLIENTS
    assert count_edge_bytes(result)[1][0] == shares + 3 * 8 * 2 * (SIZE + 2)


def test_there_are_no_more_edges_than_clients(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="edge_servers"):
        play(tmp_path, CLIENTS + 1)
    assert not list(tmp_path.iterdir())
