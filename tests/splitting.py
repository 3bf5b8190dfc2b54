"""Runs in which leaves are split within a few rounds, and what they log of their layers."""

from __future__ import annotations

from typing import Any

from coterie.methods.exchange import LogGap
from coterie.methods.layercfl import LayerCFL
from tests.federated import TRAINING, Trained, planted, train

DECAY = TRAINING.updated(lr_decay=0.98)
GATES: dict[str, Any] = {"t_min": 4, "eps1_frac": 0.7, "ratio": 2.0, "gamma_max": 0.0}
QUICK: dict[str, Any] = GATES | {"linkage": "complete"}
"""Settings with which four incongruent groups are told apart in a few rounds."""

PUBLISHED: dict[str, Any] = {
    "eps1_frac": 0.1,
    "ratio": 4.0,
    "gamma_max": 0.0,
    "linkage": "complete",
    "t_min": 20,
    "cooldown": 10,
}
"""LayerCFL's own thresholds: a tenth of the longest mean update, and four times that; every cut is accepted."""

FIRST, LAST = "1", "3"
"""The dense layers of the planted perceptron, by the names of its modules."""


def quick(rounds: int = 9, **settings: Any) -> Trained:
    """Three clients in each of four incongruent groups, soon split."""
    method = LayerCFL(**QUICK | {"log_gaps": "every"} | settings)
    return train(method, planted("incongruent", 4, clients=12), rounds, training=DECAY)


def gaps_of(run: Trained, kind: str = "similarity") -> dict[str, LogGap]:
    """What was logged in the last round to measure gaps, by layer: Gap1 of similarities, Gap2 of distances."""
    logged = [entry for entry in run.runtime.logged if isinstance(entry, LogGap)]
    return {entry.of: entry for entry in logged if entry.kind == kind}
