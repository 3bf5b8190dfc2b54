"""A client's states on its own disk: there after a power cut, and nothing half written stays."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from coterie.runtime.remote.client_runner import StateStore


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_state_comes_back_until_it_is_forgotten(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "states")
    store.delete_before(3)
    assert store.load(1) is None
    matrix = torch.arange(6.0).view(2, 3)
    for number in (1, 2, 10):
        store.save(number, {"model": matrix.T, "count": torch.tensor(number)})
    found = StateStore(tmp_path / "states").load(2)
    assert found is not None
    assert torch.equal(found["model"], matrix.T)
    assert found["count"] == 2
    store.delete_before(2)
    assert names(tmp_path / "states") == ["000000002.safetensors", "000000010.safetensors"]


def test_what_failed_or_was_killed_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateStore(tmp_path)
    store.save(1, {"model": torch.ones(3)})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            store.save(2, {"model": torch.ones(3)})
    assert names(tmp_path) == ["000000001.safetensors"]
    killed, at_work = ".000000002.safetensors.4711.new", ".000000004.safetensors.4712.new"
    for name in (killed, at_work, "notes.safetensors"):
        (tmp_path / name).touch()
    store.delete_before(3)
    assert names(tmp_path) == [at_work, "notes.safetensors"]


def test_states_are_for_their_owner_alone(tmp_path: Path) -> None:
    StateStore(tmp_path / "states").save(1, {"model": torch.ones(3)})
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "states", *(tmp_path / "states").iterdir())]
    assert modes == [0o700, 0o600]


def test_a_state_is_on_the_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[bool, list[str]]] = []
    flush = os.fsync

    def noted(handle: int) -> None:
        flushed.append((stat.S_ISDIR(os.fstat(handle).st_mode), names(tmp_path)))
        flush(handle)

    monkeypatch.setattr(os, "fsync", noted)
    StateStore(tmp_path).save(1, {"model": torch.ones(3)})
    assert [folder for folder, _ in flushed] == [False, True]
    assert flushed[-1][1] == ["000000001.safetensors"]
