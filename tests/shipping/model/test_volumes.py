"""Volumes (depth x height x width x channels): trained on, predicted, and refused where they have another shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.commandline import Terminal

QUICK = "--rounds 6 --workers 1 --set lr=0.1 --set epochs=8 --name solid --quiet"
SHAPE = (5, 6, 7, 1)


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """In a folder with volumes of 4 clients: those of class 1 are bright on one side."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 2
    volumes = rng.integers(0, 40, (120, *SHAPE), np.uint8)
    volumes[labels == 1, ..., :3, :] += 200
    volumes[labels == 0, 2:] += 50
    clients = np.arange(120) // 30
    np.savez("volumes.npz", x=volumes, y=labels, client=clients)
    np.savez("flat.npz", x=volumes[..., 0], y=labels, client=clients)
    np.savez("floats.npz", x=(volumes / 255).astype(np.float32), y=labels, client=clients)
    np.savez("other.npz", x=volumes[:, 1:], y=labels, client=clients)
    return Terminal(capsys)


@pytest.mark.slow
def test_a_model_of_volumes_predicts_them(terminal: Terminal) -> None:
    network = "tests.own_networks:Solid"
    run = terminal("run", "fedavg", "--data", "volumes.npz", "--network", network, *QUICK.split())
    assert run.code == 0, run.err
    allow = ["--allow", network]
    for data in ("volumes.npz", "flat.npz", "floats.npz"):
        found = terminal("predict", "solid", "--data", data, "--out", "each.csv", *allow)
        assert found.code == 0, found.err
        correct = int(found.out.rpartition(": ")[2].split()[0])
        assert correct > 100, found.out
    refused = terminal("predict", "solid", "--data", "other.npz", *allow)
    assert refused.code == 2
    assert "5x6x7x1" in refused.err


def test_a_network_of_images_refuses_volumes(terminal: Terminal) -> None:
    refused = terminal("run", "fedavg", "--data", "volumes.npz", "--network", "cnn")
    assert refused.code == 2
    assert all(word in refused.err for word in ("cnn", "volumes", "5x6x7x1"))
