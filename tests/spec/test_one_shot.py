"""What methods share that group clients once: who comes later is placed, and nobody moves any more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coterie.methods import FLHC, FLUX, PACFL, Halves, Method
from coterie.runtime.runtime import drive
from tests.federated import planted, train
from tests.survival import local


@pytest.mark.medium
@pytest.mark.parametrize(
    ("method", "kind", "grouped"),
    [
        (Halves(starts=1), "feature", 1),
        (PACFL(), "feature", 1),
        (FLHC(after=1), "incongruent", 2),
        (FLUX(after=1), "feature", 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else str(value),
)
def test_one_shot_groups_place_late_clients_and_newcomers(method: Method[Any], kind: Any, grouped: int) -> None:
    """`grouped` is the round in which groups are found."""
    run = train(method, planted(kind, 2), 8, client_dropout=0.3)
    missed = run.states[grouped].groups < 0
    assert 0 < missed.sum() < 20
    for before, after in zip(run.states[grouped:], run.states[grouped + 1 :], strict=False):
        settled = before.groups >= 0
        assert (after.groups[settled] == before.groups[settled]).all()
    assert run.ari() == 1.0
    runtime = local(run)
    runtime.client_dropout = 0.0
    runtime.begin_round(9)
    joined = drive(run.method.newcomer(run.state, np.array([1, 4, 6]), run.server), runtime.answer)
    assert joined.groups.tolist() == run.groups()[[1, 4, 6]].tolist()
