"""The same method object on a federation whose messages are Flower's gives the bits of the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

from coterie.clients.data import build
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from coterie.shipping.flower.parts import write_parts
from tests.shipping.flower.rehearsal import own_data, place, same

SETTINGS: dict[str, dict[str, Any]] = {
    "dcpfl": {"t_start": 2, "window": 1, "t_obv": 1},
    "lg-fedavg": {"layers": 1, "pretrain": 1},
}
"""Settings with which a method does within few rounds what it does at all."""

PRIVATE: dict[str, dict[str, Any]] = {
    "fedprox": {"unit": "example", "noise_multiplier": 1.0, "noise_seed": 3},
    "feddist": {"unit": "client", "noise_multiplier": 1.0, "noise_by": "clients", "noise_seed": 3},
    "fedper": {"unit": "client", "noise_multiplier": 1.0, "noise_seed": 3},
}
"""What is promised, with noise that can be made again: neither side knows the other's secret."""

CROSSING = ("fedprox", "feddist", "fedper", "dcpfl", "fedcr", "lg-fedavg", "feddane")
"""One for each kind of noise; trial rounds, public data, private layers; two exchanges, of which a simulation makes
sums. That each method's messages cross as bytes is shown for all of them in tests/spec/test_cross.py."""

TABLES = ("rounds", "clients", "ledger", "failures", "federation", "log")


def experiment(method: str, **run: Any) -> Experiment:
    return Experiment(
        method={"name": method, **SETTINGS.get(method, {})},
        data={"name": "digits", "split": "rotated(2)", "clients": 6, "samples_per_client": 60},
        training={"epochs": 1, "lr": 0.1},
        run={"rounds": 3, "participation": 0.7, "client_dropout": 0.1, "seed": 1, **run},
        privacy=PRIVATE.get(method, {}),
    )


@pytest.mark.medium
@pytest.mark.parametrize("method", CROSSING)
def test_a_method_gives_the_bits_of_its_simulation(method: str, tmp_path: Path) -> None:
    """Private layers, k models, trial rounds and public data, with part of the clients and some that vanish."""
    asked = experiment(method)
    here = place(tmp_path, 6)
    real, simulated = here.run(asked), here.simulate(asked)
    assert same(real, simulated)
    one, other = RunFolder(real), RunFolder(simulated)
    for table in TABLES:
        first, second = getattr(one, table)(), getattr(other, table)()
        timed = [name for name in ("seconds",) if name in first.columns]
        assert first.drop(timed).equals(second.drop(timed)), table


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fesem", "fedtsdp"])
def test_clients_with_data_of_their_own_give_the_same_bits(method: str, tmp_path: Path) -> None:
    asked = experiment(method, rounds=2, participation=1.0, client_dropout=0.0)
    public = 40 if method == "fedtsdp" else 0
    asked = asked.updated({"data.public": public})
    federation = build("digits", "rotated(2)", 6, 1, samples_per_client=60, public=public, usual_public=public)
    parts = write_parts(federation, tmp_path / "parts")
    own = asked.updated(
        {
            "data": {
                "name": "remote",
                "clients": 6,
                "features": [8, 8, 1],
                "classes": 10,
                **({"public_file": _public(tmp_path, federation), "public": public} if public else {}),
            }
        }
    )
    here = own_data(tmp_path, parts)
    real, simulated = here.run(own), here.simulate(asked)
    assert same(real, simulated)
    columns = ["round", "client", "accuracy", "loss", "group", "up_bytes"]
    first, second = (RunFolder(run).clients().select(columns) for run in (real, simulated))
    assert first.equals(second)
    table = RunFolder(real).federation()
    assert table is not None
    assert table["name"].to_list() == [f"clinic-{i}" for i in range(6)]
    assert table["labels"].is_null().all()
    traits = RunFolder(real).group_traits()
    assert traits is None or traits.inputs is None  # nobody was asked what inputs look like
    assert RunFolder(real).rounds()["ari"].is_null().all()
    kept = [path.read_bytes() for path in real.rglob("*") if path.is_file()]
    for part in parts:  # nobody else has a client's data
        with np.load(part, allow_pickle=False) as held:
            assert not any(held["features"][0].tobytes() in content for content in kept)


@pytest.mark.slow
def test_a_client_that_joins_after_training_is_received_as_in_simulation(tmp_path: Path) -> None:
    asked = experiment("fesem", rounds=2, holdout_clients=0.3)
    here = place(tmp_path, 6)
    real, simulated = here.run(asked), here.simulate(asked)
    first, second = (pl.read_parquet(run / "newcomers.parquet") for run in (real, simulated))
    assert first.height == 2
    assert first.equals(second)


def _public(folder: Path, federation: Any) -> str:
    path = folder / "public.npz"
    np.savez(path, features=federation.public.numpy())
    return str(path)
