"""The comparison with other simulators: equal work for all, real drivers, and what it refuses."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from benchmarks.drivers.workload import Workload, load, network, parameters
from benchmarks.peers import prepared
from benchmarks.smoke import write_images
from coterie.clients.data.federation import Federation
from coterie.models.networks import build, channels_first
from coterie.runs.session import Session


def small(data: str = "digits") -> coterie.Experiment:
    """Ten clients, half of whom train in a round."""
    return coterie.Experiment(
        data={"name": data, "split": "iid", "clients": 10, "samples_per_client": 50, "validation": 0.0},
        network={"name": "mlp", "hidden": [64]},
        method="fedavg",
        training={"epochs": 1, "batch_size": 10, "lr": 0.1},
        run={"participation": 0.5},
    )


def workload(name: str, side: int, channels: int) -> Workload:
    features = side * side * channels
    return Workload(name, name, 1, 1, 1, 0, features, 10, 10, 0.1, 1, 0)


@pytest.mark.parametrize("data", ["digits", "mnist", "bytes.npz"])
def test_drivers_get_the_samples_that_coterie_trains_on(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    shape = (600, 6, 6, 3)
    drawn = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    np.savez(tmp_path / "bytes.npz", image=drawn, label=np.arange(600) % 10)
    name = str(tmp_path / data) if data.endswith(".npz") else data
    work = prepared("small", small(name), tmp_path)
    assert Workload.read(tmp_path) == work
    assert (work.clients, work.cohort, work.samples) == (10, 5, 40)
    assert work.parameters == (work.features + 1) * 64 + 650
    with closing(Session(small(name))) as session:
        clients = session.population
    assert isinstance(clients, Federation)
    assert clients.inputs.dtype == (torch.float32 if data == "digits" else torch.uint8)
    for split in ("train", "test"):
        own = [clients.slice(client, split) for client in range(10)]
        inputs = torch.cat([channels_first(clients.to_numbers(stored)) for stored, _ in own])
        assert inputs.dtype == torch.float32
        assert torch.equal(load(tmp_path, f"{split}_x").reshape(inputs.shape), inputs)
        assert torch.equal(load(tmp_path, f"{split}_y").flatten(), torch.cat([labels for _, labels in own]))


@pytest.mark.parametrize(("name", "side", "channels"), [("simple-cnn", 32, 3), ("mlp", 28, 1)])
def test_networks_of_the_drivers_are_those_of_coterie(name: str, side: int, channels: int) -> None:
    work = workload(name, side, channels)
    settings = {"hidden": 64} if name == "mlp" else {}
    ours, layout = build(name, settings, (side, side, channels), 10, seed=0)
    plain = network(work)
    assert parameters(plain) == layout.trainable.size
    with torch.no_grad():
        for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
            theirs.copy_(mine)
        images = channels_first(torch.randn(4, side, side, channels, generator=torch.Generator().manual_seed(0)))
        torch.testing.assert_close(ours.eval()(images), plain.eval()(images))
    drops = [[m.p for m in n.modules() if isinstance(m, torch.nn.Dropout)] for n in (ours, plain)]
    assert drops[0] == drops[1]
