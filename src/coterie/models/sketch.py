"""Sketches: few numbers that stand for a model where only distances matter."""

from __future__ import annotations

from math import isqrt

import numpy as np
import torch
from torch import Tensor

from coterie.randomness import stream

SKETCH = 512
"""Numbers in a sketch of a model."""

_FOLDS = 64
"""How many columns of a run share a number. How far apart these are is a prime, so that no layer's width brings the
weights of one unit together."""

_ROWS = 1 << 6
"""Models at a time."""


class Sketch:
    """Count sketch: a random linear map from P to `width` numbers that keeps distances, in expectation.

    Every coordinate is added, with a random sign, to one bucket (Charikar, Chen and Farach-Colton, 2002). In a
    run of consecutive coordinates the buckets follow one another, and where a run begins is random: that is as fast
    as reading the model. Models of at most `width` parameters are kept as they are.
    """

    def __init__(self, size: int, seed: int, width: int = SKETCH) -> None:
        rng = stream(seed, "sketch")
        self.width = min(size, width)
        self._exact = size <= width
        self._fold = _largest_prime(width)
        self._first = rng.integers(0, width, -(-size // (_FOLDS * self._fold))).tolist()
        self._signs = rng.integers(0, 2, size).astype(np.float32) * 2 - 1

    def __call__(self, models: Tensor) -> Tensor:
        """Sketches `[n, width]` of models `[n, P]`; a model's does not depend on who else is in the matrix."""
        if self._exact:
            return models.clone()
        width, fold = self.width, self._fold
        found = np.zeros((len(models), width), np.float32)
        for at in range(0, len(models), _ROWS):
            rows, sums = models[at : at + _ROWS].numpy(), found[at : at + _ROWS]
            for start, first in zip(range(0, rows.shape[1], _FOLDS * fold), self._first, strict=True):
                run = slice(start, start + _FOLDS * fold)
                some, signs = rows[:, run], self._signs[run]
                even = len(signs) - len(signs) % fold
                folds = some[:, :even].reshape(len(rows), -1, fold), signs[:even].reshape(-1, fold)
                folded = np.einsum("rij,ij->rj", *folds)
                folded[:, : len(signs) - even] += some[:, even:] * signs[even:]
                before = width - first
                sums[:, first : first + fold] += folded[:, :before]
                sums[:, : max(fold - before, 0)] += folded[:, before:]
        return torch.from_numpy(found)


def _largest_prime(most: int) -> int:
    """Return the largest prime of at most `most`, which is at least 2."""
    return next(n for n in range(most, 1, -1) if all(n % d for d in range(2, isqrt(n) + 1)))
