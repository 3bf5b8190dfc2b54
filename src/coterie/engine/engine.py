"""What an engine is: it answers the requests of rules, and drives rules to their answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from coterie.clients.rule import Answer, Client, Order, Work
from coterie.clients.training import Training
from coterie.clients.work import Request, Result, Split
from coterie.models.layout import Layout

EVALUATION_BATCH = 256

ANSWERED = "Train, Losses, Gradients and Score"
"""The requests that every engine answers."""


class Data(Protocol):
    """Whatever holds the clients' samples: a whole federation, or one client's own folder."""

    @property
    def classes(self) -> int: ...

    def slice(self, client: int, split: Split) -> tuple[Tensor, Tensor]:
        """Inputs `[s, *features]` and labels `[s]` of a client, as views."""


class Engine(ABC):
    """Answers requests with one network, one thread, and the data of the clients it is asked for."""

    def __init__(
        self, network: nn.Module, layout: Layout, data: Data, training: Training, seed: int, initial: Tensor
    ) -> None:
        self.network = network
        self.layout = layout
        self.data = data
        self.training = training
        self.seed = seed
        self._initial = initial

    @abstractmethod
    def answer(self, clients: Sequence[Client], requests: Sequence[Request]) -> list[Result]:
        """Answer one request for each client."""

    @abstractmethod
    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """Softmax outputs `[n, samples, classes]` of every model `[n, P]` on `inputs`."""

    def client(self, order: Order, state: Mapping[str, Tensor]) -> Client:
        """The client an order is for, as its rule will see it."""
        samples = len(self.data.slice(order.client, "train")[1])
        return Client(
            order.client, order.round, samples, self.seed, self.layout, self.training, state, self._initial.clone
        )

    def carry_out(self, orders: Sequence[Order], states: Sequence[Mapping[str, Tensor]]) -> list[Answer]:
        """Run the rule of every order to its answer, all in step, so that like requests meet."""
        clients = [self.client(o, s) for o, s in zip(orders, states, strict=True)]
        works: list[Work] = [o.rule.run(c, o) for o, c in zip(orders, clients, strict=True)]
        answers: list[Answer | None] = [None] * len(orders)
        results: list[Result | None] = [None] * len(orders)
        running = list(range(len(orders)))
        while running:
            asked: list[tuple[int, Request]] = []
            for i in running:
                try:
                    asked.append((i, works[i].send(results[i])))
                except StopIteration as end:
                    answers[i] = end.value
            for kind in dict.fromkeys(type(r) for _, r in asked):
                same = [(i, r) for i, r in asked if type(r) is kind]
                found = self.answer([clients[i] for i, _ in same], [r for _, r in same])
                for (i, _), result in zip(same, found, strict=True):
                    results[i] = result
            running = [i for i, _ in asked]
        return [a for a in answers if a is not None]


def batches(order: np.ndarray, size: int, keep_single: bool) -> list[tuple[int, int]]:
    """Ranges of minibatches over `len(order)` samples. A last batch of one sample is dropped unless `keep_single`.

    A batch-norm network cannot train on one sample (specification 0.2, convention 2); a client that has just
    one sample in all trains on nothing there.
    """
    ranges = [(a, min(a + size, len(order))) for a in range(0, len(order), size)]
    if ranges and not keep_single and ranges[-1][1] - ranges[-1][0] == 1:
        ranges.pop()
    return ranges


def has_batch_norm(network: nn.Module) -> bool:
    """Whether any layer normalises over the batch."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())


def has_dropout(network: nn.Module) -> bool:
    """Whether any layer drops units at random."""
    return any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in network.modules())
