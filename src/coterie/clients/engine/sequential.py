"""One client after another, as fast as one core allows.

The network's parameters are views of one flat vector: loading a model is one copy, and so is giving it back.
There is no DataLoader and no state dict; a minibatch is a slice of the epoch's permuted samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.clients.engine.bound_network import BoundNetwork
from coterie.clients.engine.differentiation import ObjectiveOfEach, ObjectiveOfOne, check_weights, find_objective
from coterie.clients.engine.engine import EVALUATION_BATCH, Engine
from coterie.clients.engine.minibatches import draw_samples
from coterie.clients.engine.private_steps import ExamplePrivacy, add_clipped, chunk_size, count_private_steps
from coterie.clients.engine.solver import Solver, clip_gradients, initial_memory, memory_views, tensors_to_train
from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import Batch, minibatch_ranges
from coterie.clients.rules.objective import LocalModel, TaskLoss
from coterie.clients.rules.requests import (
    Gradients,
    Inspect,
    Losses,
    Request,
    Result,
    Score,
    Scored,
    Split,
    Train,
    Trained,
)
from coterie.clients.rules.training import Training
from coterie.clients.tasks.measures import compute_metrics, metrics_to_compute
from coterie.models.gaussian import draws, halves, moments
from coterie.models.layout import Entry
from coterie.models.networks import channels_first

NO_CLASSES = np.empty(0, np.int64)
"""The counts per class where a sample is not of one."""


class Sequential(Engine):
    """Answers requests one client at a time. Keeps one network and one flat vector."""

    def __post_init__(self) -> None:
        super().__post_init__()
        data, precision = self.data, self.training.precision
        self._bound = BoundNetwork(self.network, self.layout, self.seed, self.initial, precision, data.task)
        self._bound.augment, self._bound.to_numbers = data.augment, data.to_numbers
        self._handlers: dict[type[Request], Callable[[Client, Any], Result]] = {
            Train: self._train,
            Losses: self._losses,
            Gradients: self._gradients,
            Score: self._score,
            Inspect: self._inspect,
        }

    def answer(self, clients: Sequence[Client], requests: Sequence[Request]) -> list[Result]:
        """Answer one request for each client, in order."""
        return [self._one(client, request) for client, request in zip(clients, requests, strict=True)]

    def outputs(self, models: Tensor, inputs: Tensor, temperature: float = 1.0) -> Tensor:
        """Distributions `[n, samples, distribution_size]` at a temperature, dropout off."""
        found, task = [], self.data.task
        for model in models:
            some = self._logits(self._bound.load_for_evaluation(model), inputs)
            found.append(torch.cat([task.distributions(logits, temperature) for _, logits in some]))
        return torch.stack(found)

    def _one(self, client: Client, request: Request) -> Result:
        """Answer by the handler of the request's class, or by the algorithm that the request brings."""
        handler = self._handlers.get(type(request))
        if handler is not None:
            return handler(client, request)
        if isinstance(request, Request):
            result: Result = request.run(self._bound, self.data.slice(client.id, "train"), client)
            return result
        known = ", ".join(kind.__name__ for kind in self._handlers)
        raise TypeError(f"a rule asked for {type(request).__name__}; an engine answers {known}, and other requests")

    def _set_up(
        self, client: Client, request: Train
    ) -> tuple[Training, list[Entry], list[Tensor], Tensor | None, float, Solver]:
        """Settings, what is trained as entries and tensors, the memory to carry over, learning rate and solver."""
        training, layout = self.training, self.layout
        if request.plain:
            training = training.updated(optimizer="sgd", momentum=0.0)
        entries = tensors_to_train(layout, request.part)
        parameters = [self._bound.parameters[e.name] for e in entries]
        anchor = request.start if request.anchor is None else request.anchor
        memory = initial_memory(request, training, layout)
        lr = training.lr_at(client.round) if request.lr is None else request.lr
        solver = Solver(
            training,
            lr,
            parameters,
            request.pull,
            [e.view(anchor) for e in entries],
            None if request.linear is None else [e.view(request.linear) for e in entries],
            () if memory is None else memory_views(memory, training, layout, entries),
        )
        return training, entries, parameters, memory, lr, solver

    def _train(self, client: Client, request: Train) -> Trained:
        if self.example_privacy is not None:
            return self._train_privately(client, request, self.example_privacy)
        bound, samples = self._bound, self.data.slice(client.id, "train")
        check_weights(request, len(samples[1]))
        training, entries, parameters, memory, lr, solver = self._set_up(client, request)
        objective = find_objective(request, self.data.task)
        bound.load_for_training(request.start, client, request.purpose, draws=objective is not None)
        beside = {name: values.clone().requires_grad_() for name, values in request.trained_extras.items()}
        minimise, step, own = bound.cross_entropy(entries), solver.step, None
        ranges = minibatch_ranges(len(samples[1]), training.batch_size, keep_single=not self.batch_norm)
        epochs = training.epochs if request.epochs is None else request.epochs
        if request.minibatches is not None:
            epochs = -(-request.minibatches // max(len(ranges), 1))
        if objective is not None:
            own = ObjectiveOfOne(objective, self._model, parameters, request.extras, beside, len(ranges))
            minimise = own.gradients
        if beside or request.clip:
            steps = [solver.step, *([Solver(training, lr, list(beside.values())).step] if beside else [])]

            def step(gradients: Sequence[Tensor]) -> None:
                gradients, first = clip_gradients(gradients, request.clip), len(parameters)
                for move, some in zip(steps, (gradients[:first], gradients[first:]), strict=False):
                    if some:
                        move(some)

        loss = bound.descend(
            samples,
            client.stream(request.purpose),
            epochs,
            training.batch_size,
            minimise,
            step,
            request.weights,
            request.minibatches,
        )
        return Trained(
            bound.copy_model(request.start, request.part),
            loss,
            memory if request.keep_solver else None,
            {name: values.detach() for name, values in beside.items()},
            {} if own is None else own.summary(),
        )

    def _train_privately(self, client: Client, request: Train, privacy: ExamplePrivacy) -> Trained:
        """Train by steps that hide any one sample; no loss is known, and buffers stay as they are."""
        bound, samples = self._bound, self.data.slice(client.id, "train")
        training, entries, parameters, memory, _, solver = self._set_up(client, request)
        bound.load_for_training(request.start, client, request.purpose, draws=True)
        each = ObjectiveOfEach(
            request.objective or TaskLoss(), self._model, self.layout, entries, request.extras, self.data.task
        )
        count = len(samples[1])
        epochs = training.epochs if request.epochs is None else request.epochs
        probability, steps = count_private_steps(count, training.batch_size, epochs)
        most = chunk_size(sum(e.size for e in entries))
        draws, noise = privacy.generators(client, request)
        for _ in range(steps if entries else 0):
            picked = torch.from_numpy(np.flatnonzero(draws.random(count) < probability))
            total = [torch.zeros_like(p, requires_grad=False) for p in parameters]
            for some in torch.split(picked, most) if len(picked) else ():
                gradients = each.gradients(bound.parameters, bound.take_samples(samples, some))
                add_clipped(total, gradients, privacy.clip_norm)
            solver.step(privacy.hide(total, probability * count, noise))
        model = bound.copy_model(request.start, request.part)
        for entry in self.layout.buffers:
            entry.view(model).copy_(entry.view(request.start))
        return Trained(model, nan, memory if request.keep_solver else None)

    @cached_property
    def _model(self) -> LocalModel:
        return LocalModel(self.network, self.layout)

    def _inspect(self, client: Client, request: Inspect) -> Tensor:
        model = None if request.model is None else self._load(request.model)
        with torch.no_grad():
            return request.function(self._batch(client, request.split), model)

    def _load(self, model: Tensor) -> LocalModel:
        self.network.eval()
        self._bound.vector.copy_(model)
        return self._model

    def _batch(self, client: Client, split: Split) -> Batch:
        inputs, labels = self.data.slice(client.id, split)
        return Batch(channels_first(self.data.to_numbers(inputs)), labels, task=self.data.task)

    def _logits(self, of: Callable[[Tensor], Tensor], inputs: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for a in range(0, len(inputs), EVALUATION_BATCH):
            rows = slice(a, a + EVALUATION_BATCH)
            yield rows, of(channels_first(self.data.to_numbers(inputs[rows])))

    def _losses(self, client: Client, request: Losses) -> Tensor:
        inputs, labels = draw_samples(client, request, self.data.slice(client.id, request.split))
        losses = request.models.new_empty(len(request.models))
        for k, model in enumerate(request.models):
            total = losses.new_zeros(())
            for rows, logits in self._logits(self._bound.load_for_evaluation(model), inputs):
                total += self.data.task.total_loss(logits, labels[rows])
            losses[k] = total / max(len(labels), 1)
        return losses

    def _gradients(self, client: Client, request: Gradients) -> Tensor:
        inputs, labels = self.data.slice(client.id, "train")
        self._bound.load_for_training(request.model, client, request.purpose)
        order = client.stream(request.purpose).permutation(len(labels))
        size = max(len(order), 1) if request.full else request.size or self.training.batch_size
        ranges = minibatch_ranges(len(order), size, keep_single=not self.batch_norm)[: request.batches]
        found = request.model.new_zeros(len(ranges), self.layout.size)
        for row, (a, b) in zip(found, ranges, strict=True):
            picked = torch.from_numpy(order[a:b]).to(labels.device)
            x, y = inputs.index_select(0, picked), labels.index_select(0, picked)
            self._bound.gradient(channels_first(self.data.to_numbers(x)), y, into=row)
        return found

    def _mixture(self, models: Tensor, shares: Tensor) -> Callable[[Tensor], Tensor]:
        """Return what gives the outputs `[B, …]` of a mixture of models `[K, P]`."""

        def outputs(inputs: Tensor) -> Tensor:
            each = [self._bound.load_for_evaluation(model)(inputs) for model in models]
            return self.data.task.mix(torch.stack(each), shares.to(inputs.device))

        return outputs

    def _score(self, client: Client, request: Score) -> Scored:
        inputs, labels = self.data.slice(client.id, request.split)
        if request.shares is not None:
            of = self._mixture(request.model, request.shares)
        elif request.memory is not None:
            of = request.memory(self._batch(client, "train"), self._load(request.model))
        else:
            of = self._bound.load_for_evaluation(request.model)
        if request.draws:
            self._bound.seed(f"noise/score/{request.split}", client)
            of = partial(sample_logits, self.network, count=request.draws)
        task, classes = self.data.task, self.data.classes
        total, guesses, kept = request.model.new_zeros(()), [], []
        names = metrics_to_compute(task, classes)
        for rows, outputs in self._logits(of, inputs):
            total += task.total_loss(outputs, labels[rows])
            if classes:
                guesses.append(task.predict(outputs))
            if names:
                kept.append(outputs)
        guess = torch.cat(guesses) if guesses else labels
        values = compute_metrics(task, names, torch.cat(kept), labels) if kept else dict.fromkeys(names, nan)
        numbers = (labels, guess, labels[labels == guess]) if classes else ()
        counts = [torch.bincount(some, minlength=classes).cpu().numpy() for some in numbers] or [NO_CLASSES] * 3
        return Scored(float(total) / max(len(labels), 1), *counts, samples=len(labels), values=values)


@torch.no_grad()
def sample_logits(network: nn.Module, x: Tensor, count: int) -> Tensor:
    """Logits `[B, C]` of inputs as the network takes them: the mean over `count` draws of its stochastic features.

    Raises:
        ValueError: the network has no Gaussian features.
    """
    body, _, head = halves(network)
    z = draws(*moments(body(x)), count)
    logits: Tensor = head(z.flatten(0, 1))
    return logits.view(count, len(x), -1).mean(0)
