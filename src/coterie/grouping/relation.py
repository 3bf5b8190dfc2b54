"""Relations between clients that need not be partitions, from what their models predict (FLIS, ClusterFL)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.grouping.labels import relabel

ALIKE = 1e-6
"""A divergence that float32 outputs of equal models may show."""


def agreement(predictions: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.float64]:
    """On which share of samples predictions `[r, samples]` and others `[s, samples]` agree, `[r, s]`.

    Of one-hot predictions A_i this is `<A_i, A_j>_F / (||A_i||_F ||A_j||_F)` (docs/methods/flis.md).
    """
    counts = np.zeros((len(predictions), len(others)))
    for label in np.unique(predictions):  # products of zeros and ones: counts, and exact up to 2^24 samples
        one, other = ((some == label).astype(np.float32) for some in (predictions, others))
        counts += one @ other.T
    return np.asarray(counts / predictions.shape[1])


def same_neighbours(near: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Canonical labels `[r]` of the clients with equal rows in `near` `[r, s]`."""
    _, labels = np.unique(near, axis=0, return_inverse=True)
    return relabel(labels.reshape(-1))


def neighbour_weights(near: NDArray[np.bool_], samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much each of `samples` `[s]` counts for a row, `[r, s]`: its samples where it is `near` `[r, s]`."""
    return near * samples


def kl_divergences(outputs: Tensor) -> NDArray[np.float64]:
    """`KL(q_i || q_j)` `[r, r]`, the mean over samples, of softmax outputs `[r, samples, classes]`, in nats."""
    q = outputs.double()
    logs = q.clamp_min(torch.finfo(torch.float32).tiny).log()
    found = np.empty((len(q), len(q)))
    for row, own, log in zip(found, q, logs, strict=True):
        row[:] = (own * (log - logs)).sum(2).mean(1).numpy()
    return np.where(found > ALIKE, found, 0.0)


def relation(outputs: Tensor) -> NDArray[np.float64]:
    """ClusterFL's relation matrix F `[r, r]` of softmax outputs `[r, samples, classes]` (6.14).

    The KL divergences with centred columns, their inner products row by row, negative ones cut off, and every
    column divided by its sum. The authors take the r - 1 principal components first; that changes no product, for r
    centred points span no more dimensions. Where all clients are alike, all are related equally.
    """
    kl = kl_divergences(outputs)
    centred = kl - kl.mean(0)
    related = np.maximum(centred @ centred.T, 0.0)
    sums = related.sum(0)
    return np.where(sums > 0, related / np.where(sums > 0, sums, 1.0), 1 / len(related))
