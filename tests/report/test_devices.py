"""What runs take on devices: closed forms of a run of FedAvg, devices that come and go, tables that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.errors import BadInput
from coterie.report.devices import Device, price_run, read_devices
from coterie.runs.folder.run_folder import RunFolder
from tests.commandline import Terminal


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("runs")
    experiment = coterie.Experiment(
        data={"name": "digits", "split": "iid", "clients": 5},
        method={"name": "fedavg"},
        training={"epochs": 2},
        network={"name": "mlp", "hidden": [8]},
        run={"rounds": 3, "folder": str(folder), "name": "priced"},
    )
    coterie.run(experiment)
    return RunFolder(folder / "priced")


def test_a_run_of_fedavg_in_closed_form(fedavg: RunFolder) -> None:
    phone = Device(
        seconds_per_sample=0.01, joules_per_sample=0.5, up_mbit=1, down_mbit=4, up_watts=0.2, down_watts=0.1
    )
    found = price_run(fedavg, [phone])
    rounds, federation = fedavg.rounds(), fedavg.federation()
    assert federation is not None
    samples = 2 * federation["train"].to_numpy()
    up, down = (8 * float(rounds[f"{way}_bytes"].to_numpy().sum()) / 1e6 for way in ("up", "down"))
    assert found.computing == pytest.approx(3 * 0.5 * samples.sum())
    assert found.up == pytest.approx(0.2 * up)
    assert found.down == pytest.approx(0.1 * down / 4)
    # All send as much, so the client with most samples is the last in each round.
    assert found.seconds == pytest.approx(up / 5 + down / 5 / 4 + 3 * 0.01 * samples.max())
    each = (found.up + found.down) / 5
    assert found.most == pytest.approx(each + 3 * 0.5 * samples.max())


def test_clients_have_the_devices_in_turn(fedavg: RunFolder) -> None:
    """A slow link of one client makes each round as long as with that link for all; a cheap one spends less."""
    fast, slow = Device(up_mbit=8, up_watts=1), Device(up_mbit=0.5, up_watts=1)
    whole = price_run(fedavg, [slow])
    mixed = price_run(fedavg, [fast, slow, fast, fast, fast])
    assert mixed.seconds == pytest.approx(whole.seconds)
    assert mixed.up == pytest.approx(whole.up * (1 + 4 / 16) / 5)
    assert mixed.most == pytest.approx(whole.most)


@given(on=st.integers(1, 20), off=st.integers(0, 20), begun=st.integers(0, 100), busy=st.integers(0, 100))
def test_a_device_works_while_it_is_on(on: int, off: int, begun: int, busy: int) -> None:
    """Second by second: it is done as soon as it was on for as many seconds as it is busy."""
    now, done = begun, 0
    while done < busy:
        done += now % (on + off) < on
        now += 1
    found = Device(on_seconds=on, off_seconds=off).elapse(begun, busy)
    assert found == now - begun


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device,joule_per_sample\na,1\n", "joule_per_sample .*joules_per_sample"),
        ("device,up_mbit\na,0\n", "row 1: up_mbit"),
        ("device,up_mbit\na,1\nb,many\n", "row "),
        ("device\n", "devices.csv.*no rows"),
        (None, "devices.csv"),
    ],
)
def test_what_is_no_table_of_devices(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "devices.csv"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(BadInput, match=said):
        read_devices(path)


def test_the_command(fedavg: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "devices.csv"
    path.write_text("device,joules_per_sample,on_seconds\nphone,0.5,\n", "utf-8")
    done = Terminal(capsys)("cost", str(fedavg.path), "--devices", str(path))
    assert done.code == 0
    assert "priced" in done.out
    assert f"{price_run(fedavg, read_devices(path)).joules:,.0f}" in done.out
