"""The centre of each group where some models may be meant to harm: estimates that a few of them cannot move far.

Every model counts once, for how many samples a client has is its own word. Of `r` models, `f` are taken to be
hostile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.grouping.affinity import squared_distances

Estimate = Literal["median", "trimmed-mean", "krum", "multi-krum", "bulyan", "geometric-median", "centred-clipping"]

_COLUMNS = 1 << 16
"""Columns sorted at a time."""
_STEPS = 100
"""Steps of Weiszfeld's algorithm at most; it has converged after some ten."""
_CLIPPED = 5
"""Steps of centred clipping; its authors take 1 to 3 from the last round's momentum, we start from its model."""


def count_hostile(models: int, share: float) -> int:
    """Return how many of so many models are taken to be hostile: `ceil(share r)`, and always fewer than half."""
    # 0.28 * 25 is a little more than 7 in binary.
    return max(0, min(int(np.ceil(share * models - 1e-9)), (models - 1) // 2))


def robust_centres(
    models: Tensor, groups: NDArray[np.int64], previous: Tensor, estimate: Estimate, share: float
) -> Tensor:
    """Estimate the centre of each group's models.

    Args:
        models: `[r, P]`, rows in ascending client id.
        groups: the group of each row `[r]`, 0 … K-1; rows with -1 count nowhere.
        previous: `[K, P]`; a group without members keeps its row.
        estimate: how.
        share: of the models of each group, how many are taken to be hostile.

    Returns:
        A new matrix `[K, P]`, float32; computed in float64.
    """
    centres = previous.clone()
    for k in range(len(previous)):
        members = np.flatnonzero(groups == k)
        if len(members):
            own, hostile = models[torch.from_numpy(members)], count_hostile(len(members), share)
            sent = ~own.isnan().any(0)  # what did not cross is NaN, and stays as it was
            if sent.all():
                centres[k] = _ESTIMATES[estimate](own, previous[k], hostile)
            elif sent.any():
                found = _ESTIMATES[estimate](own[:, sent], previous[k, sent], hostile)
                centres[k, sent] = found.float()
    return centres


def clip_updates(models: Tensor, starts: Tensor, norm: float) -> Tensor:
    """Return models `[r, P]` of which none is farther than `norm` from its start, the row of `starts` `[r, P]`."""
    clipped = models.clone()
    for row, start in zip(clipped, starts, strict=True):
        update = row.double() - start
        length = float(update.nan_to_num().norm())
        if length > norm:
            row.copy_(start + update * (norm / length))
    return clipped


def _median(models: Tensor, previous: Tensor, hostile: int) -> Tensor:
    """The median of every column (Yin, Chen, Ramchandran and Bartlett, 2018)."""
    return _inner_mean(models, (len(models) - 1) // 2)


def _trimmed_mean(models: Tensor, previous: Tensor, hostile: int) -> Tensor:
    """The mean of every column without its f smallest and f largest values (Yin et al., 2018)."""
    return _inner_mean(models, hostile)


def _inner_mean(models: Tensor, cut: int) -> Tensor:
    found = torch.empty(models.shape[1], dtype=torch.float64)
    for start in range(0, models.shape[1], _COLUMNS):
        columns = slice(start, start + _COLUMNS)
        ordered = np.sort(models[:, columns].numpy(), axis=0)[cut : len(models) - cut]
        found[columns] = torch.from_numpy(ordered).double().mean(0)
    return found


def _krum(models: Tensor, previous: Tensor, hostile: int) -> Tensor:
    """The model with the least distance to its r - f - 2 nearest (Blanchard et al., 2017)."""
    return models[int(_rank(squared_distances(models, models), hostile)[0])].double()


def _multi_krum(models: Tensor, previous: Tensor, hostile: int) -> Tensor:
    """The mean of the r - f models that Krum ranks best."""
    best = _rank(squared_distances(models, models), hostile)[: len(models) - hostile]
    return models[torch.from_numpy(np.sort(best))].double().mean(0)


def _rank(distances: NDArray[np.float64], hostile: int) -> NDArray[np.int64]:
    """Return the models by the sum of squared distances `[r, r]` to their r - f - 2 nearest, the least first."""
    others = np.sort(distances, axis=1)[:, 1:]  # without itself
    nearest = max(1, len(distances) - hostile - 2)
    return np.asarray(np.argsort(others[:, :nearest].sum(1), kind="stable"), np.int64)


def _bulyan(models: Tensor, previous: Tensor, hostile: int) -> Tensor:
    """The mean of the values nearest to the median among the models that Krum picks (El Mhamdi et al., 2018).

    Krum picks r - 2f models one after the other; in every column the r - 4f values nearest to their median count.
    Its guarantee needs r >= 4f + 3; of fewer models, fewer than f are taken to be hostile.
    """
    hostile = min(hostile, max(0, (len(models) - 3) // 4))
    distances, left = squared_distances(models, models), np.arange(len(models))
    picked: list[int] = []
    while len(picked) < len(models) - 2 * hostile:
        best = int(_rank(distances[np.ix_(left, left)], hostile)[0]) if len(left) > 1 else 0
        picked.append(int(left[best]))
        left = np.delete(left, best)
    chosen = models[torch.tensor(sorted(picked))]
    found = torch.empty(models.shape[1], dtype=torch.float64)
    kept = len(picked) - 2 * hostile
    for start in range(0, models.shape[1], _COLUMNS):
        columns = slice(start, start + _COLUMNS)
        values = chosen[:, columns].double().numpy()
        nearest = np.argsort(np.abs(values - np.median(values, axis=0)), axis=0, kind="stable")[:kept]
        found[columns] = torch.from_numpy(np.take_along_axis(values, nearest, axis=0).mean(0))
    return found


def _geometric_median(models: Tensor, previous: Tensor, hostile: int) -> Tensor:
    """The point with the least sum of distances to all models (RFA: Pillutla, Kakade and Harchaoui, 2022).

    By Weiszfeld's algorithm from the median of every column, until a step is a millionth of what it began with.
    """
    centre = _median(models, previous, hostile)
    for _ in range(_STEPS):
        apart = _distances(models, centre)
        # The authors smooth by a constant; one relative to the models means the same in every network.
        weights = 1 / np.maximum(apart, max(1e-6 * float(np.median(apart)), 1e-30))
        new = _weighted_mean(models, weights / weights.sum())
        moved, centre = float((new - centre).norm()), new
        if moved <= 1e-6 * float(np.median(apart)):
            break
    return centre


def _centred_clipping(models: Tensor, previous: Tensor, hostile: int) -> Tensor:
    """The mean of updates cut to one length, taken several times from where it led (Karimireddy, He, Jaggi, 2021).

    The length is the median of the distances to the centre, so that it fits every network and round.
    """
    centre = previous.double()
    for _ in range(_CLIPPED):
        apart = _distances(models, centre)
        shrunk = np.minimum(1, np.median(apart) / np.maximum(apart, 1e-30)) / len(models)
        # The sum of (w_i - v) times what is left of it.
        centre = _weighted_mean(models, shrunk) + centre * (1 - float(shrunk.sum()))
    return centre


def _distances(models: Tensor, centre: Tensor) -> NDArray[np.float64]:
    return np.array([float((row - centre).norm()) for row in models])


def _weighted_mean(models: Tensor, weights: NDArray[np.float64]) -> Tensor:
    total = torch.zeros(models.shape[1], dtype=torch.float64)
    for row, weight in zip(models, weights.tolist(), strict=True):
        total.add_(row, alpha=weight)
    return total


_ESTIMATES: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "median": _median,
    "trimmed-mean": _trimmed_mean,
    "krum": _krum,
    "multi-krum": _multi_krum,
    "bulyan": _bulyan,
    "geometric-median": _geometric_median,
    "centred-clipping": _centred_clipping,
}
