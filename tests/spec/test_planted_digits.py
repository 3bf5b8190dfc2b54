"""Methods that look for groups find two and four planted ones among digits by their defaults, in a short run."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie.clients.data.federation import build
from coterie.clients.rules import Training
from coterie.methods import METHODS
from tests.federated import train

CASES = [
    ("pacfl", "permuted-labels", 1, {}),
    ("pacfl", "rotated", 1, {}),
]
"""The method, the skew, in how many rounds, and how clients train where that is not as usual."""


@pytest.mark.medium
@pytest.mark.parametrize(("name", "skew", "rounds", "training"), CASES)
@pytest.mark.parametrize("groups", [2, 4])
def test_planted_digits_are_found(
    name: str, skew: str, rounds: int, training: dict[str, float], groups: int
) -> None:
    federation = build("digits", f"{skew}({groups})", 24, 1, validation=0.0, test=0.2, public=0)
    method = METHODS[name].target()
    run = train(method, federation, rounds, training=Training(**training), network="mlp", engine="batched", seed=1)
    assert federation.true_groups is not None
    found = run.groups()
    assert (found >= 0).all()
    assert len(np.unique(found)) == groups
    assert adjusted_rand_score(federation.true_groups, found) == 1.0
