"""One network bound to one flat vector, and a client's minibatches on their way through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from coterie.clients.engine.chain import Chain
from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import Batch, Samples, minibatch_ranges, to_numbers
from coterie.clients.rules.training import Precision
from coterie.clients.tasks import CLASSIFICATION, Task
from coterie.models.gaussian import gaussian_dim
from coterie.models.layout import Entry, Layout, Part
from coterie.models.networks import channels_first, frozen_modules
from coterie.randomness import address

Minimise = Callable[[Batch], tuple[Tensor, Sequence[Tensor]]]
"""From a minibatch to what is reported, a mean over its samples, and gradients to step along."""


class BoundNetwork:
    """A network whose parameters are views of one flat vector: loading a model is one copy, and so is its return.

    Attributes:
        vector: `[P]`; writing it writes the network's parameters and buffers.
        parameters: the network's parameters by name.
        to_numbers: makes numbers of inputs as they are stored.
        augment: alters every minibatch that is trained on; None for nothing.
    """

    to_numbers: Callable[[Tensor], Tensor] = staticmethod(to_numbers)
    augment: Callable[[torch.Generator, Tensor], Tensor] | None = None

    def __init__(
        self,
        network: nn.Module,
        layout: Layout,
        seed: int,
        initial: Tensor,
        precision: Precision = "fp32",
        task: Task = CLASSIFICATION,
    ) -> None:
        self._task = task
        self.network = network
        self.layout = layout
        self.vector = initial.clone()
        layout.bind(network, self.vector)
        self._frozen_modules = frozen_modules(network)
        self.parameters: dict[str, Tensor] = {e.name: network.get_parameter(e.name) for e in layout.tensors}
        self.chain = Chain(network, layout, self.vector, precision)
        self.batch_norm = has_batch_norm(network)
        self._seed = seed
        gaussian = gaussian_dim(network) is not None
        # Whoever does not write a module out does not know whether it draws, as attention with dropout does.
        drops = has_dropout(network) or self.chain.has_opaque_links
        self._noise = "noise" if gaussian else "dropout" if drops else None

    def load_for_evaluation(self, model: Tensor) -> Callable[[Tensor], Tensor]:
        """Load `model` `[P]` for evaluation: nothing is dropped or drawn, and norms go by their statistics.

        Returns:
            Logits `[B, C]` of inputs as the network takes them, until another is loaded or `model` is written.
        """
        self.network.eval()
        return partial(self.chain.logits, tensors=self.chain.load(model))

    def load_for_training(self, model: Tensor, client: Client, purpose: str, draws: bool = False) -> None:
        """Load `model` `[P]` for training; what is random in it belongs to client, round and purpose.

        With `draws`, so is what else may be drawn, by an objective.
        """
        self.train_mode()
        self.vector.copy_(model)
        if self.augment is not None:
            where = address(self._seed, f"augment/{purpose}", client.id, client.round)
            self._generator = torch.Generator().manual_seed(where)
        if self._noise or draws:
            self.seed(f"{self._noise or 'noise'}/{purpose}", client)

    def train_mode(self) -> None:
        """Let the network train; a norm whose parameters are frozen goes on by its statistics, and keeps them."""
        self.network.train()
        for module in self._frozen_modules:
            module.eval()

    def seed(self, purpose: str, client: Client) -> None:
        """Let PyTorch's generator begin at an address: that is where dropout and stochastic features draw from."""
        where = address(self._seed, purpose, client.id, client.round)
        torch.default_generator.manual_seed(where)
        # torch.manual_seed takes 1.2 ms a client: it notes, with a stack trace, what devices not in use are to do.
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(where)

    def minibatches(
        self, data: Samples, rng: np.random.Generator, size: int, weights: Tensor | None = None
    ) -> Iterator[Batch]:
        """The minibatches of an epoch, in the order of a fresh permutation; `weights` `[s]` are of samples."""
        inputs, labels = data
        picked = torch.from_numpy(rng.permutation(len(labels))).to(labels.device)
        ys = labels.index_select(0, picked)
        ws = None if weights is None else weights.index_select(0, picked)
        for a, b in minibatch_ranges(len(labels), size, keep_single=not self.batch_norm):
            x = channels_first(self.to_numbers(inputs.index_select(0, picked[a:b])))
            x = x if self.augment is None else self.augment(self._generator, x)
            yield Batch(x, ys[a:b], None if ws is None else ws[a:b] / (b - a), self._task)

    def take_samples(self, data: Samples, picked: Tensor) -> Batch:
        """The samples of those numbers `[B]` as a minibatch of which each is altered by itself."""
        x = channels_first(self.to_numbers(data[0].index_select(0, picked.to(data[0].device))))
        if self.augment is not None:
            x = torch.cat([self.augment(self._generator, some) for some in torch.split(x, 1)])
        return Batch(x, data[1].index_select(0, picked.to(data[1].device)), None, self._task)

    def descend(
        self,
        data: Samples,
        rng: np.random.Generator,
        epochs: int,
        size: int,
        minimise: Minimise,
        step: Callable[[Sequence[Tensor]], None],
        weights: Tensor | None = None,
        limit: int | None = None,
    ) -> float:
        """Train for some epochs.

        Args:
            data: the client's inputs and labels.
            rng: gives the order of every epoch.
            epochs: how many.
            size: samples in a minibatch.
            minimise: gives the loss of a minibatch, and its gradients.
            step: takes the gradients, where there are any, and moves the parameters.
            weights: of the samples `[s]`.
            limit: how many minibatches are met at most; None for those of all epochs.

        Returns:
            The mean over the last epoch's samples of what `minimise` reports; NaN where there were none.
        """
        mean, left = float("nan"), limit
        for _ in range(epochs):
            total, seen = torch.zeros((), device=self.vector.device), 0
            epoch = self.minibatches(data, rng, size, weights)
            for batch in epoch if left is None else islice(epoch, left):
                left = None if left is None else left - 1
                reported, gradients = minimise(batch)
                if gradients:
                    step(gradients)
                total += reported * len(batch.labels)
                seen += len(batch.labels)
            mean = float(total) / seen if seen else float("nan")
        return mean

    def copy_model(self, start: Tensor, part: Part | None) -> Tensor:
        """A copy `[P]` of the model as it is now; outside `part` it is `start`, buffers included."""
        model = self.vector.clone()
        return model if part is None else part.copy(start.clone(), model)

    def cross_entropy(self, entries: Sequence[Entry]) -> Minimise:
        """The mean cross-entropy, and its gradients in those trainable tensors, in the layout's order."""
        wanted = [number for number, entry in enumerate(self.layout.tensors) if entry in entries]
        return lambda batch: self.chain.gradients(batch.inputs, batch.labels, wanted)

    def gradient(self, x: Tensor, y: Tensor, into: Tensor, exact: bool = False) -> Tensor:
        """Write the gradient of the task's mean loss into `into` `[P]`, buffers aside; return the loss."""
        if self._task.plain:
            loss, found = self.chain.gradients(x, y, range(len(self.layout.tensors)), exact)
        else:
            loss, found = self._differentiate(x, y)
        for entry, gradient in zip(self.layout.tensors, found, strict=True):
            entry.view(into).copy_(gradient)
        return loss

    def _differentiate(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        parameters = [self.parameters[e.name] for e in self.layout.tensors]
        with torch.enable_grad():
            loss = self._task.mean_loss(self.network(x), y)
            found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return loss.detach(), list(found)


def has_batch_norm(network: nn.Module) -> bool:
    """Whether any layer normalises over the batch."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())


def has_dropout(network: nn.Module) -> bool:
    """Whether any layer drops units at random."""
    return any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in network.modules())
