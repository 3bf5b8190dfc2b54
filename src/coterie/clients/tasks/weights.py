"""Tasks in whose loss some classes count more than others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.clients.tasks.task import Targets, Task
from coterie.errors import BadInput

ClassWeights = Annotated[
    Literal["none", "balanced"] | tuple[float, ...],
    Field(
        description="weight of each class in the loss: none (all alike), a list, or balanced (inverse to its "
        "share of all clients' training samples; only in simulations)"
    ),
]


@dataclass(frozen=True)
class WeightedTask(Task):
    """A task of classes of which some may count more than others."""

    class_weights: ClassWeights = "none"

    def fit(self, targets: NDArray[Any], outputs: int) -> Self:
        """Return the task with the weights of its classes, where they are to be balanced."""
        if self.class_weights != "balanced":
            return self
        weights = balance(targets, self.distribution_size(outputs))
        return replace(self, class_weights=weights).with_metrics(self.metrics)

    def check_weights(self, found: Targets) -> Targets:
        """Return the targets, for whose classes the weights are.

        Raises:
            BadInput: there are more or fewer weights than classes, or weights that are none.
        """
        weights, classes = self.class_weights, self.distribution_size(found.outputs)
        if not isinstance(weights, tuple):
            return found
        if len(weights) != classes:
            raise BadInput(
                f"task.class_weights has {len(weights)} numbers; it must have {classes}, one for each class"
            )
        if min(weights) < 0 or max(weights) <= 0:
            raise BadInput(
                f"task.class_weights = {list(weights)} is not possible; no weight may be below 0, and at least one "
                "must be above 0"
            )
        return found

    def weights_of(self, outputs: Tensor) -> Tensor | None:
        """Return the weights as a tensor like the outputs; None where all classes count alike.

        Raises:
            ValueError: nobody has counted the samples of each class.
        """
        if self.class_weights == "balanced":
            raise ValueError("class_weights = 'balanced' needs the training samples of all clients")
        if not isinstance(self.class_weights, tuple):
            return None
        return torch.tensor(self.class_weights, dtype=outputs.dtype, device=outputs.device)


def balance(targets: NDArray[Any], classes: int) -> tuple[float, ...]:
    """Return the weights N / (C n_c) of the classes that occur, whose mean over the samples is 1; else 1.

    That is scikit-learn's `class_weight="balanced"`, with C the number of classes that occur. Targets below 0 are
    unlabelled.
    """
    counts = np.bincount(targets[targets >= 0].ravel(), minlength=classes)
    there = counts > 0
    weights = np.where(there, counts.sum() / (max(there.sum(), 1) * np.maximum(counts, 1)), 1.0)
    return tuple(float(weight) for weight in weights)
