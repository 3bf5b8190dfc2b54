"""Many clients in one kernel, for networks whose work is dominated by overhead.

The models of a chunk of clients are the rows of one matrix, and a step is taken by all of them together. Every
client meets the same minibatches as under `Sequential`; a short one is padded, and what pads it weighs nothing.
The last digits differ from those of `Sequential` (1e-5 over a short run).

With a perceptron, a client's result does not depend, to the bit, on who shares its kernel. The order of additions
inside a matrix product depends on its shape and on where its operands lie, so every operand of every client starts
at a multiple of 64 bytes, the padded width of a minibatch depends on the client's own samples alone, and whether
a product is of one client or of many depends on the network and on those samples. A convolution's kernel
keeps no such promise: with any other network, a client's last digits may depend on who shares its kernel. Who does
is decided by what is answered together and by nothing else, so that the same clients and requests give the same
bits. Of a module that is vectorised, no kernel takes fewer than `FEWEST` clients; those are answered one by one.

Where a last digit decides through which value of a max pooling, or whether through a ReLU, a gradient flows, two
runs that agreed to 1e-8 part, and end 1e-3 apart. The more such decisions a network makes, the more clients meet
one: a few in a hundred in some fifty steps. `Sequential` parts from itself as often when the last digits of its
start are changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, cached_property
from itertools import pairwise
from math import inf
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from coterie.clients.engine.batched_steps import Descent, StackedSolver, descend, descend_plainly
from coterie.clients.engine.choice import chunk_size, is_perceptron
from coterie.clients.engine.convolution import Convolutional, is_chain
from coterie.clients.engine.differentiation import ObjectiveOfMany, check_weights, find_objective
from coterie.clients.engine.dual_perceptron import Dual
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.minibatches import (
    Blocks,
    Pool,
    count_samples,
    draw_samples,
    memory_key,
    model_memories,
    padded_width,
)
from coterie.clients.engine.perceptron import Perceptron, allocate_rows, cross_entropy, round_up
from coterie.clients.engine.sequential import Sequential
from coterie.clients.engine.solver import (
    initial_memory,
    is_plain_sgd,
    split_pull,
    takes_plain_steps,
    tensors_to_train,
)
from coterie.clients.engine.stacked import Backward, Stacked
from coterie.clients.engine.vectorised import Vectorised
from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import LINE, Samples
from coterie.clients.rules.objective import Extras, Objective, TaskLoss
from coterie.clients.rules.requests import (
    Gradients,
    Losses,
    Request,
    Result,
    Score,
    Scored,
    Train,
    Trained,
)
from coterie.clients.tasks.measures import compute_metrics, metrics_to_compute
from coterie.models.layout import Layout

EVALUATION_WIDTH = 64

T = TypeVar("T")
R = TypeVar("R", bound=Request)
Job = tuple[Client, R, Samples]
"""A client, its request, and the samples that the request is about."""
Key = Callable[[Client, Any, int], tuple[Hashable, ...] | None]
"""What requests about so many samples must agree in to share a kernel and change nobody's result; None for one that
is answered by itself."""
Seen = tuple[int, int, Tensor, Tensor]
"""Block number, rows at work, their targets `[rows, width, *shape]` and outputs `[rows, width, outputs]`."""


class Batched(Engine):
    """Answers one request of many clients at once: perceptrons, chains of plain modules, what `vmap` can compute.

    A request without a kernel here, or with settings that its kernel does not know, is answered one client after
    another: `Inspect`, scores by draws of features or of mixtures, objectives that are not `batchable`,
    training by a number of minibatches, on augmented ones or by private steps, and what brings its own algorithm.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        layout, batch_size = self.layout, self.training.batch_size
        self._model = _stacked(self.network, layout, self.data.to_numbers)
        self._dual = Dual(self._model, layout) if isinstance(self._model, Perceptron) else None
        self.together = chunk_size(layout, batch_size)
        self.independent = self._model.fixed_width
        activations = self._model.activations
        self._kernels: dict[type[Request], tuple[Key, Callable[[Sequence[Any]], Sequence[Result]]]] = {
            Train: (self._train_key, self._train),
            Losses: (self._losses_key, self._losses),
            Gradients: (self._gradients_key, self._gradients),
            Score: (self._score_key, self._score),
        }
        if not self.data.task.batchable:
            self._kernels = {}
        self._chunk = cache(lambda f, shared: chunk_size(layout, batch_size, activations(f), shared=shared))

    def answer(self, clients: Sequence[Client], requests: Sequence[Request]) -> list[Result]:
        """Answer one request for each client, in order; like requests share a kernel."""
        jobs = [(c, r, self._samples(c, r)) for c, r in zip(clients, requests, strict=True)]
        counts = [count_samples(r, held) for _, r, held in jobs]
        # Clients that are asked about the very same model share a kernel that reads it once. Not where results
        # depend on who shares a kernel: they would then depend on the memory that a runtime happens to use.
        places = model_memories(requests) if self._model.fixed_width else [None] * len(requests)
        same = Counter(places)
        results: list[Any] = [None] * len(requests)  # a request that brings its own algorithm may answer anything
        groups: dict[Any, list[int]] = {}
        for i, (client, request) in enumerate(zip(clients, requests, strict=True)):
            key, _ = self._kernels.get(type(request), (None, None))
            alike = None if key is None else key(client, request, counts[i])
            if alike is None:
                (results[i],) = self._one_by_one.answer([client], [request])
            else:
                shared = places[i] if same[places[i]] > 1 else None
                groups.setdefault((type(request), shared, *alike), []).append(i)
        for (_, shared, *_), members in groups.items():
            # Clients with the most minibatches come first, so that those still at work are the first rows.
            members.sort(key=lambda i: -counts[i])
            first = jobs[members[0]][2][0]
            most = self._clients_per_kernel(clients[members[0]], requests[members[0]], first, shared is not None)
            chunks = split_evenly(len(members), most, self._model.worthwhile)
            _, answer = self._kernels[type(requests[members[0]])]
            for rows in chunks:
                some = members[rows]
                # A chunk that had to be filled up has more results than members.
                alike_jobs = _fill_up(self._model.fewest, [jobs[i] for i in some])
                for i, result in zip(some, answer(alike_jobs), strict=False):
                    results[i] = result
            for i in members[chunks[-1].stop if chunks else 0 :]:
                (results[i],) = self._one_by_one.answer([clients[i]], [requests[i]])
        return results

    def outputs(self, models: Tensor, inputs: Tensor, temperature: float = 1.0) -> Tensor:
        """Distributions `[n, samples, distribution_size]` at a temperature."""
        samples, task = self._model.prepare(inputs), self.data.task
        found = torch.empty(len(models), len(samples), self.distribution_size, device=models.device)
        for rows in split_evenly(len(models), self._chunk(tuple(inputs.shape[1:]), False)):
            stack = self._stack(_fill_up(self._model.fewest, list(models[rows])))
            views = self._views(stack)
            for s in range(0, len(samples), EVALUATION_WIDTH):
                some = samples[s : s + EVALUATION_WIDTH]
                x = allocate_rows(len(stack), *some.shape, device=some.device).copy_(some)
                into = found[rows, s : s + EVALUATION_WIDTH]
                logits = self._model.logits(views, x)[: len(into)]
                into.copy_(task.distributions(logits.flatten(0, 1), temperature).view(into.shape))
        return found

    @cached_property
    def _one_by_one(self) -> Sequential:
        """The engine for requests without a kernel here, with a network of its own, which it binds."""
        network = deepcopy(self.network)
        return Sequential(
            network, self.layout, self.data, self.training, self.seed, self.initial, self.example_privacy
        )

    def _train_key(self, client: Client, request: Train, count: int) -> tuple[Hashable, ...] | None:
        objective = find_objective(request, self.data.task)
        together = objective is None or objective.batchable
        if request.trained_extras or request.minibatches is not None or request.plain or not together:
            return None
        if self.data.augment is not None or self.example_privacy is not None:
            return None
        room = self._dual_room(client, request, count)
        return (
            padded_width(count, self.training.batch_size),
            room,
            client.round,
            request.epochs,
            request.part,
            bool(request.pull) if room is None else request.pull,
            request.linear is None,
            request.lr,
            objective,
            tuple((name, values.shape) for name, values in request.extras.items()),
            request.weights is None,
            request.clip,
        )

    def _losses_key(self, client: Client, request: Losses, count: int) -> tuple[Hashable, ...] | None:
        return padded_width(count, EVALUATION_WIDTH), len(request.models), request.split

    def _gradients_key(self, client: Client, request: Gradients, count: int) -> tuple[Hashable, ...] | None:
        limit = EVALUATION_WIDTH if request.full else request.size or self.training.batch_size
        return padded_width(count, limit), request.full, request.batches, request.size

    def _score_key(self, client: Client, request: Score, count: int) -> tuple[Hashable, ...] | None:
        if request.draws or request.shares is not None or request.memory is not None:
            return None
        return padded_width(count, EVALUATION_WIDTH), request.split

    def _clients_per_kernel(self, client: Client, request: Request, inputs: Tensor, shared: bool) -> int:
        """How many clients share a kernel for a request about such inputs, and maybe about one model."""
        if self._dual is not None and isinstance(request, Train):
            room = self._dual_room(client, request, len(inputs))
            if room is not None:
                return self._dual.chunk(room)
        return self._chunk(tuple(inputs.shape[1:]), shared)

    def _samples(self, client: Client, request: Request) -> Samples:
        """The samples of the client that a request is about."""
        return self.data.slice(client.id, request.split if isinstance(request, Losses | Score) else "train")

    def _train(self, jobs: Sequence[Job[Train]]) -> list[Trained]:
        requests, held = [r for _, r, _ in jobs], [h for *_, h in jobs]
        first, counts = requests[0], [y.shape[0] for _, y in held]
        stack = self._stack([r.start for r in requests])
        blocks = Blocks(self._model, counts, padded_width(counts[0], self.training.batch_size), stack.device)
        rngs = [c.stream(r.purpose) for c, r, _ in jobs]
        orders = [
            [rng.permutation(n) for rng, n in zip(rngs, counts, strict=True)] for _ in range(self._epochs(first))
        ]
        entries = tensors_to_train(self.layout, first.part)
        lr = self._lr(jobs[0][0], first)
        memories = [initial_memory(r, self.training, self.layout) for r in requests]
        for request, count in zip(requests, counts, strict=True):
            check_weights(request, count)
        weights = None if first.weights is None else [r.weights for r in requests if r.weights is not None]
        task = Descent([c.id for c, *_ in jobs], held, stack, blocks, orders, entries, lr, weights)
        room = self._dual_room(jobs[0][0], first, counts[0])
        if self._dual is not None and room is not None:
            short, kept = split_pull(self.training, lr, first.pull)
            means = self._dual.descend(replace(task, lr=short, kept=kept), room, self.data.classes)
        elif isinstance(self._model, Perceptron) and self.data.task.plain and is_plain_sgd(self.training, first):
            means = descend_plainly(self._model, self.layout, task, self.data.classes)
        else:
            solver = StackedSolver(self.training, lr, stack, entries, requests, memories)
            # The written-out gradients know of weights, but of no other loss.
            objective = first.objective or (None if self.data.task.plain else TaskLoss())
            backward = self._backward(objective, held, [r.extras for r in requests])
            means = descend(self._model, self.layout, task, solver, backward)
            solver.remember(memories)
        return [
            Trained(row[: self.layout.size], mean, memory if request.keep_solver else None)
            for row, mean, memory, request in zip(stack, means.tolist(), memories, requests, strict=True)
        ]

    def _backward(self, objective: Objective | None, held: Sequence[Samples], extras: Sequence[Extras]) -> Backward:
        """What differentiates an objective that requests share; None for the plain mean cross-entropy."""
        if objective is None and isinstance(self._model, Perceptron | Convolutional):
            return self._model.backward
        contiguous = isinstance(self._model, Vectorised)
        features, task, whole_lines = tuple(held[0][0].shape[1:]), self.data.task, self._model.fixed_width
        return ObjectiveOfMany(
            objective or TaskLoss(), self.network, self.layout, features, extras, whole_lines, task, contiguous
        ).backward

    def _epochs(self, request: Train) -> int:
        return self.training.epochs if request.epochs is None else request.epochs

    def _lr(self, client: Client, request: Train) -> float:
        return self.training.lr_at(client.round) if request.lr is None else request.lr

    def _dual_room(self, client: Client, request: Train, count: int) -> int | None:
        """Room for a client's samples where the first layer is trained in its dual form, or stays as it is."""
        if self._dual is None or not (self.data.task.plain and takes_plain_steps(self.training, request)):
            return None
        lowest = [e in tensors_to_train(self.layout, request.part) for e in self.layout.tensors[:2]]
        on_cpu = request.start.device.type == "cpu"
        lr, _ = split_pull(self.training, self._lr(client, request), request.pull)
        possible = all(lowest) == any(lowest) and on_cpu and lr < inf
        return self._dual.room(count, self._epochs(request), all(lowest)) if possible else None

    def _losses(self, jobs: Sequence[Job[Losses]]) -> list[Tensor]:
        counts = [count_samples(r, held) for _, r, held in jobs]
        held = [draw_samples(c, r, samples) for c, r, samples in jobs]
        device = held[0][1].device
        blocks = Blocks(self._model, counts, padded_width(counts[0], EVALUATION_WIDTH), device)
        found = torch.zeros(len(jobs), len(jobs[0][1].models), device=device)
        pool = Pool(self._model, held)
        picks = blocks.picks(pool)
        for k in range(found.shape[1]):
            stack = self._stack_or_share([r.models[k] for _, r, _ in jobs])
            for s, rows, labels, logits in self._evaluate(pool, blocks, picks, stack):
                found[:rows, k] += self._sum_losses(logits, labels, blocks.weights[:rows, s, : labels.shape[1]])
        return list(found / torch.tensor(counts).to(found.device).clamp(min=1)[:, None])

    def _sum_losses(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Each row's weighted sum of losses `[n]`, of `[n, width, …]`."""
        task = self.data.task
        if task.plain:
            return cross_entropy(outputs, targets, weights)
        each = task.losses(outputs.flatten(0, 1), targets.flatten(0, 1))
        return (each.view(weights.shape) * weights).sum(1)

    def _score(self, jobs: Sequence[Job[Score]]) -> list[Result]:
        held, classes, task = [held for *_, held in jobs], self.data.classes, self.data.task
        counts = [y.shape[0] for _, y in held]
        blocks = Blocks(self._model, counts, padded_width(counts[0], EVALUATION_WIDTH), held[0][1].device)
        pool, stack = Pool(self._model, held), self._stack_or_share([r.model for _, r, _ in jobs])
        total = torch.zeros(len(jobs), device=stack.device)
        names = metrics_to_compute(task, classes)
        kept: list[list[Tensor]] = [[] for _ in jobs]
        # The cells of a table [clients, classes]: what each sample is, and what it was taken for.
        actual, guessed = (np.zeros(blocks.weights.shape, np.int64) for _ in range(2))
        for s, rows, labels, logits in self._evaluate(pool, blocks, blocks.picks(pool), stack):
            width = labels.shape[1]
            total[:rows] += self._sum_losses(logits, labels, blocks.weights[:rows, s, :width])
            if classes:
                guesses = logits.argmax(2) if task.plain else task.predict(logits.flatten(0, 1)).view(rows, width)
                actual[:rows, s, :width], guessed[:rows, s, :width] = labels.cpu(), guesses.cpu()
            for own, n, outputs in zip(kept, counts, logits, strict=False) if names else ():
                own.append(outputs[: max(n - s * blocks.weights.shape[2], 0)])
        values = [
            compute_metrics(task, names, torch.cat(own), y) if own else {}
            for own, (_, y) in zip(kept, held, strict=True)
        ]
        first, real = np.arange(len(jobs))[:, None, None] * classes, blocks.weights.cpu().numpy() > 0
        actual, guessed = (actual + first)[real], (guessed + first)[real]
        cells, size = (actual, guessed, actual[actual == guessed]), len(jobs) * classes
        tables = [np.bincount(c, minlength=size)[:size].reshape(len(jobs), classes) for c in cells]
        return [
            Scored(loss / max(n, 1), *table, samples=n, values=found)
            for loss, n, found, *table in zip(total.tolist(), counts, values, *tables, strict=True)
        ]

    def _gradients(self, jobs: Sequence[Job[Gradients]]) -> list[Tensor]:
        first = jobs[0][1]
        pool = Pool(self._model, [held for *_, held in jobs])
        counts = pool.counts
        limit = EVALUATION_WIDTH if first.full else first.size or self.training.batch_size
        blocks = Blocks(self._model, counts, padded_width(counts[0], limit), pool.device)
        picks = blocks.picks(
            pool, [c.stream(r.purpose).permutation(n) for (c, r, _), n in zip(jobs, counts, strict=True)]
        )
        sizes = torch.tensor(counts).to(picks.device)[:, None] if first.full else blocks.sizes
        weights = blocks.weights / sizes.clamp(min=1)[:, :, None]
        stack = self._stack([r.model for _, r, _ in jobs])
        gradients = torch.zeros_like(stack)
        asked = [min(1, n) if first.full else steps for n, steps in zip(counts, blocks.steps, strict=True)]
        if first.batches is not None:
            asked = [min(q, first.batches) for q in asked]
        found = torch.zeros(len(jobs), max(asked), self.layout.size, device=stack.device)
        objective = None if self.data.task.plain else TaskLoss()
        backward = self._backward(objective, [held for *_, held in jobs], [{}] * len(jobs))
        for s, active, rows, width in blocks:
            row = 0 if first.full else s
            if row >= found.shape[1]:
                break
            x, y = pool.take(picks[:rows, s], width)
            wanted = [True] * len(self.layout.tensors)
            views, slots = self._views(stack[:rows]), self._views(gradients[:rows])
            backward(views, x, y, weights[:rows, s, :width], slots, wanted)
            found[:active, row] += gradients[:active, : self.layout.size]
        return [rows[:q] for rows, q in zip(found, asked, strict=True)]

    def _evaluate(self, pool: Pool, blocks: Blocks, picks: Tensor, stack: Tensor) -> Iterator[Seen]:
        """Yield the logits of a stack of models on the samples, block after block."""
        for s, _, rows, width in blocks:
            x, y = pool.take(picks[:rows, s], width)
            yield s, rows, y, self._model.logits(self._views(stack[:rows]), x)

    def _stack_or_share(self, models: Sequence[Tensor]) -> Tensor:
        """`_stack` of models that are not written to: one row, seen many times, where all are the very same."""
        if len({memory_key(m) for m in {id(m): m for m in models}.values()}) > 1:
            return self._stack(models)
        return self._stack(models[:1]).expand(len(models), -1)

    def _stack(self, models: Sequence[Tensor]) -> Tensor:
        """Models `[P]` as rows of a matrix, each padded to whole lines."""
        stack = models[0].new_empty(len(models), round_up(self.layout.size, LINE))
        stack[:, self.layout.size :] = 0.0
        for row, model in zip(stack, models, strict=True):
            row[: self.layout.size] = model
        return stack

    def _views(self, stack: Tensor) -> list[Tensor]:
        return [e.views(stack) for e in self.layout.tensors]


def _stacked(network: nn.Module, layout: Layout, to_numbers: Callable[[Tensor], Tensor]) -> Stacked:
    """How a network is computed for many models at once, in the fastest way that there is for it."""
    if not is_chain(network):
        return Vectorised(network, layout, to_numbers)
    if is_perceptron(network):
        return Perceptron(network, layout, to_numbers)
    return Convolutional(network, layout, to_numbers)


def split_evenly(count: int, most: int, fewest: int = 1) -> list[slice]:
    """Runs of `fewest` to `most`, none more than one longer than another, that cover as many of `count` as can be.

    What such runs cannot cover is at the end, and nothing where `fewest` is 1.
    """
    runs = min(-(-count // most), count // fewest) if fewest <= most else 0
    covered = min(count, runs * most)
    edges = [i * covered // runs for i in range(runs + 1)] if runs else [0]
    return [slice(a, b) for a, b in pairwise(edges)]


def _fill_up(fewest: int, rows: Sequence[T]) -> list[T]:
    """The rows, the first one repeated where there are fewer."""
    return [*rows, *[rows[0]] * (fewest - len(rows))]
