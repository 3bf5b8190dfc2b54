"""What an engine is: it answers the requests of rules, and drives rules to their answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from coterie.clients.engine.allocator import retain_freed_memory
from coterie.clients.engine.bound_network import has_batch_norm
from coterie.clients.engine.private_steps import ExamplePrivacy, OrderGuard
from coterie.clients.engine.upload_noise import UploadNoise
from coterie.clients.rules.client import Client
from coterie.clients.rules.requests import Request, Result, Split
from coterie.clients.rules.rule import Answer, Order, Work
from coterie.clients.rules.training import Training
from coterie.clients.tasks import Task
from coterie.errors import BadInput
from coterie.models.features import format_shape
from coterie.models.layout import Layout
from coterie.models.networks import channels_first

EVALUATION_BATCH = 128


class Data(Protocol):
    """Whatever holds the clients' samples: a whole federation, or one client's own folder."""

    @property
    def classes(self) -> int: ...
    @property
    def task(self) -> Task: ...
    @property
    def outputs(self) -> int: ...
    @property
    def augment(self) -> Callable[[Generator, Tensor], Tensor] | None:
        """Alters every minibatch that is trained on."""

    def slice(self, client: int, split: Split) -> tuple[Tensor, Tensor]:
        """Inputs `[s, *features]` as they are stored, and targets `[s, *shape]` of a client, as views."""

    def to_numbers(self, stored: Tensor) -> Tensor:
        """Return stored inputs `[s, *features]` as networks take them, with the channels last."""


@dataclass(eq=False)
class Engine(ABC):
    """Answers requests with one network, one thread, and the data of the clients it is asked for.

    Attributes:
        together: the number of clients that it is fastest for in one call.
        independent: whether a client's answers are the same, to the bit, whichever clients share the call.
        one_process: whether only one process may hold one, because it owns a device.
    """

    network: nn.Module
    layout: Layout
    data: Data
    training: Training
    seed: int
    initial: Tensor
    """The model `[P]` that the network starts from."""
    example_privacy: ExamplePrivacy | None = None
    """How any one training sample is hidden; None where none is."""
    notes: tuple[str, ...] = ()
    """What is to be said of the network: where its weights come from, and how it is called."""
    upload_noise: UploadNoise | None = None
    """What clients do to the models that they send; None for nothing."""
    together = 1
    independent = True
    one_process = False

    def __post_init__(self) -> None:
        self.batch_norm = has_batch_norm(self.network)
        self._sizes: dict[int, tuple[int, ...]] = {}
        """Training and validation samples of each client that has been at work."""

    @abstractmethod
    def answer(self, clients: Sequence[Client], requests: Sequence[Request]) -> list[Result]:
        """Answer one request for each client."""

    @abstractmethod
    def outputs(self, models: Tensor, inputs: Tensor, temperature: float = 1.0) -> Tensor:
        """Distributions `[n, samples, distribution_size]` of every model `[n, P]` on `inputs`.

        They are those of the task. Where samples are of classes, these are `softmax(logits / temperature)`.
        """

    @property
    def distribution_size(self) -> int:
        """Over how many classes the task's distributions are."""
        return self.data.task.distribution_size(self.data.outputs)

    def client(self, order: Order, state: Mapping[str, Tensor]) -> Client:
        """The client an order is for, as its rule will see it."""
        if order.client not in self._sizes:
            splits: tuple[Split, ...] = ("train", "validation")
            self._sizes[order.client] = tuple(self.data.slice(order.client, split)[1].shape[0] for split in splits)
        samples, validation = self._sizes[order.client]
        seed, initial = self.seed, self.initial.clone
        return Client(
            order.client, order.round, samples, seed, self.layout, self.training, state, initial, validation
        )

    def run_rules(
        self,
        orders: Sequence[Order],
        states: Sequence[Mapping[str, Tensor]],
        watch: Callable[[Request], None] | None = None,
    ) -> list[Answer]:
        """Run the rule of every order to its answer, all in step, so that like requests meet; `watch` sees each.

        To each answer's report the engine adds `trained_samples`, the work that the rule asked for: how many
        training samples went backwards through the network, each time that they did.

        Raises:
            BadInput: single samples are to be hidden, and a rule looks at them otherwise than by private steps.
            TypeError: a rule returns no `Answer`.
        """
        guards = None
        if self.example_privacy is not None:
            guards = [OrderGuard(order.rule, self.training) for order in orders]
        retain_freed_memory()
        clients = [self.client(o, s) for o, s in zip(orders, states, strict=True)]
        works: list[Work] = [o.rule.run(c, o) for o, c in zip(orders, clients, strict=True)]
        answers: dict[int, Answer] = {}
        results: list[Result | None] = [None] * len(orders)
        efforts = [0] * len(orders)
        running = list(range(len(orders)))
        while running:
            asked: list[tuple[int, Request]] = []
            for i in running:
                try:
                    request = works[i].send(results[i])
                except StopIteration as end:
                    if not isinstance(end.value, Answer):
                        raise TypeError("a rule must return an Answer") from None
                    answer = end.value if guards is None else guards[i].censor(end.value)
                    report = {**answer.report, "trained_samples": float(efforts[i])}
                    kept, lengths = answer.client_state, answer.update_lengths
                    answers[i] = Answer(answer.uploads, answer.numbers, kept, report, lengths)
                else:
                    asked.append((i, request if guards is None else guards[i].admit(request)))
            if watch is not None:
                for _, request in asked:
                    watch(request)
            for kind in dict.fromkeys(type(r) for _, r in asked):
                same = [(i, r) for i, r in asked if type(r) is kind]
                found = self.answer([clients[i] for i, _ in same], [r for _, r in same])
                for (i, request), result in zip(same, found, strict=True):
                    results[i] = result
                    efforts[i] += request.backpropagated(clients[i].samples, self.training, not self.batch_norm)
            running = [i for i, _ in asked]
        given = [answers[i] for i in range(len(orders))]
        if self.upload_noise is None:
            return given
        return [self.upload_noise.hide(o, a) for o, a in zip(orders, given, strict=True)]


@torch.no_grad()
def check_output_shape(network: nn.Module, data: Data, features: tuple[int, ...]) -> None:
    """Let a network pass that gives what the task reads; that of plain classification is not looked at.

    Raises:
        BadInput: it gives something else for a sample, or cannot take one.
    """
    wanted = None if data.task.plain else data.task.shape(features, data.outputs)
    if wanted is None:
        return
    sample = torch.zeros(1, *features, dtype=torch.int64 if data.task.tokens else torch.float32)
    training = network.training
    network.eval()
    try:
        found = tuple(network(channels_first(sample)).shape[1:])
    except Exception as error:  # noqa: BLE001  # whatever a network of somebody's own raises
        if not data.task.tokens:
            return  # what a network takes is its own matter: it may look its samples up
        reason = str(error).split("\n", 1)[0]
        raise BadInput(
            f"the network cannot take tokens ({reason}); task.name = {data.task.name!r} needs one that does"
        ) from None
    finally:
        network.train(training)
    if found != wanted and not (len(wanted) == 1 and prod(found) == wanted[0]):
        raise BadInput(
            f"the network gives {format_shape(found)} numbers for a sample; with task.name = {data.task.name!r} it "
            f"must give {format_shape(wanted)}: name a network that does (network.name)"
        )
