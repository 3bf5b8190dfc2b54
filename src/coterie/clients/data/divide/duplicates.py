"""Test samples that are identical to a sample that somebody trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clients.data.divide.holdout import Indices


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
    digests = np.array([hash(row.tobytes()) for row in inputs], np.int64)
    is_trained = np.isin(digests, np.concatenate([digests[own[0]] for own in held]))
    tests = sum(len(own[2]) for own in held)
    shared = sum(int(is_trained[own[2]].sum()) for own in held)
    same_client = sum(int(np.isin(digests[own[2]], digests[own[0]]).sum()) for own in held)
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
