"""Classification: every sample is of one class, of many or of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from coterie.clients.tasks.task import Known, Targets, known_names, mix_logits, mix_logs, task
from coterie.clients.tasks.weights import WeightedTask
from coterie.errors import BadInput, shorten


@task("classification")
@dataclass(frozen=True)
class Classification(WeightedTask):
    """Each sample is of one class; the loss is the cross-entropy of the logits.

    With weights, a sample's loss is multiplied by that of its class; the mean is over samples, not over weights.
    """

    label_smoothing: Annotated[
        float, Field(ge=0, lt=1, description="share of a target that is spread over all classes")
    ] = 0.0
    distributes = True
    one_class = True
    of_classes = True
    probable = True
    batchable = True
    metrics = ("accuracy", "f1")
    measurable = ("accuracy", "balanced_accuracy", "f1", "auroc", "average_precision")

    def read_targets(self, values: NDArray[Any], where: str, notes: list[str], known: Known = None) -> Targets:
        """Number the classes `[N]`: those that are known by name, others in sorted order (see `notes`)."""
        return self.check_weights(read_classes(values, where, notes, known))

    def shape(self, features: tuple[int, ...], outputs: int) -> tuple[int, ...]:
        return (outputs,)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weights = self.weights_of(outputs)
        return cross_entropy(outputs, targets, weights, reduction="none", label_smoothing=self.label_smoothing)

    def mean_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) if self.plain else self.losses(outputs, targets).mean()

    def total_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.plain:
            return cross_entropy(outputs, targets, reduction="sum")
        return self.losses(outputs, targets).sum()

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def distributions(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        return (outputs / temperature).softmax(1)

    def mix(self, outputs: Tensor, shares: Tensor) -> Tensor:
        return mix_logs(outputs.log_softmax(2), shares)

    @property
    def plain(self) -> bool:
        return self.class_weights == "none" and not self.label_smoothing

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(1)


CLASSIFICATION = Classification()
"""What data with labels are for, unless something else is said."""


@task("binary")
@dataclass(frozen=True)
class Binary(WeightedTask):
    """Each sample is of one of two classes; a network gives one logit, that of the second class."""

    distributes = True
    one_class = True
    probable = True
    batchable = True
    metrics = ("auroc", "average_precision", "accuracy", "f1")
    measurable = ("accuracy", "balanced_accuracy", "f1", "auroc", "average_precision")

    def read_targets(self, values: NDArray[Any], where: str, notes: list[str], known: Known = None) -> Targets:
        """Number the two classes `[N]`, in sorted order where their names are not known.

        Raises:
            BadInput: they are no targets of this task.
        """
        found = read_classes(values, where, notes, 2 if known == 1 else known)
        if found.classes != 2:
            there = "is 1 class" if found.classes == 1 else f"are {found.classes} classes"
            raise BadInput(f"{where}: there {there}; task.name = 'binary' needs two")
        return self.check_weights(replace(found, outputs=1))

    def shape(self, features: tuple[int, ...], outputs: int) -> tuple[int, ...]:
        return (outputs,)

    def count(self, declared: int) -> tuple[int, int]:
        """Return two classes and one output.

        Raises:
            BadInput: other than two classes are declared.
        """
        if declared != 2:
            raise BadInput(f"data.classes says {declared}, which is not possible with binary; it must be 2")
        return 2, 1

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weights = self.weights_of(outputs)
        each = binary_cross_entropy_with_logits(outputs.squeeze(1), targets.to(outputs.dtype), reduction="none")
        return each if weights is None else each * weights[targets]

    def predict(self, outputs: Tensor) -> Tensor:
        return (outputs.squeeze(1) > 0).long()

    def distributions(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        yes = (outputs / temperature).sigmoid()
        return torch.cat([1 - yes, yes], 1)

    def distribution_size(self, outputs: int) -> int:
        return 2

    def mix(self, outputs: Tensor, shares: Tensor) -> Tensor:
        return mix_logits(outputs, shares)

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(1).sigmoid()


def read_classes(values: NDArray[Any], where: str, notes: list[str], known: Known = None) -> Targets:
    """Return labels as numbers of classes: those that are known by name, others in sorted order.

    Raises:
        BadInput: they are no labels, all the same, or one is of no known class.
    """
    if known is not None:
        called = tuple(map(str, range(known))) if isinstance(known, int) else tuple(known)
        return Targets(number_known_classes(values, where, called), len(called), len(called), known_names(known))
    labels = plain_labels(values, where)
    found, numbers = np.unique(labels, return_inverse=True)
    if len(found) < 2:
        raise BadInput(f"{where}: all labels are {found[0]}; there must be at least two classes")
    names = None
    if not are_numbers(found):
        shown = ", ".join(f"{value} is {number}" for number, value in enumerate(found[:10]))
        notes.append(f"labels were numbered in sorted order: {shown}{', …' if len(found) > 10 else ''}")
        names = tuple(str(value) for value in found)
    return Targets(numbers.astype(np.int64), len(found), len(found), names)


def plain_labels(values: NDArray[Any], where: str) -> NDArray[Any]:
    """Labels as integers or strings `[N]`; truth values are called True and False.

    Raises:
        BadInput: they are something else.
    """
    if values.ndim != 1:
        wide = values.ndim == 2 and values.shape[1] > 1
        several = "; several targets need task.name = 'multilabel' or 'regression'" if wide else ""
        raise BadInput(f"{where}: label has shape {values.shape}; it needs one entry per sample{several}")
    labels = values.astype(str) if values.dtype.kind in "OSb" else values
    if labels.dtype.kind == "f":
        whole = is_whole(labels)
        if not whole.all():
            row = int(np.argmin(whole))
            raise BadInput(
                f"{where}: label in row {row} is {labels[row]}; labels must be integers or strings",
                told=f"the label in row {row} is neither; labels must be integers or strings",
            )
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "biuU":
        raise BadInput(f"{where}: labels are of type {labels.dtype}; labels must be integers or strings")
    return labels


def is_whole(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which floats are integers, of those up to 2^53: beyond, floats skip some."""
    whole: NDArray[np.bool_] = (np.abs(values) <= 2**53) & (values == np.floor(values))
    return whole


def number_known_classes(values: NDArray[Any], where: str, names: Sequence[str]) -> NDArray[np.int64]:
    """Labels as numbers of the classes called `names`, in their order.

    Raises:
        BadInput: the labels are neither integers nor strings, or one of them is no name of a class.
    """
    if values.dtype.kind == "b" and "True" not in names:
        values = values.astype(np.int64)
    labels = plain_labels(values, where)
    values, which = np.unique(labels, return_inverse=True)
    numbers = {name: number for number, name in enumerate(names)}
    found = np.array([numbers.get(str(value), -1) for value in values], np.int64)[which]
    if (found < 0).any():
        row = int(np.argmax(found < 0))
        known = shorten(names)
        raise BadInput(
            f"{where}: label in row {row} is {labels[row]}; the classes are {known}",
            told=f"the label in row {row} is none of the classes; the classes are {known}",
        )
    return found


def are_numbers(values: NDArray[Any]) -> bool:
    """Whether sorted labels are 0, 1, … already."""
    return values.dtype.kind in "biu" and np.array_equal(values, np.arange(len(values)))
