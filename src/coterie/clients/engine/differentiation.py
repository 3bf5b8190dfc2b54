"""Objectives that rules bring, differentiated by PyTorch: for one client by autograd, for a stack of them by vmap.

The mean cross-entropy, which is what nearly every rule minimises where samples are of classes, does not come here:
`Chain`, `Perceptron` and `Convolutional` have its gradients written out.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from coterie.clients.engine.perceptron import round_up
from coterie.clients.rules.minibatch import LINE, Batch
from coterie.clients.rules.objective import Extras, LocalModel, Loss, Objective, TaskLoss
from coterie.clients.rules.requests import Train
from coterie.clients.tasks import Task
from coterie.models.layout import Entry, Layout
from coterie.models.networks import channels_first, set_training


def find_objective(request: Train, task: Task) -> Objective | None:
    """The objective that must be differentiated by PyTorch; None for the plain mean cross-entropy."""
    if request.objective is not None:
        return request.objective
    return None if request.weights is None and task.plain else TaskLoss()


def check_weights(request: Train, samples: int) -> None:
    """Refuse weights that are not one for each training sample.

    Raises:
        ValueError: they are not.
    """
    if request.weights is not None and request.weights.shape != (samples,):
        raise ValueError(f"weights has the shape {tuple(request.weights.shape)}; it must be ({samples},)")


class ObjectiveOfOne:
    """An objective of one network, differentiated by autograd.

    Args:
        objective: what is minimised.
        model: the network.
        parameters: of the network, those that are trained.
        extras: constants.
        trained_extras: leaves that require gradients.
        minibatches: how many an epoch has, and so how many observations are those of the last epoch.
    """

    def __init__(
        self,
        objective: Objective,
        model: LocalModel,
        parameters: Sequence[Tensor],
        extras: Extras,
        trained_extras: Extras,
        minibatches: int,
    ) -> None:
        self._objective = objective
        self._model = model
        self._trained = [*parameters, *trained_extras.values()]
        self._extras = {**extras, **trained_extras}
        self._observed: deque[Extras] = deque(maxlen=minibatches)

    def gradients(self, batch: Batch) -> tuple[Tensor, Sequence[Tensor]]:
        """What is reported of a minibatch, and the gradients in the parameters and the trained extras."""
        loss = as_loss(self._objective.loss(self._model, batch, self._extras))
        if loss.observed:
            self._observed.append(loss.observed)
        reported = loss.minimised if loss.reported is None else loss.reported
        if not self._trained:
            return reported.detach(), ()
        gradients = torch.autograd.grad(loss.minimised, self._trained, allow_unused=True, materialize_grads=True)
        return reported.detach(), gradients

    def summary(self) -> Extras:
        """What the objective makes of what it observed in the last epoch."""
        return self._objective.summarise(list(self._observed), self._extras)


class ObjectiveOfMany:
    """The same objective of a stack of models, differentiated in one kernel (`torch.func`).

    Args:
        objective: one that is `batchable`.
        network: of which all models are.
        layout: of the network.
        features: shape of one stored sample.
        extras: constants, for each model of the stack.
        task: what is learnt.
        whole_lines: whether minibatches are padded to whole lines of cache, so that no model's last digits depend
            on the others of its stack.
        contiguous: whether tensors and samples are copied to where they lie as PyTorch lays them out by itself:
            with an image's channels last in memory, some operations refuse to be vectorised.
    """

    def __init__(
        self,
        objective: Objective,
        network: nn.Module,
        layout: Layout,
        features: tuple[int, ...],
        extras: Sequence[Extras],
        whole_lines: bool,
        task: Task,
        contiguous: bool = False,
    ) -> None:
        self._task = task
        self._contiguous = contiguous
        self._called = _Called(objective, LocalModel(network, layout), layout)
        self._names = [f"network.{e.name}" for e in layout.tensors]
        self._shape = channels_first(torch.empty(1, *features, device="meta")).shape[1:]
        self._extras = {name: torch.stack([each[name] for each in extras]) for name in extras[0]}
        self._whole_lines = whole_lines
        set_training(network)

    def backward(
        self,
        views: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        weights: Tensor,
        into: Sequence[Tensor],
        wanted: Sequence[bool],
    ) -> Tensor:
        """What is reported of each model's minibatch `[n]`; its gradients overwrite the wanted tensors of `into`.

        The arguments are those of `Stacked.backward`.
        """
        if self._whole_lines and x.shape[1] % LINE:
            padded = torch.zeros(round_up(x.shape[1], LINE), dtype=torch.int64, device=x.device)
            padded[: x.shape[1]] = torch.arange(x.shape[1])
            weights = nn.functional.pad(weights, (0, len(padded) - x.shape[1]))
            x, y = x.index_select(1, padded), y.index_select(1, padded)
        rows, width = x.shape[:2]
        x = x if x.dim() == 3 else channels_first(x.flatten(0, 1))
        x = x.reshape(rows, width, *self._shape)
        if self._contiguous:
            x, views = x.contiguous(), [view.contiguous() for view in views]
        named = list(zip(self._names, views, wanted, strict=True))
        trained = {name: view for name, view, moves in named if moves}
        fixed = {name: view for name, view, moves in named if not moves}
        extras = {name: values[: len(x)] for name, values in self._extras.items()}
        with without_fused_kernels():
            gradients, reported = vmap(grad(self._loss, has_aux=True))(trained, fixed, x, y, weights, extras)
        slots = dict(zip(self._names, into, strict=True))
        for name, gradient in gradients.items():
            slots[name].copy_(gradient)
        return cast(Tensor, reported)

    def _loss(
        self, trained: Extras, fixed: Extras, x: Tensor, y: Tensor, shares: Tensor, extras: Extras
    ) -> tuple[Tensor, Tensor]:
        loss = self._called.at({**trained, **fixed}, Batch(x, y, shares, self._task), extras)
        reported = loss.minimised if loss.reported is None else loss.reported
        return loss.minimised, reported.detach()


class ObjectiveOfEach:
    """The same objective of one network, differentiated for each sample of a minibatch by itself.

    Each sample meets the buffers as they are: what it would change in them is forgotten. Where `torch.func` cannot
    compute a network for many samples at once, one is taken after another.

    Args:
        objective: what is minimised.
        model: the network.
        layout: of the network.
        entries: the tensors that are trained.
        extras: constants.
        task: what is learnt.
    """

    def __init__(
        self,
        objective: Objective,
        model: LocalModel,
        layout: Layout,
        entries: Sequence[Entry],
        extras: Extras,
        task: Task,
    ) -> None:
        self._called = _Called(objective, model, layout)
        self._trained = [f"network.{e.name}" for e in entries]
        self._extras = extras
        self._task = task
        self._together = objective.batchable and task.batchable

    def gradients(self, parameters: Mapping[str, Tensor], batch: Batch) -> list[Tensor]:
        """Gradients `[B, *shape]` of the loss of each sample of a minibatch, in the trained tensors.

        Args:
            parameters: the network's, by name.
            batch: at least one sample.
        """
        tensors = {f"network.{name}": p.detach().contiguous() for name, p in parameters.items()}
        trained = {name: tensors[name] for name in self._trained}
        if self._together:
            x, y = batch.inputs.contiguous(), batch.labels
            try:
                return self._vectorise(trained, tensors, x, y)
            except Exception:  # whatever a module raises that is called as nobody has called it
                if self._is_vectorisable(trained, tensors, x[:1], y[:1]):
                    raise  # what failed was something else, as memory
                self._together = False
        rows = [self._gradients_of(trained, tensors, x, y) for x, y in zip(batch.inputs, batch.labels, strict=True)]
        return [torch.stack(row) for row in zip(*rows, strict=True)]

    def _vectorise(self, trained: Extras, others: Extras, x: Tensor, y: Tensor) -> list[Tensor]:
        """The gradients, all in one kernel."""
        buffers = self._copy_buffers()
        share = torch.ones(1, device=x.device)

        def loss(tensors: Extras, x: Tensor, y: Tensor) -> Tensor:
            return self._loss({**others, **tensors}, buffers, x, y, share)

        with warnings.catch_warnings(), without_fused_kernels():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            found = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(trained, x, y)
        return [found[name] for name in self._trained]

    def _is_vectorisable(self, trained: Extras, others: Extras, x: Tensor, y: Tensor) -> bool:
        try:
            self._vectorise(trained, others, x, y)
        except Exception:  # noqa: BLE001  # as above
            return False
        return True

    def _gradients_of(self, trained: Extras, others: Extras, x: Tensor, y: Tensor) -> list[Tensor]:
        """The gradients `[*shape]` of one sample."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in trained.items()}
        share = torch.ones(1, device=x.device)
        with torch.enable_grad():
            loss = self._loss({**others, **leaves}, self._copy_buffers(), x, y, share)
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return list(found)

    def _loss(self, tensors: Extras, buffers: Extras, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        batch = Batch(x[None], y[None], share, self._task)
        return self._called.at({**tensors, **buffers}, batch, self._extras).minimised

    def _copy_buffers(self) -> Extras:
        return {name: buffer.clone() for name, buffer in self._called.named_buffers(remove_duplicate=False)}


class _Called(nn.Module):
    """An objective as a module, so that a call can replace the parameters of its network."""

    def __init__(self, objective: Objective, model: LocalModel, layout: Layout) -> None:
        super().__init__()
        self.network = model.network
        self._objective = objective
        self._model = model
        self._tied = {f"network.{other}": f"network.{name}" for other, name in layout.tied}

    def forward(self, batch: Batch, extras: Extras) -> Loss:
        return as_loss(self._objective.loss(self._model, batch, extras))

    def at(self, tensors: Extras, batch: Batch, extras: Extras) -> Loss:
        """The loss with other tensors in the place of the network's."""
        tied = {other: tensors[name] for other, name in self._tied.items()}
        found: Loss = functional_call(self, {**tensors, **tied}, (batch, extras), tie_weights=False)
        return found


@contextmanager
def without_fused_kernels() -> Iterator[None]:
    """Keep PyTorch from its fused kernels of attention, which `vmap` would call for one model after another."""
    allowed = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(allowed)


def as_loss(found: Tensor | Loss) -> Loss:
    """What an objective gave, as a `Loss`."""
    return found if isinstance(found, Loss) else Loss(found)
