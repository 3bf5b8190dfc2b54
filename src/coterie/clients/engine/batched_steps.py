"""Descent of many clients in step: what they train on, and how a step is taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.engine.minibatches import Blocks, Pool
from coterie.clients.engine.perceptron import Perceptron, round_up
from coterie.clients.engine.perceptron_steps import Layer, join_layers, split_layers, step_layers
from coterie.clients.engine.solver import overshoots
from coterie.clients.engine.stacked import Backward, Stacked
from coterie.clients.rules.minibatch import LINE, Samples
from coterie.clients.rules.requests import Train
from coterie.clients.rules.training import Training
from coterie.models.layout import Entry, Layout, Part


@dataclass(frozen=True, eq=False)
class Descent:
    """Some epochs that several clients train for together; those with the most samples first."""

    clients: Sequence[int]
    held: Sequence[Samples]
    stack: Tensor
    """The models that are trained, a row each, in place."""
    blocks: Blocks
    orders: Sequence[Sequence[NDArray[np.int64]]]
    """For every epoch, each client's samples in the order in which it meets them."""
    entries: Sequence[Entry]
    """The tensors that move."""
    lr: float
    weights: Sequence[Tensor] | None = None
    """Each client's weights of its samples."""
    kept: float = 1.0
    """What a step leaves of the way that a model has gone, before it goes on."""

    @cached_property
    def shares(self) -> Tensor:
        """The weight of each sample in the mean over its minibatch, `[n, steps, width]`."""
        return self.blocks.weights / self.blocks.sizes.clamp(min=1)[:, :, None]

    def shares_of(self, order: Sequence[NDArray[np.int64]]) -> Tensor:
        """The shares in the order of an epoch, multiplied by the samples' weights where there are any."""
        if self.weights is None:
            return self.shares
        places = torch.from_numpy(self.blocks.places(order)).to(self.shares.device)
        rows = [
            w[each] if len(w) else w.new_zeros(each.shape) for w, each in zip(self.weights, places, strict=True)
        ]
        return self.shares * torch.stack(rows)


class Steps:
    """An epoch of plain steps, one after the other in memory; what can be known before the first is.

    Attributes:
        picks: where the samples of each step lie, `[steps, n, >= width]`.
    """

    def __init__(self, task: Descent, picks: Tensor, labels: Tensor, classes: int, shares: Tensor) -> None:
        self._task, self.picks = task, picks.transpose(0, 1).contiguous()
        some = self.picks[..., : shares.shape[2]]
        self._labels = labels.index_select(0, some.flatten()).view(*some.shape, 1)
        self._shares = shares.transpose(0, 1).unsqueeze(3).contiguous()
        self._logits = self._shares.new_empty(*some.shape, round_up(classes, LINE))
        self._targets = torch.zeros_like(self._logits).scatter_(3, self._labels, self._shares)

    def take(self, layers: Sequence[Layer], x: Tensor, number: int, below: bool = False) -> Tensor:
        """Take a step with the first models, whose inputs `x` `[rows, width, in]` are; see `step_layers`."""
        rows = len(x)
        shares, targets, logits = self._shares[number], self._targets[number], self._logits[number]
        if rows < len(shares):
            shares, targets, logits = shares[:rows], targets[:rows], logits[:rows]
        return step_layers(layers, x, shares, targets, logits, self._task.lr, below)

    def losses(self) -> Tensor:
        """Each client's mean loss over its samples `[n]`, NaN where there were none."""
        log = self._logits.log_softmax(3).gather(3, self._labels).squeeze(3)
        weights = self._task.blocks.weights
        if self._task.weights is not None:
            log *= self._shares.squeeze(3) * self._task.blocks.sizes.T.unsqueeze(2)
        each = torch.where(weights.transpose(0, 1) > 0, log, 0.0).sum(2)
        total = torch.zeros(len(weights), device=weights.device)
        for losses in each:  # one after the other: nobody's digits depend on how many steps others take
            total -= losses
        return total / weights.sum((1, 2))


def descend_plainly(model: Perceptron, layout: Layout, task: Descent, classes: int) -> Tensor:
    """Train in place, in plain steps; the means `[n]` of the last epoch's losses, NaN without an epoch."""
    pool = Pool(model, task.held)
    layers = split_layers(layout, task.stack, task.entries)
    first = cache(lambda rows: [layer.first(rows) for layer in layers])
    steps = None
    for order in task.orders:
        steps = Steps(task, task.blocks.picks(pool, order), pool.labels, classes, task.shares)
        for s, _, rows, width in task.blocks:
            steps.take(first(rows), pool.inputs(steps.picks[s, :rows], width), s)
    join_layers(layout, layers, task.stack)
    return task.stack.new_full((len(task.stack),), float("nan")) if steps is None else steps.losses()


def descend(model: Stacked, layout: Layout, task: Descent, solver: StackedSolver, minimise: Backward) -> Tensor:
    """The same in the solver's steps, with any network, down what `minimise` differentiates."""
    stack, blocks, wanted = task.stack, task.blocks, [e in task.entries for e in layout.tensors]
    pool = Pool(model, task.held)
    views = cache(lambda rows: [e.views(stack[:rows]) for e in layout.tensors])
    slots = cache(lambda rows: [e.views(solver.gradients[:rows]) for e in layout.tensors])
    total = torch.full((len(stack),), float("nan"), device=stack.device)
    for order in task.orders:
        picks = blocks.picks(pool, order)
        shares = task.shares_of(order)
        total = torch.zeros(len(stack), device=stack.device)
        for s, active, rows, width in blocks:
            x, y = pool.take(picks[:rows, s], width)
            losses = minimise(views(rows), x, y, shares[:rows, s, :width], slots(rows), wanted)
            solver.step(active)
            total[:active] += losses[:active] * blocks.sizes[:active, s]
    return total / blocks.sizes.sum(1)


class StackedSolver:
    """One step of the local solver for the first clients of a stack, as `Sequential` takes it for one.

    Only the tensors `entries` move. Pull and Adam's count of steps are each client's own.

    Attributes:
        gradients: where the next step's gradients are to be written, like the stack.
    """

    def __init__(
        self,
        training: Training,
        lr: float,
        stack: Tensor,
        entries: Sequence[Entry],
        requests: Sequence[Train],
        memories: Sequence[Tensor | None],
    ) -> None:
        self._training, self._lr, self._clip = training, lr, requests[0].clip
        self.gradients = torch.zeros_like(stack)
        ranges = Part.of((e.start, e.stop) for e in entries).ranges

        def columns(matrix: Tensor) -> list[Tensor]:
            return [matrix[:, a:b] for a, b in ranges]

        def rows(models: Sequence[Tensor | None]) -> list[Tensor]:
            given = [m for m in models if m is not None]
            return columns(torch.stack(given)) if given else []

        self._parameters, self._gradients = columns(stack), columns(self.gradients)
        pulled = any(r.pull for r in requests)
        strong = [overshoots(training, lr, r.pull) for r in requests]
        self._implicit = np.flatnonzero(strong)
        self._shrink = [1 / (1 + lr * requests[i].pull) for i in self._implicit.tolist()]
        explicit = [0.0 if s else r.pull for r, s in zip(requests, strong, strict=True)]
        self._pull = torch.tensor(explicit).to(stack.device)[:, None]
        self._anchor = rows([r.start if r.anchor is None else r.anchor for r in requests if pulled])
        self._linear = rows([r.linear for r in requests])
        adam = training.optimizer == "adam"
        self._moments = [torch.zeros_like(stack) for _ in range(2 if adam else 1 if training.momentum else 0)]
        self._first, self._second = ([columns(m) for m in self._moments] + [[], []])[:2]
        self._taken = np.zeros((len(requests), 1))
        for place, memory in self._places(memories):
            place.copy_(memory)
        if adam:
            self._taken += [[0.0 if m is None else float(m[-1])] for m in memories]

    def remember(self, memories: Sequence[Tensor | None]) -> None:
        """Write into each client's memory, where it has one, what the solver remembers of it (`views_of`)."""
        for place, memory in self._places(memories):
            memory.copy_(place)
        for remembered, taken in zip(memories, self._taken[:, 0], strict=True):
            if remembered is not None and self._second:
                remembered[-1] = taken

    def _places(self, memories: Sequence[Tensor | None]) -> Iterator[tuple[Tensor, Tensor]]:
        """Where each moment of each client lies: in the stack, and in the client's memory."""
        for row, memory in enumerate(memories):
            if memory is None:
                continue
            for number, moment in enumerate(self._moments):
                size = len(memory) // len(self._moments)
                yield moment[row, :size], memory[number * size : (number + 1) * size]

    @torch.no_grad()
    def step(self, active: int) -> None:
        """Move the first `active` clients."""
        if self._clip:
            norms = self.gradients[:active].norm(dim=1, keepdim=True)
            self.gradients[:active] *= torch.clamp(self._clip / (norms + 1e-6), max=1.0)
        self._taken[:active] += 1
        for number, everybody in enumerate(self._parameters):
            parameter, direction = everybody[:active], self._gradients[number][:active]
            if self._anchor:
                direction.addcmul_(self._pull[:active], parameter - self._anchor[number][:active])
            if self._linear:
                direction.add_(self._linear[number][:active])
            if self._training.weight_decay:
                direction.add_(parameter, alpha=self._training.weight_decay)
            if self._training.optimizer == "adam":
                self._adam(number, parameter, direction)
                continue
            if self._training.momentum:
                direction = self._first[number][:active].mul_(self._training.momentum).add_(direction)
            parameter.add_(direction, alpha=-self._lr)
            if len(self._implicit):
                self._shrink_to_anchors(number, parameter)

    def _shrink_to_anchors(self, number: int, parameter: Tensor) -> None:
        """Take what is implicit of the step: `w <- anchor + (w - anchor) / (1 + lr pull)`, client by client."""
        for row, shrink in zip(self._implicit.tolist(), self._shrink, strict=True):
            if row < len(parameter):
                anchor = self._anchor[number][row]
                parameter[row] = anchor + (parameter[row] - anchor) * shrink

    def _adam(self, number: int, parameter: Tensor, gradient: Tensor) -> None:
        """Kingma and Ba (2015), Algorithm 1, with the constants and in the order of `torch.optim.Adam`."""
        beta1, beta2, eps = 0.9, 0.999, 1e-8
        active = len(parameter)
        taken = self._taken[:active]
        first = self._first[number][:active].lerp_(gradient, 1 - beta1)
        second = self._second[number][:active].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        size = torch.from_numpy(self._lr / (1 - beta1**taken)).to(parameter)
        root = torch.from_numpy(np.sqrt(1 - beta2**taken)).to(parameter)
        parameter.sub_(size * first / (second.sqrt() / root).add_(eps))
