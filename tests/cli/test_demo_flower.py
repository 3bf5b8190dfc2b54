"""The demonstration's experiment finds who belongs together: in simulation, whose bits a real federation has."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

import coterie
from coterie.cli import demo_flower
from coterie.runs.schema.experiment import prepare
from coterie.runs.setup import load_federation

TRUTH = [0, 1, 0]


def found(data: str, seed: int, folder: Path) -> list[int]:
    """The clients' groups at the end."""
    experiment = demo_flower.make_simulation(data, seed).updated({"run.folder": str(folder), "run.workers": 1})
    clients = coterie.run(experiment).clients
    groups: list[int] = clients.filter(clients["round"] == clients["round"].max())["group"].to_list()
    return groups


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(2))
def test_groups_are_found_without_any_files(tmp_path: Path, seed: int) -> None:
    assert found(demo_flower.DIGITS, seed, tmp_path) == TRUTH


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", range(2))
def test_groups_of_writers_are_found(tmp_path: Path, data_folder: Path, seed: int) -> None:
    assert found(demo_flower.WRITERS, seed, tmp_path) == TRUTH


def test_the_clients_experiment_says_what_they_hold(tmp_path: Path) -> None:
    simulation = demo_flower.make_simulation(demo_flower.DIGITS, 0)
    federation = load_federation(prepare(simulation))
    own = demo_flower.use_own_data(simulation, federation, str(tmp_path))
    own.check()
    assert (own.data.is_remote, own.data.clients, own.data.features, own.data.classes) == (True, 3, (8, 8, 1), 10)
    assert own.updated({"data": simulation.data, "run.folder": "runs"}) == simulation
