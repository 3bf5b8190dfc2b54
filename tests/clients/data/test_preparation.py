"""Advice on inputs as they come."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from coterie.clients.data.read.preparation import Column, Preparation, advise_standardising
from coterie.errors import BadInput
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.setup import load_federation


def test_inputs_of_very_different_scales_are_noted_whatever_is_missing() -> None:
    inputs = np.array([[np.nan, 1, 5000, 7], [np.nan, 2, np.nan, 7], [np.nan, 3, 1000, 7]], np.float32)
    known = Preparation(tuple(Column(name) for name in ("empty", "small", "large", "same")))
    (note,) = advise_standardising(inputs, known)
    assert re.search("^large .*2,449 .*small", note)
    assert advise_standardising(inputs[:, :2], known) == []


def test_columns_of_raw_memory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((40, 2), "V8"), y=np.arange(40) % 2, columns=np.array(["age", "size"]))
    wanted = Experiment(data={"name": str(path), "split": "iid", "clients": 2}, method="fedavg")
    with pytest.raises(BadInput, match=r"x .*V8;.*numbers"):
        load_federation(prepare(wanted))
