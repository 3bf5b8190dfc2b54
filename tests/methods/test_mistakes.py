"""What somebody is told whose method returns or serves what nobody can use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.methods import Assignment, FedAvg


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """Its round returns nothing."""

    def round(self, state: Any, cohort: Any) -> Any:
        yield from super().round(state, cohort)


@dataclass(frozen=True)
class Short(FedAvg):
    """It serves all but one client."""

    def assignment(self, state: Any, server: Any) -> Assignment:
        return replace(super().assignment(state, server), groups=np.zeros(server.n - 1, np.int64))


@dataclass(frozen=True)
class Small(FedAvg):
    """It serves a part of a model."""

    def assignment(self, state: Any, server: Any) -> Assignment:
        found = super().assignment(state, server)
        return replace(found, models=found.models[:, :5])


@pytest.mark.parametrize(
    ("method", "error", "told"),
    [
        (Forgetful, TypeError, "the round of Forgetful returns nothing"),
        (Short, ValueError, r"the assignment of Short is of shape \(3,\); it must be \(4,\)"),
        (Small, ValueError, r"'model' is sent as \(1, 5\); a model of this network has \d+ numbers"),
    ],
)
def test_a_sentence_says_what_is_wrong(
    method: type[FedAvg], error: type[Exception], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"name": "digits", "clients": 4, "samples_per_client": 20, "split": "iid"}
    run = {"rounds": 1, "workers": 1}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=told):
        coterie.run(coterie.Experiment(method=method, data=data, run=run))
