"""When to look for groups: functions of what clients uploaded, or of the course of the loss."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field


def hopkins(points: NDArray[np.float64], rng: np.random.Generator, repeats: int = 1, sample: float = 1.0) -> float:
    """The Hopkins statistic of points `[m, d]`: 0.5 for no structure, towards 1 for tight clusters.

    A share `sample` of the points, at least two, is compared with as many drawn uniformly in the points' bounding
    box: the sum of the drawn ones' distances to their nearest point, over that sum plus the points' own distances
    to their nearest other point. The exponent on the distances is 1; if all distances are 0 the answer is 0.5
    (FedTSDP, Eq. 6; docs/methods/fedtsdp.md, D6 to D8).

    The answer is the mean over `repeats` draws, and NaN where a point is not finite.
    """
    if len(points) < 2:
        return 0.5
    if not np.isfinite(points).all():
        return float("nan")
    size = max(2, int(np.ceil(sample * len(points) - 1e-9)))
    return float(np.mean([_hopkins_once(points, rng, size) for _ in range(repeats)]))


def _hopkins_once(points: NDArray[np.float64], rng: np.random.Generator, size: int) -> float:
    """The statistic from one draw of `size` points."""
    from scipy.spatial.distance import cdist

    picked = rng.permutation(len(points))[:size]
    drawn = rng.uniform(points.min(0), points.max(0), (size, points.shape[1]))
    among = cdist(points[picked], points)
    among[np.arange(size), picked] = np.inf
    own, other = among.min(1).sum(), cdist(drawn, points).min(1).sum()
    return float(other / (other + own)) if other + own > 0 else 0.5


Rho = Annotated[float, Field(ge=0, lt=1)] | Literal["literal"]
"""How much weight moves to a batch, as a setting: see `reweight_batch`."""


def reweight_batch(weights: NDArray[np.float64], batch: NDArray[np.int64], rho: float | str) -> NDArray[np.float64]:
    """Sampling weights `[M]` after the statistic was high on a batch: `(1 - rho) weights + rho / len(batch)` there.

    With rho = 1/2 these are the increments of Eq. 7 to weights of mean 1; `literal` is rho = M / (1 + M), which is
    Eq. 7 and 8 to the letter (docs/methods/fedtsdp.md, D9). All weights stay above 0.
    """
    share = len(weights) / (1 + len(weights)) if rho == "literal" else float(rho)
    # No smaller than the smallest number: halved round after round, a weight would reach 0 in a long run.
    found = np.maximum((1 - share) * weights, np.finfo(np.float64).tiny)
    found[batch] += share / len(batch)
    return found
