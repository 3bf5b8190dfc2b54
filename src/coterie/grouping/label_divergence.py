"""How far apart clients' label distributions are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SMOOTHING = 1e-3
"""Added to each class's share before renormalising: without it one missing class makes the divergence infinite."""


def label_divergence(proportions: NDArray[Any]) -> float:
    """Mean over client pairs of the symmetric Kullback-Leibler divergence of their label distributions, in nats.

    `proportions` is `[clients, classes]`, shares or counts; each client's shares get `SMOOTHING` per class and
    are renormalised. A pair's divergence is (KL(i||j) + KL(j||i)) / 2 (DC-PFL, section II; docs/methods/dcpfl.md,
    D16 and D17). Zero for a single client.
    """
    n = len(proportions)
    if n < 2:
        return 0.0
    shares = np.asarray(proportions, np.float64)
    shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(float).tiny) + SMOOTHING
    shares /= shares.sum(axis=1, keepdims=True)
    logs = np.log(shares)
    # The sum over all ordered pairs of KL(i||j), without forming the pairs.
    total = n * np.sum(shares * logs) - np.dot(shares.sum(axis=0), logs.sum(axis=0))
    return float(max(total, 0.0) / (n * (n - 1)))
