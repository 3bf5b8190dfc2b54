"""Runs that were killed or interrupted: what must be left of them, and what they must come to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import torch
from safetensors import safe_open

import coterie
from coterie.runs.folder.run_folder import RunFolder


class Stopping(coterie.Observer):
    """Interrupts a run after a round, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self._after = after

    def round(self, round: coterie.Round) -> None:
        if round.number == self._after:
            raise KeyboardInterrupt


def final_tensors(folder: RunFolder) -> tuple[str, dict[str, torch.Tensor]]:
    """What the last checkpoint holds: everything that is no tensor, and the tensors."""
    last = max((folder.path / "checkpoints").glob("*.safetensors"))
    with safe_open(last, framework="pt") as file:
        return file.metadata()["header"], {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118  # no mapping


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    """Every table but for the wall clock, the picture, what explains groups, the last checkpoint, to the bit."""
    assert one.status == other.status == "finished"
    assert one.rounds().drop("seconds").equals(other.rounds().drop("seconds"))
    for table in ("clients", "ledger", "failures", "log"):
        first, second = getattr(one, table)(), getattr(other, table)()
        assert isinstance(first, pl.DataFrame)
        assert first.equals(second)
    joined, same_joined = one.newcomers(), other.newcomers()
    if joined is None or same_joined is None:
        assert joined is same_joined
    else:
        assert joined.equals(same_joined)
    progress = one.progress()
    assert progress is not None
    assert one.rounds()["round"].to_list() == list(range(1, progress.rounds + 1))
    (header, tensors), (same_header, same_tensors) = final_tensors(one), final_tensors(other)
    assert header == same_header
    assert tensors.keys() == same_tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == same_tensors[name].dtype
        assert tensor.numpy().tobytes() == same_tensors[name].numpy().tobytes()
    with np.load(one.path / "picture.npz") as picture, np.load(other.path / "picture.npz") as same_picture:
        assert set(picture) == set(same_picture)
        assert all(np.array_equal(picture[name], same_picture[name]) for name in picture)
    traits = [run.path / "groups.npz" for run in (one, other)]
    assert traits[0].exists() == traits[1].exists()
    assert not traits[0].exists() or traits[0].read_bytes() == traits[1].read_bytes()


def left_overs(folder: Path) -> list[str]:
    """The files that a process has begun to write and that nobody will read."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*") if path.name != ".lock")
