"""The centre of each group without what is one client's own: clipped sums and counts under Gaussian noise.

A client adds one update of bounded length to one group's sum, and one to that group's count. So whatever one client
holds, sums and counts together move by a bounded length, and noise hides it. That is the Gaussian mechanism (Dwork
and Roth, 2014, appendix A) as in McMahan, Ramage, Talwar and Zhang (2018, https://arxiv.org/abs/1710.06963).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

COUNTED = 0.1
"""The part of the budget that goes into counts of groups, where there are several."""
WATCHED = 0.05
"""The part of the budget that goes into how many updates are shorter than the clipping norm, where that moves."""


@dataclass(frozen=True)
class Noise:
    """How much noise sums get.

    Attributes:
        multiplier: of everything together: the deviation of noise by which a length of 1 is hidden.
        clip_norm: the length to which updates are cut.
        watched: whether it is asked too how many updates are shorter.
    """

    multiplier: float
    clip_norm: float
    watched: bool = False

    def deviation(self, groups: int) -> float:
        """Return the deviation of the noise in every number of a sum of updates."""
        left = 1 - COUNTED * (groups > 1) - WATCHED * self.watched
        return self.clip_norm * self.multiplier / sqrt(left)

    @property
    def count_deviation(self) -> float:
        """The deviation of the noise in each count."""
        return self.multiplier / sqrt(COUNTED)

    @property
    def short_deviation(self) -> float:
        """The deviation of the noise in the number of short updates, of which each counts a half to either side."""
        return self.multiplier / sqrt(WATCHED) / 2


@dataclass(frozen=True, eq=False)
class NoisyCentres:
    """What a sum gave.

    Attributes:
        centres: `[K, P]`.
        short: the share of updates no longer than the clipping norm, with noise; NaN where nobody asked.
    """

    centres: Tensor
    short: float


def noisy_centres(
    models: Tensor,
    groups: NDArray[np.int64],
    previous: Tensor,
    noise: Noise,
    expected: float,
    rng: np.random.Generator,
) -> NoisyCentres:
    """Return centres that hide whether any one client took part.

    The mean of a group is its noisy sum over its noisy count. That counts as at least half of an equal share of
    the clients expected, or a group that is small by chance would be noise alone. With one group the mean is over
    the expected number, which is known and costs nothing.

    Args:
        models: `[r, P]`, rows in ascending client id, finite.
        groups: the group of each row `[r]`, 0 … K-1.
        previous: what the group's clients started from `[K, P]`; updates are measured from there.
        noise: how much.
        expected: how many clients take part in a round on average.
        rng: draws the noise.
    """
    count, size = previous.shape
    sums = torch.zeros(count, size, dtype=torch.float64)
    short = 0.0
    for row, k in zip(models, groups.tolist(), strict=True):
        update = row.double() - previous[k]
        length = float(update.norm())
        short += 0.5 if length <= noise.clip_norm else -0.5
        sums[k].add_(update, alpha=min(1.0, noise.clip_norm / length) if length else 0.0)
    deviation = noise.deviation(count)
    for total in sums:
        total += torch.from_numpy(rng.normal(0.0, deviation, size))
    shares = np.full(count, float(expected))
    if count > 1:
        counts = np.bincount(groups, minlength=count) + rng.normal(0.0, noise.count_deviation, count)
        shares = np.maximum(counts, expected / (2 * count))
    centres = (previous.double() + sums / torch.from_numpy(shares)[:, None]).float()
    watched = float("nan")
    if noise.watched:
        watched = 0.5 + (short + float(rng.normal(0.0, noise.short_deviation))) / expected
    return NoisyCentres(centres, watched)


def follow_quantile(clip_norm: float, short: float, quantile: float, rate: float = 0.2) -> float:
    """Move a clipping norm towards a quantile of the lengths of updates (Andrew et al., 2021, https://arxiv.org/abs/1905.03871).

    Args:
        clip_norm: of this round.
        short: the share of updates that were no longer, which may be any number, for it has noise.
        quantile: the share that should be no longer.
        rate: how fast it moves; 0.2 is its authors'.
    """
    return clip_norm * float(np.exp(-rate * (min(max(short, 0.0), 1.0) - quantile)))


def hide_update(
    model: Tensor, start: Tensor, clip_norm: float, deviation: float, rng: np.random.Generator
) -> Tensor:
    """Return a client's model `[size]`, its update from `start` cut to `clip_norm`, with noise in every number.

    An update that is not finite counts as none: that training failed is a fact about the client's data.
    """
    update = model.double() - start
    length = float(update.norm())
    if not isfinite(length):
        update, length = torch.zeros_like(update), 0.0
    if length > clip_norm:
        update *= clip_norm / length
    return (start + update + torch.from_numpy(rng.normal(0.0, deviation, len(update)))).float()
