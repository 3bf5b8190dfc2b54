"""Many clients in one kernel, for networks whose work is dominated by overhead.

The models of a chunk of clients are the rows of one matrix, and a step is taken by all of them together. Every
client meets the same minibatches as under `Sequential`; a short one is padded, and what pads it weighs nothing.
The last digits differ from those of `Sequential` (1e-5 over a short run).

A client's result does not depend on who shares its kernel. That is why rows start at multiples of 64 bytes (the
order of additions inside a matrix product depends on alignment), why the padded width of a minibatch depends on
the client's own samples alone, and why a convolution never sees a chunk of one, for which PyTorch takes
another kernel than for many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from coterie.clients.rule import Client
from coterie.clients.training import Training
from coterie.clients.work import Gradients, Losses, Request, Result, Score, Split, Train, Trained
from coterie.engine.choice import chunk_size, is_dense, refuse_unbatchable
from coterie.engine.engine import Data, Engine
from coterie.engine.sequential import scored, trained_tensors
from coterie.models.layout import Entry, Layout
from coterie.models.networks import channels_first

ALIGNED = 16
"""Scalars to whose multiple a row of a stack is padded: 64 bytes, a line of cache and an AVX-512 register."""

NARROW = 32
"""Smallest width that a minibatch is padded to, unless all of the client's minibatches are smaller."""

EVALUATION_WIDTH = 64

T = TypeVar("T")
R = TypeVar("R", bound=Request)
Job = tuple[Client, R]


class Batched(Engine):
    """Answers one request of many clients at once, for networks without batch normalisation and dropout.

    Raises:
        BadInput: the network has a module that cannot be batched.
    """

    def __init__(
        self, network: nn.Module, layout: Layout, data: Data, training: Training, seed: int, initial: Tensor
    ) -> None:
        super().__init__(network, layout, data, training, seed, initial)
        refuse_unbatchable(network)
        self._kernel: _Kernel = _Dense() if is_dense(network) else _Mapped(network, layout)
        self._chunk = chunk_size(network, layout)

    def answer(self, clients: Sequence[Client], requests: Sequence[Request]) -> list[Result]:
        """Answer one request for each client, in order; like requests share a kernel."""
        results: list[Result | None] = [None] * len(requests)
        groups: dict[Hashable, list[int]] = {}
        for i, (client, request) in enumerate(zip(clients, requests, strict=True)):
            groups.setdefault((type(request), *self._alike(client, request)), []).append(i)
        for members in groups.values():
            # Whoever runs out of minibatches first stands last, so that those still at work are the first rows.
            members.sort(key=lambda i: -self._count(clients[i], requests[i]))
            for a in range(0, len(members), self._chunk):
                some = members[a : a + self._chunk]
                for i, result in zip(some, self._together([(clients[i], requests[i]) for i in some]), strict=False):
                    results[i] = result
        return [r for r in results if r is not None]

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """Softmax outputs `[n, samples, classes]`."""
        self.network.eval()
        samples = self._kernel.stored(inputs)
        found = []
        for a in range(0, len(models), self._chunk):
            some = models[a : a + self._chunk]
            stack = self._stack(_at_least(self._kernel.fewest, list(some)))
            views = [e.views(stack) for e in self.layout.entries]
            blocks = samples.split(EVALUATION_WIDTH)
            logits = [self._kernel.logits(views, x.expand(len(stack), *x.shape)) for x in blocks]
            found.append(torch.cat(logits, 1)[: len(some)].softmax(2))
        return torch.cat(found)

    def _alike(self, client: Client, request: Request) -> tuple[Hashable, ...]:
        """What two requests must agree in to share a kernel without changing each other's result."""
        count = self._count(client, request)
        match request:
            case Train(epochs=epochs, part=part, linear=linear):
                width = _width(count, self.training.batch_size)
                return width, client.round, epochs, part, bool(request.pull), linear is None
            case Losses():
                return _width(count, EVALUATION_WIDTH), len(request.models), request.split
            case Gradients(full=full):
                limit = EVALUATION_WIDTH if full else self.training.batch_size
                return _width(count, limit), full, request.batches
            case Score():
                return _width(count, EVALUATION_WIDTH), request.split

    def _count(self, client: Client, request: Request) -> int:
        """The client's samples that the request looks at."""
        split: Split = request.split if isinstance(request, Losses | Score) else "train"
        count = len(self.data.slice(client.id, split)[1])
        limit = request.samples if isinstance(request, Losses) else None
        return count if limit is None else min(count, limit)

    def _together(self, jobs: Sequence[Job[Request]]) -> Sequence[Result]:
        """Answer requests that are alike; a chunk that is too small for the kernel has its first job doubled."""
        jobs = _at_least(self._kernel.fewest, jobs)
        match jobs[0][1]:
            case Train():
                return self._train([(c, r) for c, r in jobs if isinstance(r, Train)])
            case Losses():
                return self._losses([(c, r) for c, r in jobs if isinstance(r, Losses)])
            case Gradients():
                return self._gradients([(c, r) for c, r in jobs if isinstance(r, Gradients)])
            case Score():
                return self._score([(c, r) for c, r in jobs if isinstance(r, Score)])

    def _train(self, jobs: Sequence[Job[Train]]) -> list[Trained]:
        clients, requests = [c for c, _ in jobs], [r for _, r in jobs]
        counts = [self._count(c, r) for c, r in jobs]
        pool = _Pool(self.data, self._kernel, clients, "train")
        blocks = _Blocks(counts, _width(counts[0], self.training.batch_size), self._kernel.fewest)
        entries = trained_tensors(self.layout, requests[0].part)
        wanted = [e in entries for e in self.layout.entries]
        stack = self._stack([r.start for r in requests])
        views = [e.views(stack) for e in self.layout.entries]
        step = _Step(self.training, self.training.lr_at(clients[0].round), stack, entries, jobs)
        weights = blocks.weights / blocks.sizes.clamp(min=1)[:, :, None]
        rngs = [c.stream(r.purpose) for c, r in jobs]
        epochs = self.training.epochs if requests[0].epochs is None else requests[0].epochs
        total = torch.full((len(jobs),), float("nan"))
        self.network.train()
        for _ in range(epochs):
            picks = blocks.picks(pool, [rng.permutation(n) for rng, n in zip(rngs, counts, strict=True)])
            total = torch.zeros(len(jobs))
            for s, active, rows in blocks:
                x, y = pool.take(picks[:rows, s])
                losses, gradients = self._kernel.gradients(
                    [v[:rows] for v in views], x, y, weights[:rows, s], wanted
                )
                step(active, [g[:active] for g in gradients])
                total[:active] += losses[:active] * blocks.sizes[:active, s]
        seen = torch.tensor(counts).where(torch.tensor(counts) > 0, float("nan"))
        means = (total / seen).tolist()
        return [Trained(row[: self.layout.size].clone(), mean) for row, mean in zip(stack, means, strict=True)]

    def _losses(self, jobs: Sequence[Job[Losses]]) -> list[Tensor]:
        counts = [self._count(c, r) for c, r in jobs]
        pool = _Pool(self.data, self._kernel, [c for c, _ in jobs], jobs[0][1].split)
        blocks = _Blocks(counts, _width(counts[0], EVALUATION_WIDTH), self._kernel.fewest)
        orders = []
        for (client, request), count, held in zip(jobs, counts, pool.counts, strict=True):
            fresh = np.arange(count)
            if count < held:
                fresh = np.sort(client.stream(request.purpose).permutation(held)[:count])
            orders.append(fresh)
        picks = blocks.picks(pool, orders)
        found = torch.zeros(len(jobs), len(jobs[0][1].models))
        for k in range(found.shape[1]):
            stack = self._stack([r.models[k] for _, r in jobs])
            for s, rows, labels, logits in self._evaluated(stack, pool, blocks, picks):
                found[:rows, k] += _cross_entropy(logits, labels, blocks.weights[:rows, s])
        return list(found / torch.tensor(counts).clamp(min=1)[:, None])

    def _score(self, jobs: Sequence[Job[Score]]) -> list[Result]:
        counts = [self._count(c, r) for c, r in jobs]
        pool = _Pool(self.data, self._kernel, [c for c, _ in jobs], jobs[0][1].split)
        blocks = _Blocks(counts, _width(counts[0], EVALUATION_WIDTH), self._kernel.fewest)
        picks = blocks.picks(pool, [np.arange(n) for n in counts])
        stack = self._stack([r.model for _, r in jobs])
        total, guesses = torch.zeros(len(jobs)), torch.zeros_like(picks)
        for s, rows, labels, logits in self._evaluated(stack, pool, blocks, picks):
            total[:rows] += _cross_entropy(logits, labels, blocks.weights[:rows, s])
            guesses[:rows, s] = logits.argmax(2)
        return [
            scored(
                float(loss) / max(n, 1), self.data.slice(client.id, request.split)[1], guess[:n], self.data.classes
            )
            for (client, request), loss, n, guess in zip(jobs, total, counts, guesses.flatten(1), strict=True)
        ]

    def _gradients(self, jobs: Sequence[Job[Gradients]]) -> list[Tensor]:
        first = jobs[0][1]
        counts = [self._count(c, r) for c, r in jobs]
        pool = _Pool(self.data, self._kernel, [c for c, _ in jobs], "train")
        limit = EVALUATION_WIDTH if first.full else self.training.batch_size
        blocks = _Blocks(counts, _width(counts[0], limit), self._kernel.fewest)
        picks = blocks.picks(
            pool, [c.stream(r.purpose).permutation(n) for (c, r), n in zip(jobs, counts, strict=True)]
        )
        sizes = torch.tensor(counts)[:, None] if first.full else blocks.sizes
        weights = blocks.weights / sizes.clamp(min=1)[:, :, None]
        stack = self._stack([r.model for _, r in jobs])
        views = [e.views(stack) for e in self.layout.entries]
        wanted = [e.role != "buffer" for e in self.layout.entries]
        asked = [min(1, n) if first.full else steps for n, steps in zip(counts, blocks.steps, strict=True)]
        if first.batches is not None:
            asked = [min(q, first.batches) for q in asked]
        found = torch.zeros(len(jobs), max(asked), self.layout.size)
        self.network.train()
        for s, active, rows in blocks:
            row = 0 if first.full else s
            if row >= found.shape[1]:
                break
            x, y = pool.take(picks[:rows, s])
            _, gradients = self._kernel.gradients([v[:rows] for v in views], x, y, weights[:rows, s], wanted)
            for entry, gradient in zip(self.layout.tensors, gradients, strict=True):
                entry.views(found[:active, row]).add_(gradient[:active])
        return [rows[:q] for rows, q in zip(found, asked, strict=True)]

    def _evaluated(
        self, stack: Tensor, pool: _Pool, blocks: _Blocks, picks: Tensor
    ) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Block number, rows at work, their labels `[rows, width]` and logits `[rows, width, classes]`."""
        self.network.eval()
        views = [e.views(stack) for e in self.layout.entries]
        for s, _, rows in blocks:
            x, y = pool.take(picks[:rows, s])
            yield s, rows, y, self._kernel.logits([v[:rows] for v in views], x)

    def _stack(self, models: Sequence[Tensor]) -> Tensor:
        """Models `[P]` as rows of a matrix, each padded so that the next one is aligned."""
        stack = torch.zeros(len(models), -(-self.layout.size // ALIGNED) * ALIGNED)
        torch.stack(list(models), out=stack[:, : self.layout.size])
        return stack


class _Pool:
    """The samples of some clients, one after another."""

    def __init__(self, data: Data, kernel: _Kernel, clients: Sequence[Client], split: Split) -> None:
        slices = [data.slice(c.id, split) for c in clients]
        self._inputs = kernel.stored(torch.cat([x for x, _ in slices]))
        self._labels = torch.cat([y for _, y in slices])
        self.counts = [len(y) for _, y in slices]
        self.starts = np.cumsum([0, *self.counts[:-1]])

    def take(self, picks: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs `[rows, width, …]` and labels `[rows, width]` at those places of the pool."""
        flat = picks.flatten()
        x, y = self._inputs.index_select(0, flat), self._labels.index_select(0, flat)
        return x.unflatten(0, picks.shape), y.view(picks.shape)


class _Blocks:
    """Minibatches of several clients side by side, `[clients, steps, width]`; most samples first.

    Attributes:
        weights: 1 for a sample, 0 for what pads a short minibatch.
        sizes: samples in each minibatch, `[clients, steps]`.
        steps: minibatches of each client.
    """

    def __init__(self, counts: Sequence[int], width: int, fewest: int) -> None:
        self._width, self._fewest = width, fewest
        self.steps = [-(-n // width) for n in counts]
        places = torch.arange(max(self.steps) * width).view(-1, width)
        self.weights = (places < torch.tensor(counts)[:, None, None]).float()
        self.sizes = self.weights.sum(2)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Step, how many clients take it, and how many rows the kernel must have for that."""
        for s in range(self.weights.shape[1]):
            active = sum(steps > s for steps in self.steps)
            yield s, active, max(active, self._fewest)

    def picks(self, pool: _Pool, orders: Sequence[NDArray[np.int64]]) -> Tensor:
        """Places in the pool; a client's own first sample pads."""
        shape = self.weights.shape
        places = np.zeros((shape[0], shape[1] * shape[2]), np.int64)
        for row, order in zip(places, orders, strict=True):
            row[: len(order)] = order
        # A client without samples takes no step, but its row may be there to make up the number.
        starts = np.minimum(pool.starts, max(sum(pool.counts) - 1, 0))
        return torch.from_numpy(places + starts[:, None]).view(shape)


class _Step:
    """One step of the local solver for the first clients of a stack, as `Sequential` takes it for one.

    Pull and Adam's count of steps are each client's own.
    """

    def __init__(
        self, training: Training, lr: float, stack: Tensor, entries: Sequence[Entry], jobs: Sequence[Job[Train]]
    ) -> None:
        requests = [r for _, r in jobs]
        self._training, self._lr, self._parameters = training, lr, [e.views(stack) for e in entries]

        def terms(models: Sequence[Tensor | None]) -> list[Tensor]:
            matrix = torch.stack([m for m in models if m is not None])
            return [e.views(matrix) for e in entries]

        pulled, linear = bool(requests[0].pull), requests[0].linear is not None
        self._pull = torch.tensor([r.pull for r in requests])
        self._anchor = terms([r.start if r.anchor is None else r.anchor for r in requests]) if pulled else []
        self._linear = terms([r.linear for r in requests]) if linear else []
        adam = training.optimizer == "adam"
        self._first = [torch.zeros_like(p) for p in self._parameters] if adam or training.momentum else []
        self._second = [torch.zeros_like(p) for p in self._parameters] if adam else []
        self._taken = np.zeros(len(jobs))

    @torch.no_grad()
    def __call__(self, active: int, gradients: Sequence[Tensor]) -> None:
        """Move the first `active` clients along their `gradients` `[active, …]`, one tensor per trained entry."""
        self._taken[:active] += 1
        for number, (whole, direction) in enumerate(zip(self._parameters, gradients, strict=True)):
            parameter = whole[:active]
            if self._anchor:
                pull = _columns(self._pull[:active], direction)
                direction.addcmul_(pull, parameter - self._anchor[number][:active])
            if self._linear:
                direction.add_(self._linear[number][:active])
            if self._training.weight_decay:
                direction.add_(parameter, alpha=self._training.weight_decay)
            if self._training.optimizer == "adam":
                self._adam(number, parameter, direction)
            elif self._training.momentum:
                velocity = self._first[number][:active].mul_(self._training.momentum).add_(direction)
                parameter.add_(velocity, alpha=-self._lr)
            else:
                parameter.add_(direction, alpha=-self._lr)

    def _adam(self, number: int, parameter: Tensor, gradient: Tensor) -> None:
        """Kingma and Ba (2015), Algorithm 1, with the constants and the order of `torch.optim.Adam`."""
        beta1, beta2, eps = 0.9, 0.999, 1e-8
        active = len(parameter)
        taken = self._taken[:active]
        first = self._first[number][:active].lerp_(gradient, 1 - beta1)
        second = self._second[number][:active].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        size = _columns(torch.from_numpy(self._lr / (1 - beta1**taken)).float(), gradient)
        root = _columns(torch.from_numpy(np.sqrt(1 - beta2**taken)).float(), gradient)
        parameter.sub_(size * first / (second.sqrt() / root).add_(eps))


class _Kernel(ABC):
    """A network as a function of a stack of models: views `[n, *shape]`, one for each entry of the layout."""

    fewest: int
    """Rows below which the kernel would give a client other last digits than among many."""

    @abstractmethod
    def stored(self, inputs: Tensor) -> Tensor:
        """Samples `[s, *features]` as `logits` and `gradients` take them, before they are put into rows."""

    @abstractmethod
    def logits(self, views: Sequence[Tensor], x: Tensor) -> Tensor:
        """Logits `[n, width, classes]` on inputs `[n, width, …]`."""

    @abstractmethod
    def gradients(
        self, views: Sequence[Tensor], x: Tensor, y: Tensor, weights: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor, list[Tensor]]:
        """Weighted cross-entropy `[n]`, and its gradient in those of the views that are wanted."""


class _Dense(_Kernel):
    """Dense layers with ReLU between them, forward and backward as plain batched products.

    Autograd would take about twice as long, for these products are so small that what surrounds them counts.
    """

    fewest = 1

    def stored(self, inputs: Tensor) -> Tensor:
        return channels_first(inputs).flatten(1)

    @torch.no_grad()
    def logits(self, views: Sequence[Tensor], x: Tensor) -> Tensor:
        return self._layers(views, x)[-1]

    @torch.no_grad()
    def gradients(
        self, views: Sequence[Tensor], x: Tensor, y: Tensor, weights: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor, list[Tensor]]:
        *inputs, logits = self._layers(views, x)
        chosen = y.unsqueeze(2)
        log = logits.log_softmax(2)
        losses = (log.gather(2, chosen).squeeze(2) * weights).sum(1).neg_()
        delta = log.exp_().scatter_add_(2, chosen, torch.tensor(-1.0).expand(chosen.shape))
        delta *= weights.unsqueeze(2)
        found: list[Tensor] = []
        for number in reversed(range(len(inputs))):
            # Backwards, so the bias before the weight.
            if wanted[2 * number + 1]:
                found.append(delta.sum(1))
            if wanted[2 * number]:
                found.append(torch.bmm(delta.mT, inputs[number]))
            if not any(wanted[: 2 * number]):
                break
            delta = torch.ops.aten.threshold_backward(torch.bmm(delta, views[2 * number]), inputs[number], 0)
        return losses, found[::-1]

    @staticmethod
    def _layers(views: Sequence[Tensor], x: Tensor) -> list[Tensor]:
        """The input of every layer, and the logits."""
        found = [x]
        for weight, bias in zip(views[::2], views[1::2], strict=True):
            if len(found) > 1:
                found[-1].relu_()
            found.append(torch.baddbmm(bias.unsqueeze(1), found[-1], weight.mT))
        return found


class _Mapped(_Kernel):
    """Any other network, by `torch.func.vmap`."""

    fewest = 2

    def __init__(self, network: nn.Module, layout: Layout) -> None:
        names = [e.name for e in layout.entries]

        def one(views: tuple[Tensor, ...], x: Tensor) -> Tensor:
            found: Tensor = functional_call(network, dict(zip(names, views, strict=True)), (x,))
            return found

        # A tuple of views, for slicing one flat vector under vmap is slow.
        self._all: Callable[[tuple[Tensor, ...], Tensor], Tensor] = vmap(one)

    def stored(self, inputs: Tensor) -> Tensor:
        return channels_first(inputs).contiguous()

    @torch.no_grad()
    def logits(self, views: Sequence[Tensor], x: Tensor) -> Tensor:
        return self._all(tuple(views), x)

    def gradients(
        self, views: Sequence[Tensor], x: Tensor, y: Tensor, weights: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor, list[Tensor]]:
        leaves = tuple(v.detach().requires_grad_(want) for v, want in zip(views, wanted, strict=True))
        losses = _cross_entropy(self._all(leaves, x), y, weights)
        found = torch.autograd.grad(losses.sum(), [v for v in leaves if v.requires_grad])
        return losses.detach(), list(found)


def _cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum over each row's samples: `[n]` from `[n, width, classes]`, `[n, width]` and `[n, width]`."""
    each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return (each.view(weights.shape) * weights).sum(1)


def _columns(values: Tensor, like: Tensor) -> Tensor:
    """One value per row, `[n]`, shaped to be multiplied with `[n, …]`."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _width(samples: int, limit: int) -> int:
    """What a client's minibatches of `limit` samples are padded to: a power of two for those who have fewer."""
    return min(limit, max(NARROW, 1 << max(samples - 1, 0).bit_length()))


def _at_least(fewest: int, rows: Sequence[T]) -> list[T]:
    """The rows, the first one repeated where there are fewer."""
    return [*rows, *[rows[0]] * (fewest - len(rows))]
