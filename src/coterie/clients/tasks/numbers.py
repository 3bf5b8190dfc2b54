"""Tasks whose targets are numbers: several yes or no, and any."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss

from coterie.clients.tasks.task import Known, Targets, Task, known_names, mix_logits, task
from coterie.errors import BadInput, count_of

FAR_FROM_1 = 30.0
"""How many times 1, or what part of it, the size of targets is that a note is for."""


@task("multilabel")
@dataclass(frozen=True)
class Multilabel(Task):
    """Each sample has several labels that are there or not; the loss is the mean cross-entropy of each by itself.

    A label that is not known is NaN, or -1 among whole numbers, and counts nowhere.
    """

    probable = True
    numbers = True
    batchable = True
    metrics = ("f1", "auroc", "average_precision")
    measurable = ("accuracy", "balanced_accuracy", "f1", "auroc", "average_precision")

    def read_targets(self, values: NDArray[Any], where: str, notes: list[str], known: Known = None) -> Targets:
        """Read `[N, labels]` of 0 and 1.

        Raises:
            BadInput: they are no targets of this task.
        """
        if values.ndim != 2 or values.dtype.kind not in "biuf":
            raise BadInput(
                f"{where}: label is {values.dtype} {values.shape}; with task.name = 'multilabel' it must be a 0 or "
                "a 1 for each sample and label"
            )
        found = values.astype(np.float32)
        if values.dtype.kind in "if":
            found[found == -1] = np.nan
        wrong = ~(np.isnan(found) | (found == 0) | (found == 1))
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            right = "it must be 0, 1, or -1 for unknown"
            raise BadInput(
                f"{where}: label {column} in row {row} is {values[row, column]}; {right}",
                told=f"label {column} in row {row} is none of these; {right}",
            )
        return Targets(found, check_outputs(found.shape[1], where, known), names=known_names(known))

    def shape(self, features: tuple[int, ...], outputs: int) -> tuple[int, ...]:
        return (outputs,)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        there = ~targets.isnan()
        each = binary_cross_entropy_with_logits(outputs, torch.where(there, targets, 0.0), reduction="none")
        return torch.where(there, each, 0.0).sum(1) / there.sum(1).clamp(min=1)

    def predict(self, outputs: Tensor) -> Tensor:
        return (outputs > 0).to(outputs.dtype)

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def mix(self, outputs: Tensor, shares: Tensor) -> Tensor:
        return mix_logits(outputs, shares)


@task("regression")
@dataclass(frozen=True)
class Regression(Task):
    """Each sample has one number or several; the loss of a sample is the mean over them."""

    loss: Annotated[
        Literal["mse", "huber", "mae"],
        Field(description="the squared error, the absolute one, or the one that is squared up to delta"),
    ] = "mse"
    delta: Annotated[float, Field(gt=0, description="where the Huber loss turns from squared to absolute")] = 1.0
    target_scale: Annotated[
        Literal["auto", "global", "none"] | tuple[tuple[float, ...], tuple[float, ...]],
        Field(
            description="the network learns targets minus their mean, divided by their deviation: global takes "
            "those of all clients' training samples, [[means], [deviations]] gives them, none leaves targets as "
            "they are; auto is global in simulations without privacy"
        ),
    ] = "auto"
    numbers = True
    batchable = True
    metrics: ClassVar[tuple[str, ...]] = ("rmse", "mae", "r2")
    measurable = ("rmse", "mae", "r2")

    def read_targets(self, values: NDArray[Any], where: str, notes: list[str], known: Known = None) -> Targets:
        """Read finite numbers `[N]` or `[N, …]`, as `[N, outputs]`.

        Raises:
            BadInput: they are no targets of this task.
        """
        if values.dtype.kind not in "biuf" or values.ndim < 1:
            raise BadInput(
                f"{where}: labels are not numbers; with task.name = {self.name!r} each must be a number, or several"
            )
        with np.errstate(over="ignore"):
            found = values.reshape(len(values), -1).astype(np.float32)
        bad = ~np.isfinite(found)
        if bad.any():
            row = int(np.argmax(bad.any(1)))
            raise BadInput(
                f"{where}: label in row {row} is {values[row]}; every target must be a finite number",
                told=f"the label in row {row} is not finite; every target must be a finite number",
            )
        outputs = check_outputs(found.shape[1], where, known)
        self._check_scale(outputs)
        return Targets(found, outputs, names=known_names(known))

    def count(self, declared: int) -> tuple[int, int]:
        found = super().count(declared)
        self._check_scale(declared)
        return found

    def _check_scale(self, outputs: int) -> None:
        """Refuse a scale that is none of so many outputs, or that a loss of the task's own would not know of.

        Raises:
            BadInput: it is such a scale.
        """
        if self.target_scale in ("auto", "none"):
            return
        if not self._is_plain():
            raise BadInput(
                f"task.target_scale is not possible with {self.name}, which has a loss or predictions of its own; "
                "leave it out"
            )
        if self.target_scale == "global":
            return
        with np.errstate(over="ignore"):
            means, deviations = (np.array(part, np.float32) for part in self.target_scale)
        finite = bool(np.isfinite(means).all() and np.isfinite(deviations).all())
        if (len(means), len(deviations)) != (outputs, outputs) or not finite or not (deviations > 0).all():
            raise BadInput(
                f"task.target_scale is not possible; it must be [[means], [deviations]] with {outputs} finite "
                f"number{'s' * (outputs > 1)} each, and deviations above 0"
            )

    def _is_plain(self) -> bool:
        """Return whether losses and predictions are those of this class, which know of a scale."""
        return type(self).losses is Regression.losses and type(self).predict is Regression.predict

    def advise(self, targets: NDArray[Any]) -> list[str]:
        """Return a note where targets `[N, …]` are so large or small that usual learning rates do not fit them."""
        size = float(np.sqrt(np.square(targets, dtype=np.float64).mean())) if targets.size else 1.0
        scaled = self.target_scale not in ("auto", "none")
        if scaled or not self._is_plain() or 1 / FAR_FROM_1 <= size <= FAR_FROM_1 or not size:
            return []
        return [
            f"the targets have a root mean square of {size:,.4g}, and usual learning rates suit one of about 1; "
            f"--set task.name={self.name} --set task.target_scale=global lets the network learn standardised "
            "targets"
        ]

    def fit(self, targets: NDArray[Any], outputs: int) -> Self:
        """Return the task with mean and deviation of the training targets `[N, outputs]`, if these are wanted."""
        if self.target_scale != "global" and not (self.target_scale == "auto" and self._is_plain()):
            return self
        self._check_scale(outputs)
        values = targets.astype(np.float64)
        deviation = values.std(0)
        deviation[deviation == 0] = 1.0
        scale = (tuple(values.mean(0).tolist()), tuple(deviation.tolist()))
        return replace(self, target_scale=scale).with_metrics(self.metrics)

    def unfitted(self) -> Self:
        if self.target_scale != "auto":
            return self
        return replace(self, target_scale="none").with_metrics(self.metrics)

    def in_own_units(self, outputs: Tensor) -> Tensor:
        if (scale := self._scale(outputs)) is None:
            return outputs
        mean, deviation = scale
        return (outputs.flatten(1) * deviation + mean).reshape(outputs.shape)

    def _scale(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return mean and deviation of the targets `[outputs]`; None where they stay as they are.

        Raises:
            ValueError: nobody has computed them.
        """
        if self.target_scale == "global":
            raise ValueError("target_scale = 'global' needs the training samples of all clients")
        if not isinstance(self.target_scale, tuple):
            return None
        mean, deviation = (torch.tensor(part, dtype=like.dtype, device=like.device) for part in self.target_scale)
        return mean, deviation

    def shape(self, features: tuple[int, ...], outputs: int) -> tuple[int, ...]:
        return (outputs,)  # or any other of as many numbers, such as steps x channels

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # Like the targets, whatever shape the values of a sample have in the network.
        if (scale := self._scale(targets)) is not None:
            mean, deviation = scale
            targets = (targets - mean) / deviation
        away = outputs.flatten(1) - targets
        if self.loss == "huber":
            return huber_loss(away, torch.zeros_like(away), reduction="none", delta=self.delta).mean(1)
        return (away.abs() if self.loss == "mae" else away.square()).mean(1)

    def predict(self, outputs: Tensor) -> Tensor:
        return self.in_own_units(outputs).flatten(1)


@task("forecasting")
@dataclass(frozen=True)
class Forecasting(Regression):
    """Each sample is a stretch of a signal, and its target the values that follow, of one channel or several."""

    metrics = ("rmse", "mae")


def check_outputs(count: int, where: str, known: Known) -> int:
    """Return how many outputs there are, which must be as many as are known.

    Raises:
        BadInput: there are others.
    """
    wanted = count if known is None else known if isinstance(known, int) else len(known)
    if count != wanted or count < 1:
        raise BadInput(f"{where}: a sample has {count_of(count, 'target')}; it must have {max(wanted, 1)}")
    return count
