"""Per-FedAvg at the client: training of a model that is good after one more step (docs/methods/per-fedavg.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import Batch, Samples, minibatch_ranges
from coterie.clients.rules.requests import LocalNetwork, Request, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.clients.rules.training import Training

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class MetaTrain(Request):
    """Training of a model that is good after one more step; answered by `Trained`.

    The minibatches of an epoch are taken in pairs (b0, b1), or in triples where `second_order` is set. With
    `w' = w - alpha grad F(w; b0)` and `g = grad F(w'; b1)` a step is `w <- w - beta g`; of second order,
    `g - alpha [grad F(w + delta g; b2) - grad F(w - delta g; b2)] / (2 delta)` stands for g, which approximates the
    product with the Hessian. Minibatches left over are left out; a client with too few for one group meets its last
    one again. The steps are plain: neither momentum nor Adam, but weight decay is in every gradient.

    The answer's loss is that of w' on b1. With `alpha` 0 this is plain SGD with step `beta` on every b1.

    It is no `Objective`: a step needs gradients at several points on several minibatches.
    """

    start: Tensor
    """The model `[P]` that it begins with."""
    alpha: float
    beta: float
    second_order: bool = False
    delta: float = 1e-3
    epochs: int | None = None
    """Passes over the data; those of the training unless given."""
    purpose: str = "batches"
    """Of the stream that orders the minibatches."""

    def run(self, network: LocalNetwork, samples: Samples, client: Client) -> Trained:
        """Step along g, or of second order along g without alpha times the product of the Hessian with g."""
        network.load_for_training(self.start, client, self.purpose)
        rng, training = client.stream(self.purpose), client.training
        decay = training.weight_decay
        w = network.layout.trainable.take(self.start).clone()
        loss = float("nan")
        for _ in range(self._epochs(training)):
            total, seen = w.new_zeros(()), 0
            epoch = list(network.minibatches(samples, rng, training.batch_size))
            for b0, b1, *rest in group_minibatches(epoch, self._group):
                inner, _ = gradient_at(network, w, b0, decay)
                g, cost = gradient_at(network, w - self.alpha * inner, b1, decay, leave_mark=True)
                for b2 in rest:
                    g = g - self.alpha * _hessian_product(network, w, g, self.delta, b2, decay)
                w = w.add(g, alpha=-self.beta)
                total += cost * len(b1.labels)
                seen += len(b1.labels)
            loss = float(total) / seen if seen else float("nan")
        return Trained(network.layout.trainable.put(network.vector.clone(), w), loss)

    def backpropagated(self, count: int, training: Training, keep_single: bool) -> int:
        groups = group_minibatches(minibatch_ranges(count, training.batch_size, keep_single), self._group)
        # The third minibatch of a group is met on either side of the model.
        ranges = [r for group in groups for r in (*group, *group[2:])]
        return self._epochs(training) * sum(b - a for a, b in ranges)

    @property
    def _group(self) -> int:
        return 3 if self.second_order else 2

    def _epochs(self, training: Training) -> int:
        return training.epochs if self.epochs is None else self.epochs


@rule("meta-update")
@dataclass(frozen=True)
class MetaUpdate(Rule):
    """Take the steps of Per-FedAvg from the received `model` and send the result back (see `MetaTrain`).

    Either step size is the round's learning rate where it is not given.
    """

    alpha: Annotated[float | None, Field(ge=0, description="size of the step that is looked ahead")] = None
    beta: Annotated[float | None, Field(ge=0, description="size of the step that is taken")] = None
    order: Annotated[
        Literal["first", "hf"], Field(description="gradients alone, or an estimate of curvature too")
    ] = "first"
    delta: Annotated[float, Field(gt=0, description="how far that estimate looks along a gradient")] = 1e-3
    uploads = ("model",)

    def run(self, client: Client, order: Order) -> Work:
        """One local update."""
        lr = client.training.lr_at(client.round)
        trained: Trained = yield MetaTrain(
            order.items["model"].values,
            alpha=lr if self.alpha is None else self.alpha,
            beta=lr if self.beta is None else self.beta,
            second_order=self.order == "hf",
            delta=self.delta,
        )
        return Answer({"model": trained.model}, report={"train_loss": trained.loss})


def group_minibatches(items: Sequence[T], size: int) -> list[list[T]]:
    """Runs of `size` items; what is left over is left out, but too few items for one run end in the last again."""
    if 0 < len(items) < size:
        return [[*items, *[items[-1]] * (size - len(items))]]
    return [list(items[a : a + size]) for a in range(0, len(items) - size + 1, size)]


def _hessian_product(
    network: LocalNetwork, w: Tensor, g: Tensor, delta: float, batch: Batch, decay: float
) -> Tensor:
    """The product of the Hessian at `w` with `g`, by a central difference of gradients."""
    # Other units dropped on the other side would be taken for curvature, 1 / delta times.
    with torch.random.fork_rng(devices=[w.device] if w.is_cuda else []):
        ahead, _ = gradient_at(network, w + delta * g, batch, decay, exact=True)
    behind, _ = gradient_at(network, w - delta * g, batch, decay, exact=True)
    return (ahead - behind) / (2 * delta)


def gradient_at(
    network: LocalNetwork, w: Tensor, batch: Batch, decay: float, leave_mark: bool = False, exact: bool = False
) -> tuple[Tensor, Tensor]:
    """Gradient at the trainable vector `w` and the loss there; buffers change only where it leaves its mark.

    With `exact` it is computed in float32 whatever the precision: a difference of two that lie close together is
    lost in bfloat16.
    """
    trainable = network.layout.trainable
    before = network.vector.clone()
    trainable.put(network.vector, w)
    found = torch.zeros_like(network.vector)
    loss = network.gradient(batch.inputs, batch.labels, into=found, exact=exact)
    if not leave_mark:
        network.vector.copy_(before)
    gradient = trainable.take(found)
    return (gradient.add(w, alpha=decay) if decay else gradient), loss
