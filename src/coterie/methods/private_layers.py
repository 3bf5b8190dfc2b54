"""What crosses to clients who keep some layers to themselves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.exchange import Ids, Send
from coterie.models.layout import Layout, Part


def shared_part(
    models: Tensor, rows: Ids, shared: Part, layout: Layout, started: NDArray[np.bool_]
) -> dict[str, Send]:
    """The shared part of each client's row as `model`; to who has not started yet, the rest of it as `initial`.

    The initial broadcast is so an item of its own in the ledger, sent once (specification 0.2, convention 10), and
    a client's first download is a whole model.

    Args:
        models: `[K, P]`.
        rows: of the clients of the exchange `[m]`.
        shared: the part that everybody gets.
        layout: of the models.
        started: whether each of these clients has a model of its own already `[m]`.
    """
    sends = {"model": Send(models, rows, shared)} if shared else {}
    private = layout.everything - shared
    if private and not started.all():
        sends["initial"] = Send(models, np.where(started, -1, rows), private)
    return sends
