"""The comparison with other simulators: equal work for all, real drivers, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from benchmarks.drivers.workload import Workload, load, network, parameters
from benchmarks.memory import held, tree
from benchmarks.peers import WARM, WAYS, Driver, check_work, compared, prepared
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


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(ValueError, match="network 'resnet18' is not one of"):
        network(workload("resnet18", 32, 3))


@pytest.mark.slow
def test_rounds_of_real_drivers_in_turn() -> None:
    python = Path(sys.executable)
    rows = compared("small", small(), {"coterie": python, "plain": python}, repeats=3)
    assert [row["way"] for row in rows] == ["coterie", "plain"]
    for row in rows:
        assert row["samples"] == 5 * 40
        assert row["parameters"] == 4_810
        assert row["loss_last"] < row["loss_first"]
        assert 0 < row["seconds_least"] <= row["seconds"] <= row["seconds_most"]
        assert 50 < row["memory_mib"] < 5_000
    assert rows[0]["ratio"] == rows[0]["ratio_least"] == rows[0]["ratio_most"] == 1.0
    assert rows[1]["ratio"] == pytest.approx(rows[1]["seconds"] / rows[0]["seconds"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"samples": 199}, r"other trained on \[199, 200\] samples a round in small; they must be 200"),
        (
            {"loss": 3.0},
            r"did not learn in small: its last loss is 3\.000, and guessing has 2\.303; it must be below 2\.280",
        ),
        ({"loss": 2.29}, "other did not learn in small: its last loss is 2.290"),
        ({"loss": float("nan")}, "other did not learn in small: its last loss is nan"),
        ({"parameters": 4_809}, "other has 4809 parameters in small; they must be 4810"),
    ],
)
def test_other_work_is_refused(tmp_path: Path, change: dict[str, float], sentence: str) -> None:
    work = prepared("small", small(), tmp_path)
    rounds = [{"seconds": 1.0, "samples": 200, "loss": loss} for loss in np.linspace(2.2, 1.8, WARM + 2)]
    rounds[WARM]["loss"] = 2.0
    with subprocess.Popen([sys.executable, "-c", ""], text=True) as process:
        driver = Driver(process, tmp_path / "log", 4_810, rounds)
        check_work(work, "other", driver)
        driver.parameters = int(change.pop("parameters", 4_810))
        rounds[-1].update(change)
        with pytest.raises(RuntimeError, match=sentence):
            check_work(work, "other", driver)


def test_a_way_may_learn_most_in_its_first_round(tmp_path: Path) -> None:
    work = prepared("small", small(), tmp_path)
    rounds = [{"seconds": 1.0, "samples": 200, "loss": loss} for loss in (0.55, *[0.61] * (WARM + 1))]
    with subprocess.Popen([sys.executable, "-c", ""], text=True) as process:
        check_work(work, "other", Driver(process, tmp_path / "log", 4_810, rounds))


@pytest.mark.parametrize("ask", ["round", "heard"])
def test_a_driver_that_has_died_says_which_and_its_last_words(tmp_path: Path, ask: str) -> None:
    program = "import json, sys; print(json.dumps({'parameters': 1}), flush=True); sys.exit('out of memory\\n')"
    log = tmp_path / "some_driver.log"
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            [sys.executable, "-c", program],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        driver = Driver(process, log)
        assert driver.heard() == {"parameters": 1}
        process.wait()  # so that nobody reads what it is told
        with pytest.raises(
            RuntimeError, match=r"^some_driver has ended with 1; the last it said is: out of memory$"
        ):
            getattr(driver, ask)()
        driver.close()


def test_an_environment_that_is_missing_has_no_python(tmp_path: Path) -> None:
    assert WAYS["pfl"].python(tmp_path) is None
    assert WAYS["pfl"].python(None) is None
    assert WAYS["plain"].python(None) == Path(sys.executable)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_of_a_process_and_its_children() -> None:
    child = "x = bytearray(300 * 2**20); print('there', flush=True); input()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        assert len(tree(process.pid)) == 2
        assert 300 * 2**20 < held(process.pid) < 400 * 2**20
        process.communicate("go\n")
