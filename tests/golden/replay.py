"""Plays an original's rounds again with Coterie's method and engine: its data, cohorts, start and minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.data.federation import Federation
from coterie.clients.rules import Training, gaussian, invariant
from coterie.clients.rules.client import Client
from coterie.methods import Cohort, Method, ServerView
from coterie.methods.exchange import Ask, Exchange, Replies
from coterie.models.networks import build_network
from coterie.runtime.local import runtime as local
from coterie.runtime.runtime import drive


@dataclass
class Played:
    """What one round left behind."""

    state: Any
    replies: list[Replies]
    """Of its exchanges."""
    kept: dict[str, Tensor]
    """What clients keep, `[n, P]` by name."""
    served: Tensor
    """The model that each client is evaluated with, before any fine-tuning, `[n, P]`."""


class GivenOrder:
    """Stands for a client's generator of minibatches: gives the orders of its passes, one after the other."""

    def __init__(self, passes: NDArray[np.int8]) -> None:
        self._passes = iter(passes)

    def permutation(self, count: int) -> NDArray[np.int64]:
        order: NDArray[np.int64] = next(self._passes).astype(np.int64)
        met = order[order >= 0]
        assert len(met), "the original made no such pass"
        return np.concatenate([met, np.setdiff1d(np.arange(count), met)])  # what it left out comes last


@dataclass
class Replay:
    """An original's numbers, and how they are met by Coterie.

    `first` is the number of the pass with which a purpose of random numbers begins, where a round has several.
    """

    numbers: Mapping[str, NDArray[Any]]
    training: Training
    first: Mapping[str, int] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=lambda: {"name": "mlp", "hidden": (8,)})
    state: Callable[[Any], Any] = lambda state: state
    """What the method's first state is replaced by, where the original starts from several models."""
    evaluates: Callable[[Method[Any], Any, ServerView], Exchange] | None = None
    """The exchange that is answered after the last round."""
    server: ServerView | None = None
    """As the method saw it."""
    second: int = 0
    """The number of the pass with which the second exchange of a round begins."""
    _exchanges: int = 0
    _noise: Iterator[NDArray[np.float32]] = field(default_factory=lambda: iter(()))

    def play(self, method: Method[Any], engine: str, monkeypatch: pytest.MonkeyPatch) -> list[Played]:
        """Return what each round left behind."""
        numbers = self.numbers
        initial = torch.from_numpy(numbers["initial"])
        starts, ends = numbers["bounds"].astype(np.int64).T
        labels = torch.from_numpy(numbers["labels"].astype(np.int64))
        federation = Federation(
            "golden",
            torch.from_numpy(numbers["inputs"]),
            labels,
            int(labels.max()) + 1,
            np.column_stack([starts, ends, ends, ends]),
            tuple(f"client {i}" for i in range(len(starts))),
            None,
            torch.from_numpy(numbers["public"]) if "public" in numbers else None,
            None,
        )
        monkeypatch.setattr(local, "build_network", lambda *given: replace(build_network(*given), initial=initial))
        if "orders" in numbers:  # elsewhere minibatches are whole, and their order plays no part
            monkeypatch.setattr(Client, "stream", lambda client, purpose: self._stream(client, purpose))
        if "noise" in numbers:
            for module in (gaussian, invariant):
                monkeypatch.setattr(module, "draws", self._draw)
        sizes = dict(self.network)
        spec = local.EngineSpec(sizes.pop("name"), sizes, federation.features, federation, self.training, 0, engine)
        runtime = local.LocalRuntime(spec, federation.samples, workers=1)
        server = ServerView(
            federation.samples,
            runtime.layout,
            0,
            lambda _: initial,
            federation.public,
            features=federation.features,
            classes=federation.classes,
        )
        self.server = server
        state, rounds = self.state(method.start(server)), []
        for number, taking_part in enumerate(numbers["cohort"].astype(np.int64), 1):
            cohort = taking_part[taking_part >= 0]
            runtime.begin_round(number)
            heard: list[Replies] = []
            self._exchanges = 0

            def answer(ask: Ask, heard: list[Replies] = heard) -> Replies | Tensor | None:
                self._exchanges += isinstance(ask, Exchange)
                reply = runtime.answer(ask)
                assert runtime.failures == [], runtime.failures
                if isinstance(ask, Exchange) and isinstance(reply, Replies):
                    heard.append(reply)
                return reply

            state = drive(method.round(state, Cohort(number, cohort, server)), answer)
            kept = {name: values.clone() for name, values in runtime.states.kept.items()}
            rounds.append(Played(state, heard, kept, self._served(method, state, server, runtime)))
        if self.evaluates is not None:
            runtime.measure(self.evaluates(method, state, server))
        return rounds

    def _stream(self, client: Client, purpose: str) -> GivenOrder:
        """Return the orders in which a client meets its samples, and have ready what it draws for them."""
        last, number = purpose == "adaptation", client.round - 1
        if "noise" in self.numbers:
            noise = self.numbers["last noise"] if last else self.numbers["noise"][number]
            self._noise = iter(noise[client.id])
        passes = self.numbers["last orders"][client.id] if last else self.numbers["orders"][number, client.id]
        return GivenOrder(passes[self.first.get(purpose, 0) + self.second * (self._exchanges == 2) :])

    def _draw(self, mean: Tensor, deviation: Tensor, count: int) -> Tensor:
        """Return draws of N(mean, deviation^2) by the noise that the original drew."""
        noise = next(self._noise)[:, : len(mean)]
        assert len(noise) == count
        return mean + deviation * torch.from_numpy(noise)

    @staticmethod
    def _served(method: Method[Any], state: Any, server: ServerView, runtime: local.LocalRuntime) -> Tensor:
        assignment = method.assignment(state, server)
        rows = assignment.models[torch.from_numpy(assignment.served)]
        if not assignment.own:
            return rows
        initial = server.initial(0)
        own = torch.stack([runtime.states.of(c).get(assignment.own, initial) for c in range(server.n)])
        return own if assignment.part is None else assignment.part.copy(own, rows)
