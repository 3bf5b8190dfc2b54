"""When to look for groups: functions of what clients uploaded, or of the course of the loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist


def hopkins(points: NDArray[np.float64], rng: np.random.Generator) -> float:
    """The Hopkins statistic of points `[m, d]`: 0.5 for no structure, towards 1 for tight clusters.

    A tenth of the points, at least two, are compared with as many drawn uniformly in the points' bounding box:
    the sum of the drawn ones' distances to their nearest point, over that sum plus the points' own distances to
    their nearest other point. The exponent on the distances is 1; if all distances are 0 the answer is 0.5
    (FedTSDP, Eq. 6; specification 1.4, A6 to A8).
    """
    m = len(points)
    if m < 2:
        return 0.5
    size = max(2, int(np.ceil(0.1 * m)))
    picked = rng.permutation(m)[:size]
    drawn = rng.uniform(points.min(0), points.max(0), (size, points.shape[1]))
    among = cdist(points[picked], points)
    among[np.arange(size), picked] = np.inf
    own, other = among.min(1).sum(), cdist(drawn, points).min(1).sum()
    return float(other / (other + own)) if other + own > 0 else 0.5
