"""Tasks with a class at every place of a sample: the pixels of an image, the tokens of a text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.clients.tasks.task import Known, Targets, Task, known_names, mix_logs, task
from coterie.clients.tasks.weights import WeightedTask
from coterie.errors import BadInput

UNLABELLED = -1
"""The target of a place that counts nowhere."""


@task("segmentation")
@dataclass(frozen=True)
class Segmentation(WeightedTask):
    """Each pixel of an image is of one class, or unlabelled (-1); the loss of an image is the mean over its pixels.

    A network gives `[B, classes, height, width]`; targets are `[N, height, width]`.
    """

    distributes = True
    batchable = True
    metrics = ("iou", "accuracy")
    measurable = ("iou", "accuracy", "balanced_accuracy", "f1")

    def read_targets(self, values: NDArray[Any], where: str, notes: list[str], known: Known = None) -> Targets:
        """Read the classes 0, 1, … of pixels `[N, height, width]`, -1 where there is none."""
        values = values[..., 0] if values.ndim == 4 and values.shape[-1] == 1 else values
        return self.check_weights(read_places(values, 3, where, "segmentation", "pixel", known))

    def shape(self, features: tuple[int, ...], outputs: int) -> tuple[int, ...]:
        return (outputs, *features[:2])

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mean_over_places(outputs, targets, self.weights_of(outputs))

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def distributions(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        """The mean over the pixels of an image, `[B, classes]`: how much of it is taken for each class."""
        return (outputs / temperature).softmax(1).flatten(2).mean(2)

    def mix(self, outputs: Tensor, shares: Tensor) -> Tensor:
        return mix_logs(outputs.log_softmax(2), shares)


@task("language")
@dataclass(frozen=True)
class Language(Task):
    """Each sample is a text of tokens, and the target at every place the next one; the loss is the mean over them.

    A network takes `[B, T]` tokens, or `[B, 2, T]` with a mask, and gives `[B, T, vocabulary]`; targets are
    `[N, T]`, and what is padded is -1.
    """

    padding: Annotated[
        int | None, Field(ge=0, description="a token that pads texts, which is no target; without it, -1 alone")
    ] = None
    distributes = True
    tokens = True
    batchable = True
    metrics = ("perplexity", "accuracy")
    measurable = ("perplexity", "accuracy")

    def read_targets(self, values: NDArray[Any], where: str, notes: list[str], known: Known = None) -> Targets:
        """Read the next tokens 0, 1, … `[N, length]`, -1 where a text has ended."""
        found = read_places(values, 2, where, "language", "place of a text", known)
        if self.padding is None:
            return found
        return replace(found, values=np.where(found.values == self.padding, UNLABELLED, found.values))

    def shape(self, features: tuple[int, ...], outputs: int) -> tuple[int, ...]:
        return (features[-1], outputs)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mean_over_places(outputs.transpose(1, 2), targets)

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(2)

    def distributions(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        """The mean over the places of a text, `[B, tokens]`: how often each token is expected."""
        return (outputs / temperature).softmax(2).mean(1)

    def mix(self, outputs: Tensor, shares: Tensor) -> Tensor:
        return mix_logs(outputs.log_softmax(3), shares)

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs


def read_places(values: NDArray[Any], axes: int, where: str, name: str, place: str, known: Known) -> Targets:
    """Return the classes of all places, of which there are as many as are known, or as the highest says.

    Raises:
        BadInput: they are no whole numbers from -1 on, or above those that are known.
    """
    if values.ndim != axes or values.dtype.kind not in "biuf":
        raise BadInput(
            f"{where}: label is {values.dtype} {values.shape}; with task.name = {name!r} it must be a whole number "
            f"for every {place}"
        )
    with np.errstate(invalid="ignore"):  # what does not fit is another number then
        found = values.astype(np.int64)
    if not np.array_equal(found, values) or found.min(initial=0) < UNLABELLED:
        raise BadInput(f"{where}: label must hold whole numbers from 0 on, or -1 where there is none")
    highest = int(found.max(initial=UNLABELLED))
    count = highest + 1 if known is None else known if isinstance(known, int) else len(known)
    if highest >= count:
        raise BadInput(f"{where}: label holds {highest}; it must be below {count}")
    if count < 2:
        raise BadInput(f"{where}: label holds nothing above {highest}; there must be at least two classes")
    return Targets(found, count, names=known_names(known))


def mean_over_places(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy `[B]` over the labelled places of `[B, C, …]`; 0 where a sample has none."""
    each = cross_entropy(outputs, targets, weights, ignore_index=UNLABELLED, reduction="none").flatten(1)
    return each.sum(1) / (targets != UNLABELLED).flatten(1).sum(1).clamp(min=1)
