"""One client after another, as fast as one core allows.

The network's parameters are views of one flat vector: loading a model is one copy, and so is giving it back.
There is no DataLoader and no state dict; a minibatch is a slice of the epoch's permuted samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.clients.rule import Client
from coterie.clients.training import Training
from coterie.clients.work import Gradients, Losses, Request, Result, Score, Scored, Train, Trained
from coterie.engine.engine import ANSWERED, EVALUATION_BATCH, Data, Engine, batches, has_batch_norm, has_dropout
from coterie.models.layout import Entry, Layout, Part
from coterie.models.networks import channels_first
from coterie.streams import address


class Sequential(Engine):
    """Answers requests one client at a time. Keeps one network and one flat vector."""

    def __init__(
        self, network: nn.Module, layout: Layout, data: Data, training: Training, seed: int, initial: Tensor
    ) -> None:
        super().__init__(network, layout, data, training, seed, initial)
        self._vector = initial.clone()
        layout.bind(network, self._vector)
        self._parameters = {e.name: network.get_parameter(e.name) for e in layout.tensors}
        self._batch_norm = has_batch_norm(network)
        self._dropout = has_dropout(network)

    def answer(self, clients: Sequence[Client], requests: Sequence[Request]) -> list[Result]:
        """Answer one request for each client, in order."""
        return [self._one(client, request) for client, request in zip(clients, requests, strict=True)]

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """Softmax outputs `[n, samples, classes]`, dropout off."""
        self.network.eval()
        found = []
        for model in models:
            self._vector.copy_(model)
            found.append(torch.cat([logits.softmax(1) for _, logits in self._logits(inputs)]))
        return torch.stack(found)

    def _one(self, client: Client, request: Request) -> Result:
        match request:
            case Train():
                return self._train(client, request)
            case Losses():
                return self._losses(client, request)
            case Gradients():
                return self._gradients(client, request)
            case Score():
                return self._score(client, request)
            case _:
                raise TypeError(f"a rule asked for {type(request).__name__}; an engine answers {ANSWERED}")

    def _train(self, client: Client, request: Train) -> Trained:
        inputs, labels = self.data.slice(client.id, "train")
        entries = trained_tensors(self.layout, request.part)
        parameters: list[Tensor] = [self._parameters[e.name] for e in entries]
        step = _Step(self.training, request, entries, parameters, self.training.lr_at(client.round))
        rng = client.stream(request.purpose)
        self._vector.copy_(request.start)
        self.network.train()
        if self._dropout:
            torch.manual_seed(address(self.seed, f"dropout/{request.purpose}", client.id, client.round))
        epochs = self.training.epochs if request.epochs is None else request.epochs
        loss = float("nan")
        for _ in range(epochs):
            order = rng.permutation(len(labels))
            picked = torch.from_numpy(order)
            xs, ys = inputs.index_select(0, picked), labels.index_select(0, picked)
            total, seen = torch.zeros(()), 0
            for a, b in batches(order, self.training.batch_size, keep_single=not self._batch_norm):
                cost = cross_entropy(self.network(channels_first(xs[a:b])), ys[a:b])
                if parameters:  # a part may hold no tensor
                    step(torch.autograd.grad(cost, parameters))
                total += cost.detach() * (b - a)
                seen += b - a
            loss = float(total) / seen if seen else float("nan")
        model = self._vector.clone()
        if request.part is not None:
            model = request.part.copy(request.start.clone(), model)
        return Trained(model, loss)

    def _logits(self, inputs: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for a in range(0, len(inputs), EVALUATION_BATCH):
            rows = slice(a, a + EVALUATION_BATCH)
            with torch.no_grad():
                yield rows, self.network(channels_first(inputs[rows]))

    def _losses(self, client: Client, request: Losses) -> Tensor:
        inputs, labels = self.data.slice(client.id, request.split)
        if request.samples is not None and request.samples < len(labels):
            rng = client.stream(request.purpose)
            picked = torch.from_numpy(np.sort(rng.permutation(len(labels))[: request.samples]))
            inputs, labels = inputs.index_select(0, picked), labels.index_select(0, picked)
        self.network.eval()
        losses = torch.empty(len(request.models))
        for k, model in enumerate(request.models):
            self._vector.copy_(model)
            total = torch.zeros(())
            for rows, logits in self._logits(inputs):
                total += cross_entropy(logits, labels[rows], reduction="sum")
            losses[k] = total / max(len(labels), 1)
        return losses

    def _gradients(self, client: Client, request: Gradients) -> Tensor:
        inputs, labels = self.data.slice(client.id, "train")
        entries = list(self.layout.tensors)
        parameters = [self._parameters[e.name] for e in entries]
        self._vector.copy_(request.model)
        self.network.train()
        if self._dropout:
            torch.manual_seed(address(self.seed, f"dropout/{request.purpose}", client.id, client.round))
        order = client.stream(request.purpose).permutation(len(labels))
        size = max(len(order), 1) if request.full else self.training.batch_size
        ranges = batches(order, size, keep_single=not self._batch_norm)[: request.batches]
        found = torch.zeros(len(ranges), self.layout.size)
        for row, (a, b) in zip(found, ranges, strict=True):
            picked = torch.from_numpy(order[a:b])
            cost = cross_entropy(
                self.network(channels_first(inputs.index_select(0, picked))), labels.index_select(0, picked)
            )
            for entry, gradient in zip(entries, torch.autograd.grad(cost, parameters), strict=True):
                entry.view(row).copy_(gradient)
        return found

    def _score(self, client: Client, request: Score) -> Scored:
        inputs, labels = self.data.slice(client.id, request.split)
        self._vector.copy_(request.model)
        self.network.eval()
        total, guesses = torch.zeros(()), []
        for rows, logits in self._logits(inputs):
            total += cross_entropy(logits, labels[rows], reduction="sum")
            guesses.append(logits.argmax(1))
        guess = torch.cat(guesses) if guesses else labels
        return scored(float(total) / max(len(labels), 1), labels, guess, self.data.classes)


class _Step:
    """One step of the solver: w <- w - lr (g + pull (w - anchor) + linear + decay w), with momentum or Adam."""

    def __init__(
        self, training: Training, request: Train, entries: list[Entry], parameters: list[Tensor], lr: float
    ) -> None:
        self._parameters = parameters
        self._lr = lr
        self._pull = request.pull
        anchor = request.start if request.anchor is None else request.anchor
        self._anchor = [e.view(anchor) for e in entries]
        self._linear = None if request.linear is None else [e.view(request.linear) for e in entries]
        self._decay = training.weight_decay
        self._momentum = training.momentum
        self._velocity: list[Tensor] | None = None
        self._adam = torch.optim.Adam(parameters, lr=lr) if training.optimizer == "adam" and parameters else None

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor]) -> None:
        # Nothing is added in place: a gradient may be one number seen many times.
        direction: tuple[Tensor, ...] | list[Tensor] = list(gradients)
        if self._pull:
            away = torch._foreach_sub(self._parameters, self._anchor)
            direction = torch._foreach_add(direction, away, alpha=self._pull)
        if self._linear is not None:
            direction = torch._foreach_add(direction, self._linear)
        if self._decay:
            direction = torch._foreach_add(direction, self._parameters, alpha=self._decay)
        if self._adam is not None:
            for parameter, gradient in zip(self._parameters, direction, strict=True):
                parameter.grad = gradient
            self._adam.step()
            return
        if self._momentum:
            if self._velocity is None:
                self._velocity = [g.clone() for g in direction]
            else:
                torch._foreach_mul_(self._velocity, self._momentum)
                torch._foreach_add_(self._velocity, direction)
            direction = self._velocity
        torch._foreach_add_(self._parameters, direction, alpha=-self._lr)


def trained_tensors(layout: Layout, part: Part | None) -> list[Entry]:
    """The tensors that training restricted to `part` trains; buffers are not its matter.

    Raises:
        ValueError: the part holds some scalars of a tensor and leaves out others; a tensor is trained as a whole.
    """
    if part is None:
        return list(layout.tensors)
    held = {e: (Part.of([(e.start, e.stop)]) & part).size for e in layout.tensors}
    cut = [f"{size} of the {e.size} scalars of {e.name}" for e, size in held.items() if 0 < size < e.size]
    if cut:
        raise ValueError(
            f"the part to train holds {', '.join(cut)}; it must hold all or none of a tensor's scalars"
        )
    return [e for e, size in held.items() if size]


def scored(loss: float, labels: Tensor, guesses: Tensor, classes: int) -> Scored:
    """Counts per class from labels and guesses `[s]`."""

    def count(values: Tensor) -> np.ndarray:
        return torch.bincount(values, minlength=classes).numpy()

    return Scored(loss, count(labels), count(guesses), count(labels[labels == guesses]))
