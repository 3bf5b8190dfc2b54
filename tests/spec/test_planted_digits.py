"""Methods that look for groups find two and four planted ones among digits by their defaults, in a short run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie.clients.data.federation import build
from coterie.clients.rules import Training
from coterie.methods import METHODS
from tests.federated import train

CASES = [
    ("pacfl", 1),
    ("flux", 6),
    ("fedem", 10),
    ("fedrc", 10),
    ("fedsoft", 10),
    ("flhc", 6),
    ("fedgroup", 1),
    ("cfl-gp", 10),
    ("stocfl", 3),
]
"""The method, and in how many rounds."""


@pytest.mark.medium
@pytest.mark.parametrize("skew", ["permuted-labels", "rotated"])
@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize(("name", "rounds"), CASES)
def test_planted_digits_are_found(name: str, rounds: int, groups: int, skew: str) -> None:
    federation = build("digits", f"{skew}({groups})", 24, 1, validation=0.0, test=0.2, public=0)
    method = METHODS[name].target()
    if method.is_given_groups:
        method = replace(method, clusters=groups)
    run = train(method, federation, rounds, training=Training(), network="mlp", engine="batched", seed=1)
    assert federation.true_groups is not None
    found = run.groups()
    assert (found >= 0).all()
    assert len(np.unique(found)) == groups
    assert adjusted_rand_score(federation.true_groups, found) == 1.0
