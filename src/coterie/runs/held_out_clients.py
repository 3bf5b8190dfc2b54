"""Which clients are kept out of training and join after it (`run.holdout_clients`)."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.clients.data.agree.population import Population
from coterie.clients.data.federation import Federation
from coterie.errors import BadInput
from coterie.randomness import stream
from coterie.runs.schema.refusals import held_out_count

P = TypeVar("P", Federation, Population)


def hold_out_clients(federation: P, share: float, seed: int) -> tuple[P, NDArray[np.int64]]:
    """Return the federation with a random share of its clients moved to the end, and their ids there.

    Raises:
        BadInput: nobody would be left to train.
    """
    n = federation.n
    count = held_out_count(n, share)
    if count >= n:
        raise BadInput(
            f"run.holdout_clients = {share:g} keeps {count} of {n} clients out of training; it must leave one"
        )
    if not count:
        return federation, np.empty(0, np.int64)
    away = np.sort(stream(seed, "holdout-clients").permutation(n)[:count])
    order = np.concatenate([np.setdiff1d(np.arange(n), away), away])
    return federation.reordered(order), np.arange(n - count, n)
