"""Mixtures that are least by a quadratic form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def minimise_on_simplex(form: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the `a` `[r]` with the least `a' Q a` of those that are nowhere below 0 and sum to 1.

    It has the direction of what solves the non-negative least squares `a' Q a + (sum a - 1)^2`: along one direction
    the least of these is `q / (1 + q)`, q being the form where the sum is 1, and so it is least where q is.

    Args:
        form: Q `[r, r]`, symmetric and positive semidefinite.
    """
    values, vectors = np.linalg.eigh(form / max(float(np.abs(form).max()), np.finfo(np.float64).tiny))
    rows = np.vstack([np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T, np.ones(len(form))])
    from scipy.optimize import nnls  # takes long to load

    found, _ = nnls(rows, np.append(np.zeros(len(form)), 1.0))
    return np.asarray(found / found.sum(), np.float64)
