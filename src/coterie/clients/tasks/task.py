"""What a task is: it reads targets, and says what is minimised, what is predicted and what is measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from coterie.catalogue import Catalog
from coterie.errors import BadInput

TASKS: Catalog = Catalog("task", group="coterie.tasks", must_be="coterie.clients.tasks.task:Task")
"""Every task by name: frozen dataclasses with plain settings."""


Known = Sequence[str] | int | None
"""How many classes or outputs there are, or what they are called; None where that is not known."""


@dataclass(frozen=True, eq=False)
class Targets:
    """The targets of all samples, as the loss takes them.

    Attributes:
        values: `[N, *shape]`, int64 for classes and tokens, float32 for numbers.
        outputs: how many numbers a network gives for each prediction; the `classes` that it is built with.
        classes: how many classes there are, in 0 … classes - 1; 0 where a sample is not of one class.
        names: what classes or outputs are called; None where they are called by their number.
    """

    values: NDArray[Any]
    outputs: int
    classes: int = 0
    names: tuple[str, ...] | None = None


class Task(ABC):
    """What is learnt. A frozen dataclass with plain settings, registered in `TASKS` by `task`.

    It is sent to worker processes, so its class must be importable there.
    """

    name: ClassVar[str]
    """Its name in `TASKS`, which `task` gives it."""
    distributes: ClassVar[bool] = False
    """Whether an output is a distribution over classes, which methods that compare outputs need."""
    one_class: ClassVar[bool] = False
    """Whether each sample is of one class, so that -1 among its labels is none."""
    of_classes: ClassVar[bool] = False
    """Whether each sample is of one class, and a network gives an output for each."""
    probable: ClassVar[bool] = False
    """Whether the outputs are logits, whose `scores` are the probabilities of classes or labels."""
    numbers: ClassVar[bool] = False
    """Whether a target is a row of numbers, one for each output; NaN is an unknown one."""
    tokens: ClassVar[bool] = False
    """Whether samples are tokens, which stay integers on their way to the network."""
    batchable: ClassVar[bool] = False
    """Whether `losses` can be computed for many models at once by `torch.func.vmap`: it branches on no value."""
    metrics: ClassVar[tuple[str, ...]] = ()
    """What is measured, by the names in `MEASURES`; the first one decides."""
    measurable: ClassVar[tuple[str, ...]] = ()
    """The metrics that mean something for it; all, where there are none."""

    @abstractmethod
    def read_targets(self, values: NDArray[Any], where: str, notes: list[str], known: Known = None) -> Targets:
        """Check and convert the raw targets of all samples.

        Args:
            values: as they were read, `[N, …]`.
            where: what to call their place in a message.
            notes: sentences about what was changed are added here.
            known: how many outputs or classes there are, or what they are called, where these are but some of all
                samples; without it, these say.

        Raises:
            BadInput: they are no targets of this task.
        """

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample `[B]`, differentiable, of outputs `[B, …]` and targets `[B, *shape]`."""

    def mean_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of `losses` over outputs `[B, …]`, one number."""
        return self.losses(outputs, targets).mean()

    def total_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of `losses` over outputs `[B, …]`, one number."""
        return self.losses(outputs, targets).sum()

    @abstractmethod
    def predict(self, outputs: Tensor) -> Tensor:
        """Return what outputs `[B, …]` predict, in the form of the targets, `[B, *shape]`."""

    def distributions(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the distribution over classes that each output stands for, `[B, distribution_size]`.

        Raises:
            TypeError: the outputs are no distributions (`distributes`).
        """
        raise TypeError(f"the outputs of {self.name} are no distributions over classes")

    def mix(self, outputs: Tensor, shares: Tensor) -> Tensor:
        """Return the outputs `[B, …]` of a mixture of K models, from the outputs of each `[K, B, …]`.

        Where outputs are logits, probabilities are mixed; else the outputs.

        Args:
            outputs: of each model.
            shares: `[K]`; they sum to 1.
        """
        return torch.einsum("k,k...->...", shares.to(outputs.dtype), outputs)

    def distribution_size(self, outputs: int) -> int:
        """Return over how many classes a distribution is, where a network gives so many outputs."""
        return outputs

    def shape(self, features: tuple[int, ...], outputs: int) -> tuple[int, ...] | None:
        """Return the shape of what a network must give for one sample; None where any will do.

        Args:
            features: shape of a stored sample.
            outputs: how many numbers are a prediction.
        """
        return None

    def count(self, declared: int) -> tuple[int, int]:
        """Return how many classes and outputs there are where data are said to have so many (`data.classes`).

        The classes are 0 where a sample is not of one.

        Raises:
            BadInput: there cannot be so many.
        """
        least, what = (2, "two classes") if self.distributes else (1, "one output")
        if declared < least:
            raise BadInput(
                f"data.classes says {declared}, which is not possible with {self.name}; "
                f"there must be at least {what}"
            )
        return (declared if self.of_classes else 0), declared

    def fit(self, targets: NDArray[Any], outputs: int) -> Task:
        """Return the task with what it takes from the training targets of all clients of a simulation.

        Args:
            targets: of all training samples, `[N, …]`, as `read_targets` gave them.
            outputs: how many numbers a network gives.
        """
        return self

    def unfitted(self) -> Task:
        """Return the task that takes nothing from targets of its own accord, as a promise of privacy needs it."""
        return self

    def advise(self, targets: NDArray[Any]) -> list[str]:
        """Return notes on the training targets `[N, …]` of a simulation's clients, once it is fitted to them."""
        return []

    def in_own_units(self, outputs: Tensor) -> Tensor:
        """Return outputs `[B, …]` in the units of the targets, where a network gives them in others."""
        return outputs

    def with_metrics(self, metrics: Sequence[str]) -> Self:
        """Return the same task, measured by these metrics."""
        found = copy(self)
        object.__setattr__(found, "metrics", tuple(metrics))
        return found

    @property
    def plain(self) -> bool:
        """Whether the loss is the mean cross-entropy of logits, for which engines have gradients written out."""
        return False

    def scores(self, outputs: Tensor) -> Tensor:
        """Return what metrics that take a `score` are computed of, `[B, …]`; by itself, what is predicted."""
        return self.predict(outputs)


def known_names(known: Known) -> tuple[str, ...] | None:
    """Return what classes or outputs are called, where they have names."""
    return None if known is None or isinstance(known, int) else tuple(known)


def mix_logs(logs: Tensor, shares: Tensor) -> Tensor:
    """Return the logarithm `[…]` of a mixture of probabilities, from their logarithms `[K, …]` and shares `[K]`."""
    return (logs + shares.log().view(-1, *[1] * (logs.dim() - 1))).logsumexp(0)


def mix_logits(logits: Tensor, shares: Tensor) -> Tensor:
    """Return the logits `[…]` of a mixture of probabilities of yes, from their logits `[K, …]` and shares `[K]`."""
    return mix_logs(logsigmoid(logits), shares) - mix_logs(logsigmoid(-logits), shares)


def task(name: str) -> Callable[[type[Task]], type[Task]]:
    """Class decorator: register a task under `name`."""

    def register(cls: type[Task]) -> type[Task]:
        cls.name = name
        return TASKS.add(name)(cls)

    return register
