"""Test samples that are identical to a sample that somebody trains on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clients.data.divide.holdout import Indices
from coterie.errors import count_of


def say_shared_rows(inputs: NDArray[Any], held: Sequence[Sequence[Indices]], filled: bool = False) -> list[str]:
    """Return a sentence on the test samples that are, byte for byte, training samples; none where there are none.

    Args:
        inputs: of all samples `[N, *features]`.
        held: training, validation and test samples of each client.
        filled: whether missing values may stand in the samples, or something in their place.
    """
    digests = np.array([hash(row.tobytes()) for row in inputs], np.int64)
    everybody = np.concatenate([digests[own[0]] for own in held])
    tests = np.concatenate([digests[own[2]] for own in held])
    shared = int(np.isin(tests, everybody).sum())
    if not shared:
        return []
    same_client = sum(int(np.isin(digests[own[2]], digests[own[0]]).sum()) for own in held)
    equal = "; missing values count as equal" * filled
    return [
        f"{shared} of {count_of(len(tests), 'test sample')} {'is' if shared == 1 else 'are'} identical to a "
        f"training sample ({same_client} of them to one of the same client{equal}). If these are two records of "
        "one thing, scores on them say little: give such records the same segment, so that they are held out "
        "together. If different people or things only happen to agree, nothing needs to change"
    ]
