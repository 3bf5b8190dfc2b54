"""What a rule may ask of an engine: training on an objective, losses, gradients, scores, a look at the inputs.

A rule is written for one client and yields these requests; an engine answers them, one client after another
or the same request of many clients in one kernel. That is why a rule contains no loop over batches.

The list is open. A new local loss is an `Objective` for `Train`; a local algorithm that does not minimise a loss is
a `Request` of its own with the algorithm in `run` (see `MetaTrain`). Neither touches an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import Batch, Samples, minibatch_ranges
from coterie.clients.rules.objective import LocalModel, Objective
from coterie.clients.rules.training import Training
from coterie.models.layout import Layout, Part

Split = Literal["train", "validation", "test"]


class LocalNetwork(Protocol):
    """The engine's network, whose parameters and buffers are views of one flat vector, for `Request.run`."""

    layout: Layout
    vector: Tensor
    """`[P]`; writing it writes the network."""

    def load_for_training(self, model: Tensor, client: Client, purpose: str) -> None:
        """Load `model` `[P]`; what is random in the network belongs to client, round and purpose."""

    def minibatches(self, data: Samples, rng: np.random.Generator, size: int) -> Iterator[Batch]:
        """The minibatches of an epoch, in the order of a fresh permutation."""

    def gradient(self, x: Tensor, y: Tensor, into: Tensor, exact: bool = False) -> Tensor:
        """Write the gradient of the task's mean loss into `into` `[P]`, buffers aside; return the loss."""


class Request:
    """What a rule asks of an engine for one client. A frozen dataclass."""

    def run(self, network: LocalNetwork, samples: Samples, client: Client) -> Any:
        """Answer it with the client's training samples, where no engine has a way of its own.

        Raises:
            TypeError: neither an engine nor the request says how.
        """
        raise TypeError(f"{type(self).__name__} does not say how it is answered")

    def backpropagated(self, count: int, training: Training, keep_single: bool) -> int:
        """Training samples that go backwards through the network for it, each time that they do.

        Args:
            count: the client's training samples.
            training: the local solver's settings.
            keep_single: whether a minibatch of one sample is trained on.
        """
        return 0


@dataclass(frozen=True, eq=False)
class Train(Request):
    """Local training from `start` `[P]`; answered by `Trained`.

    The direction of a step is `grad F_i(w) + pull (w - anchor) + linear`, restricted to `part`. A pull of 0 and
    no linear term leave the very arithmetic of plain SGD. `anchor` is `start` unless given, and `lr` that of the
    round. Where lr times the pull is above 1, SGD takes the pull implicitly, which is stable for any strength:
    after the step along the rest, `w <- anchor + (w - anchor) / (1 + lr pull)`.

    `solver` is what the local solver remembered when an earlier training ended (`Trained.solver`, a vector
    `[solver_size]`, see `training`); without it, the solver starts afresh. With `keep_solver` the answer holds what
    it remembers now. Outside `part` its memory stays as it was; Adam counts the steps of all parts together.

    Attributes:
        objective: F_i on a minibatch; the task's mean loss without one.
        extras: tensors by name that the objective uses beside the model, and that stay as they are.
        trained_extras: tensors by name that are trained with the model, by the same solver and whatever the `part`.
            Neither the pull nor the linear term concerns them, and their solver starts afresh.
        weights: `[s]`, one for each of the client's training samples in the order in which they are stored. A
            loss is multiplied by the sample's weight, and the sum divided by the size of the minibatch.
        clip: limit of the norm of a minibatch's gradient over all that is trained; 0 is no limit.
        minibatches: how many are met in all, in place of `epochs`; after the last of an epoch another one begins.
        plain: whether the steps are those of SGD without momentum, whatever solver the training has.

    Raises:
        ValueError: the solver's memory or the weights are of another size.
    """

    start: Tensor
    pull: float = 0.0
    anchor: Tensor | None = None
    linear: Tensor | None = None
    part: Part | None = None
    epochs: int | None = None
    purpose: str = "batches"
    """Of the stream that orders the minibatches."""
    lr: float | None = None
    solver: Tensor | None = None
    keep_solver: bool = False
    objective: Objective | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    trained_extras: Mapping[str, Tensor] = field(default_factory=dict)
    weights: Tensor | None = None
    clip: float = 0.0
    minibatches: int | None = None
    plain: bool = False

    def backpropagated(self, count: int, training: Training, keep_single: bool) -> int:
        sizes = [b - a for a, b in minibatch_ranges(count, training.batch_size, keep_single)]
        if self.minibatches is not None and sizes:
            whole, more = divmod(self.minibatches, len(sizes))
            return whole * sum(sizes) + sum(sizes[:more])
        epochs = training.epochs if self.epochs is None else self.epochs
        return epochs * sum(sizes)


@dataclass(frozen=True, eq=False)
class Trained:
    """`model` `[P]` after training and the mean training loss over the last epoch's minibatches.

    Attributes:
        model: as it is now.
        loss: what the objective reports; NaN where no minibatch was met.
        solver: `[solver_size]`, where it was asked for. For SGD with momentum it is the velocity, for Adam the
            first moments, the second ones and the number of steps; SGD without momentum remembers nothing, `[0]`.
        extras: the trained extras as they are now.
        summary: what the objective made of what it observed in the last epoch (`Objective.summarise`).
    """

    model: Tensor
    loss: float
    solver: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    summary: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Losses(Request):
    """Mean loss of every row of `models` `[K, P]` on own data, dropout off; answered by a tensor `[K]`.

    `samples` limits it to that many fresh samples, drawn from the stream `purpose`.
    """

    models: Tensor
    split: Split = "train"
    """Which of the client's samples: training, validation or test."""
    samples: int | None = None
    purpose: str = "losses"


@dataclass(frozen=True, eq=False)
class Gradients(Request):
    """Minibatch gradients at `model` `[P]`, without a step; answered by a tensor `[Q, P]` (0 in buffers).

    Minibatches are of `size` samples, without it of training's batch size. `batches` limits Q; with `full`, one
    gradient over all the client's training samples.
    """

    model: Tensor
    batches: int | None = None
    size: int | None = None
    full: bool = False
    purpose: str = "gradients"
    """Of the stream that draws the minibatches."""

    def backpropagated(self, count: int, training: Training, keep_single: bool) -> int:
        size = max(count, 1) if self.full else self.size or training.batch_size
        return sum(b - a for a, b in minibatch_ranges(count, size, keep_single)[: self.batches])


@dataclass(frozen=True, eq=False)
class Score(Request):
    """How well `model` `[P]` does on own data, dropout off; answered by `Scored`.

    A network with stochastic features predicts by their means; with `draws`, by the mean of the logits of so many
    draws of them. With `shares` `[K]` the model is `[K, P]`, and the mixture of what the K predict is scored
    (`Task.mix`). With a `memory`, what it makes of the client's training samples and the model gives the outputs
    `[B, …]` of inputs that are scored.

    Raises:
        ValueError: `draws` is above 0, and the network has no Gaussian features.
    """

    model: Tensor
    split: Split = "test"
    """Which of the client's samples: training, validation or test."""
    draws: int = 0
    shares: Tensor | None = None
    memory: Callable[[Batch, LocalModel], Callable[[Tensor], Tensor]] | None = None


@dataclass(frozen=True, eq=False)
class Scored:
    """How well a model does on a client's samples of a split.

    Attributes:
        loss: the task's, its mean over the samples.
        actual: how many samples of each class there are, `[C]`; of no class, `[0]`, where a sample is not of one.
        predicted: how many were taken for each class.
        correct: how many rightly.
        samples: how many there are; those of all classes unless given.
        values: the task's metrics by name, but for those that the counts say (`measures.COUNTED`).
    """

    loss: float
    actual: NDArray[np.int64]
    predicted: NDArray[np.int64]
    correct: NDArray[np.int64]
    samples: int = field(default=-1, kw_only=True)
    values: Mapping[str, float] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if self.samples < 0:
            object.__setattr__(self, "samples", int(self.actual.sum()))

    def __reduce__(self) -> tuple[Callable[..., Scored], tuple[Any, ...]]:
        """Pickle the counts as bytes: there is one score a client, and arrays take several times as long."""
        counts = (np.asarray(v, np.int64).tobytes() for v in (self.actual, self.predicted, self.correct))
        return _scored, (self.loss, *counts, self.samples, *([dict(self.values)] if self.values else []))


def _scored(
    loss: float,
    actual: bytes,
    predicted: bytes,
    correct: bytes,
    samples: int,
    values: Mapping[str, float] | None = None,
) -> Scored:
    counts = (np.frombuffer(content, np.int64) for content in (actual, predicted, correct))
    return Scored(loss, *counts, samples=samples, values=values or {})


@dataclass(frozen=True, eq=False)
class Inspect(Request):
    """What `function` makes of the client's own samples of a split; answered by what it returns, a tensor.

    The function sees all samples as one `Batch`, and a `LocalModel` of `model` `[P]` (dropout off) where one is
    given, of which it may want the `features`: their mean for each class, say, or the subspace that they span.
    """

    function: Callable[[Batch, LocalModel | None], Tensor]
    split: Split = "train"
    model: Tensor | None = None


Result = Trained | Scored | Tensor
"""What answers the requests above."""
