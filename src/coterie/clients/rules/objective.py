"""What local training minimises. A rule brings its own objective; every engine runs it.

A new local loss is a class like this one, in the file of the rule that uses it:

    @objective("focal")
    @dataclass(frozen=True)
    class Focal(Objective):
        '''A loss that looks away from samples that are easy (Lin et al., 2017).'''

        gamma: float = 2.0

        def loss(self, model, batch, extras):
            each = batch.task.losses(model(batch.inputs), batch.labels)
            return batch.mean((1 - torch.exp(-each)) ** self.gamma * each)

A rule trains on it by `yield Train(start, objective=Focal())`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.catalogue import Catalog
from coterie.clients.rules.minibatch import Batch
from coterie.models.gaussian import halves
from coterie.models.layout import Layout

OBJECTIVES = Catalog("objective")
"""Every objective by name, so that a rule's settings can name one, and a remote client can build it."""

Extras = Mapping[str, Tensor]
"""Tensors by name that an objective gets beside the model, each of any shape."""


class LocalModel:
    """The network with the parameters that are being trained, as an objective sees it."""

    def __init__(self, network: nn.Module, layout: Layout) -> None:
        self.network = network
        self._layout = layout

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs, as logits `[B, C]`."""
        logits: Tensor = self.network(inputs)
        return logits

    def called(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Outputs `[B, …]` with other tensors in the place of the network's, by their names in the layout."""
        # PyTorch's own search for tied weights leaves a module changed that the network holds under two names.
        tied = {other: tensors[name] for other, name in self._layout.tied}
        found: Tensor = functional_call(self.network, {**tensors, **tied}, (inputs,), tie_weights=False)
        return found

    def features(self, inputs: Tensor) -> Tensor:
        """What enters the last layer, `[B, d]`: the representation that the head classifies."""
        return self.with_features(inputs)[1]

    def with_features(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs, as logits `[B, C]`, and what entered the last layer for them, `[B, d]`."""
        weight = [e.name for e in self._layout.tensors if e.role == "weight"][-1]
        seen: list[Tensor] = []
        last = self.network.get_submodule(weight.rpartition(".")[0])
        hook = last.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            logits = self(inputs)
        finally:
            hook.remove()
        return logits, seen[-1]

    @torch.no_grad()
    def logits_at(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """Logits `[B, C]` of another model `[P]`, a constant; dropout off, norms by their statistics."""
        modes = {module: module.training for module in self.network.modules()}
        self.network.eval()
        try:
            logits = self.called({e.name: e.view(vector) for e in self._layout.entries}, inputs)
        finally:
            for module, training in modes.items():
                module.training = training
        return logits

    @cached_property
    def halves(self) -> tuple[nn.Sequential, int, nn.Sequential]:
        """Body, number of features and head of a network with stochastic features (`models.gaussian.halves`).

        Raises:
            ValueError: the network has no Gaussian features.
        """
        return halves(self.network)


@dataclass(frozen=True, eq=False)
class Loss:
    """What an objective makes of a minibatch, where that is more than the number to minimise.

    Attributes:
        minimised: the scalar that is differentiated.
        reported: the scalar of which `Trained.loss` is the mean; `minimised` unless given.
        observed: tensors, detached, that `Objective.summarise` is given once training has ended.
    """

    minimised: Tensor
    reported: Tensor | None = None
    observed: Extras = field(default_factory=dict)


class Objective:
    """A local loss. A frozen dataclass with plain settings, registered in `OBJECTIVES`."""

    name: ClassVar[str]
    """Its name in `OBJECTIVES`, which `objective` gives it."""
    batchable: ClassVar[bool] = True
    """Whether several clients may share a kernel; not where `loss` draws random numbers, observes, or branches on
    values. Then every engine trains one client after another."""

    def loss(self, model: LocalModel, batch: Batch, extras: Extras) -> Tensor | Loss:
        """The loss of a minibatch.

        Args:
            model: gives logits of inputs; what it computes can be differentiated.
            batch: inputs, targets and the task. Means over samples are taken by `batch.mean` and `batch.loss`,
                which know of weights, and of padding.
            extras: the tensors of `Train.extras`, and those of `Train.trained_extras` as they are now.

        Returns:
            One number, `[]`, that is minimised; or a `Loss`, which also reports and observes.

        Raises:
            TypeError: the objective's class does not define it.
        """
        raise TypeError(f"{type(self).__name__} does not say what the loss of a minibatch is")

    def summarise(self, observed: Sequence[Extras], extras: Extras) -> Extras:
        """What `Trained.summary` holds, from what the minibatches of the last epoch `observed`, in their order."""
        return {}

    def settings(self) -> dict[str, Any]:
        """The settings as plain values, from which `OBJECTIVES` builds the objective again."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]  # every objective is a dataclass


def objective(name: str) -> Callable[[type[Objective]], type[Objective]]:
    """Class decorator: register an objective under `name`."""

    def register(cls: type[Objective]) -> type[Objective]:
        cls.name = name
        return OBJECTIVES.add(name)(cls)

    return register


@objective("task-loss")
@dataclass(frozen=True)
class TaskLoss(Objective):
    """The task's mean loss, which training minimises unless a rule brings another objective."""

    def loss(self, model: LocalModel, batch: Batch, extras: Extras) -> Tensor:
        return batch.loss(model(batch.inputs))
