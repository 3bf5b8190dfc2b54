"""Test samples that are identical to a sample that somebody trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clients.data.divide.holdout import Indices

BYTES_AT_A_TIME = 1 << 24


@dataclass(frozen=True)
class SharedRows:
    """How many test samples there are, are identical to a training sample, and to one of the same client."""

    tests: int
    shared: int
    own: int


def count_shared_rows(inputs: NDArray[Any], held: Sequence[Sequence[Indices]]) -> SharedRows:
    """Count the test samples whose inputs are, byte for byte, those of a training sample.

    Args:
        inputs: of all samples `[N, *features]`.
        held: training, validation and test samples of each client.
    """
    digests = _digest_rows(inputs)
    trained = np.unique(np.concatenate([digests[own[0]] for own in held]))
    tests = shared = same_client = 0
    for own in held:
        tested = digests[own[2]]
        tests += len(tested)
        if not len(tested) or not len(trained):
            continue
        place = np.minimum(np.searchsorted(trained, tested), len(trained) - 1)
        known = trained[place] == tested
        shared += int(known.sum())
        if known.any():
            same_client += int(np.isin(tested, digests[own[0]]).sum())
    return SharedRows(tests, shared, same_client)


def say_shared_rows(found: SharedRows, filled: bool = False) -> list[str]:
    """Return the sentence that warns of them; none where there are none.

    Args:
        found: how many.
        filled: whether missing values may stand in the samples, or something in their place.
    """
    if not found.shared:
        return []
    equal = "; missing values count as equal" * filled
    return [
        f"{found.shared} of {found.tests} test samples are identical to a training sample ({found.own} of them to "
        f"one of the same client{equal}). Where one thing was recorded twice, results on it say little: give its "
        "records the same segment, so that they are held out together. Different people or things that agree by "
        "chance can stay"
    ]


def _digest_rows(inputs: NDArray[Any]) -> NDArray[np.uint64]:
    """A number for the bytes of each row; two rows that differ share theirs with a chance of about 1 in 2^60."""
    count = len(inputs)
    width = int(np.prod(inputs.shape[1:], dtype=np.int64)) * inputs.dtype.itemsize
    factors = np.random.default_rng(0).integers(1, 1 << 63, -(-width // 8), np.uint64) | np.uint64(1)
    found = np.empty(count, np.uint64)
    step = max(1, BYTES_AT_A_TIME // max(width, 1))
    for start in range(0, count, step):
        some = np.ascontiguousarray(inputs[start : start + step]).reshape(min(step, count - start), -1)
        raw = np.zeros((len(some), 8 * len(factors)), np.uint8)
        raw[:, :width] = some.view(np.uint8)
        words = raw.view(np.uint64)
        words ^= words >> np.uint64(29)
        words *= factors
        words ^= words >> np.uint64(32)
        found[start : start + step] = words.sum(axis=1, dtype=np.uint64)
    return found
