"""What a rule may ask of an engine: training, losses, gradients, scores.

A rule is written for one client and yields these requests; an engine answers them, one client after another
or the same request of many clients in one kernel. That is why a rule contains no loop over batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.models.layout import Part

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, eq=False)
class Train:
    """Local training from `start` `[P]`; answered by `Trained`.

    The direction of a step is `grad F_i(w) + pull (w - anchor) + linear`, restricted to `part`. A pull of 0 and
    no linear term leave the very arithmetic of plain SGD. `anchor` is `start` unless given.
    """

    start: Tensor
    pull: float = 0.0
    anchor: Tensor | None = None
    linear: Tensor | None = None
    part: Part | None = None
    epochs: int | None = None
    purpose: str = "batches"


@dataclass(frozen=True, eq=False)
class Trained:
    """`model` `[P]` after training and the mean training loss over the last epoch's minibatches."""

    model: Tensor
    loss: float


@dataclass(frozen=True, eq=False)
class Losses:
    """Mean loss of every row of `models` `[K, P]` on own data, dropout off; answered by a tensor `[K]`.

    `samples` limits it to that many fresh samples, drawn from the stream `purpose`.
    """

    models: Tensor
    split: Split = "train"
    samples: int | None = None
    purpose: str = "losses"


@dataclass(frozen=True, eq=False)
class Gradients:
    """Minibatch gradients at `model` `[P]`, without a step; answered by a tensor `[Q, P]` (0 in buffers).

    `batches` limits Q; with `full`, one gradient over all the client's training samples.
    """

    model: Tensor
    batches: int | None = None
    full: bool = False
    purpose: str = "gradients"


@dataclass(frozen=True, eq=False)
class Score:
    """How well `model` `[P]` does on own data, dropout off; answered by `Scored`."""

    model: Tensor
    split: Split = "test"


@dataclass(frozen=True, eq=False)
class Scored:
    """Mean loss, and per class `[C]`: how many samples there are, were predicted, and were predicted rightly."""

    loss: float
    actual: NDArray[np.int64]
    predicted: NDArray[np.int64]
    correct: NDArray[np.int64]


Request = Train | Losses | Gradients | Score
Result = Trained | Tensor | Scored
