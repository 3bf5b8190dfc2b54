"""How far apart what two models predict is: Jensen-Shannon divergences."""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.grouping.affinity import distances_from_products, gram

Kernel = Literal["exact", "low-rank"]
"""How divergences are computed: from logarithms of every pair, or from one Gram product of features."""

_TINY = 1e-300
"""Stands for a probability of 0: x log x is then 0 to the last digit, and no logarithm infinite."""

_COLUMNS = 1 << 11
_NUMBERS = 1 << 14
"""Columns, and numbers in all, that are in work at a time: the buffers stay in a core's own cache."""

_LANDMARKS = np.geomspace(1e-4, 1.0, 10)
"""Probabilities at which the low-rank kernel is exact."""


def js_divergences(
    outputs: Tensor, others: Tensor | None = None, *, kernel: Kernel = "exact"
) -> NDArray[np.float64]:
    """Jensen-Shannon divergences `[n, n]` between softmax outputs `[n, samples, classes]`.

    The mean over samples, in nats, so between 0 and ln 2; the divergence itself and not its root
    (docs/methods/fedtsdp.md, D1 and D2). With `others` `[m, samples, classes]`, those between outputs and
    others `[n, m]`.

    Args:
        outputs: the rows.
        others: the columns, where they are not the rows again.
        kernel: `exact` takes a logarithm for every pair, in float64. `low-rank` makes ten features of every
            probability, of which the divergence is half the squared distance: the Nyström features (Williams and
            Seeger, 2001) of the Jensen-Shannon kernel of Vedaldi and Zisserman (2012, Table 1), with landmarks
            from 0.0001 to 1. One Gram product then gives all pairs, at a fraction of the cost where clients are
            many. Its absolute error is below 0.0001, with up to 100 classes.
    """
    q = outputs.flatten(1)
    r = None if others is None else others.flatten(1)
    found = _exact(q, r) if kernel == "exact" else _low_rank(q, r)
    found /= outputs.shape[1]
    np.maximum(found, 0.0, out=found)
    if others is None:
        np.fill_diagonal(found, 0.0)
    return found


def _exact(q: Tensor, r: Tensor | None) -> NDArray[np.float64]:
    """Sums over all columns. With `s = q + r`, twice a divergence is `q log q + r log r - s log s + s log 2`."""
    n, m = len(q), len(q if r is None else r)
    found = np.zeros((n, m))
    width = max(1, min(_COLUMNS, q.shape[1]))
    block = max(1, _NUMBERS // width)
    sums, logs = np.empty((block, width)), np.empty((block, width))
    for left, right in _columns(q, r, width):
        own, their = _entropic(left), _entropic(right)
        size = left.shape[1]
        for at in range(0, m, block):
            some = right[at : at + block]
            s, t = sums[: len(some), :size], logs[: len(some), :size]
            # Of a symmetric matrix only the rows above the block's end are needed.
            for i in range(n if r is not None else min(n, at + block)):
                np.add(some, left[i], out=s)
                np.log(s, out=t)
                found[i, at : at + block] -= np.einsum("ij,ij->i", s, t)
        found += own[:, None]
        found += their
    if r is None:
        _mirror(found)
    found *= 0.5
    return found


def _columns(q: Tensor, r: Tensor | None, width: int) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Tiles of columns of `q` and `r` in float64; without `r`, those of `q` twice."""
    for start in range(0, q.shape[1], width):
        columns = slice(start, start + width)
        left = q[:, columns].double().clamp(min=_TINY).numpy()
        yield left, left if r is None else r[:, columns].double().clamp(min=_TINY).numpy()


def _entropic(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums `[n]` of `p log p + p log 2` over the columns `[n, size]`."""
    return np.asarray(np.einsum("ij,ij->i", p, np.log(p)) + log(2.0) * p.sum(1))


def _mirror(matrix: NDArray[np.float64]) -> None:
    """Write what is above the diagonal below it, in place."""
    for i in range(1, len(matrix)):
        matrix[i, :i] = matrix[:i, i]


def _low_rank(q: Tensor, r: Tensor | None) -> NDArray[np.float64]:
    both = q if r is None else torch.cat([q, r])
    found = np.square(distances_from_products(gram(_features(both), len(both))))
    found *= log(2.0) / 2
    return found if r is None else found[: len(q), len(q) :]


def _features(p: Tensor) -> Iterator[Tensor]:
    """Centred features of probabilities `[n, size]`, ten for every column, a tile of columns at a time."""
    values, vectors = np.linalg.eigh(_kernel(_LANDMARKS))
    root = vectors / np.sqrt(values)
    step = _COLUMNS // len(_LANDMARKS)
    for start in range(0, p.shape[1], step):
        features = (_kernel(p[:, start : start + step].double().numpy()) @ root).reshape(len(p), -1)
        # What all clients have in common does not count between them, and would cost digits in float32.
        yield torch.from_numpy((features - features.mean(0)).astype(np.float32))


def _kernel(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """The Jensen-Shannon kernel between probabilities `[...]` and the landmarks, `[..., 10]`; 1 from 1 to 1."""
    x = np.maximum(p, _TINY)[..., None]
    s = x + _LANDMARKS
    s *= np.log2(s)
    s -= x * np.log2(x)
    s -= _LANDMARKS * np.log2(_LANDMARKS)
    s *= 0.5
    return s
