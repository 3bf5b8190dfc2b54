"""Small federations with planted groups, and a loop without files: what the tests train on.

The planted generator is that of docs/methods/conventions.md: class prototypes plus noise, 20 clients of 100
samples, client i in group i mod K.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from torch import Tensor, nn

from coterie.clients.data.federation import Federation
from coterie.clients.engine.private_steps import ExamplePrivacy
from coterie.clients.rules import Training
from coterie.methods import Cohort, Method, ServerView
from coterie.methods.client_rows import VersionedRows
from coterie.methods.exchange import Ask, Exchange, Log, Replies
from coterie.models.networks import NETWORKS
from coterie.models.origin import initialise
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from coterie.runtime.runtime import Runtime, drive
from coterie.runtime.tensor_file import Stacked
from tests.loopback import LoopbackRuntime

TRAINING = Training(epochs=1, batch_size=20, lr=0.1)


class _Dense(nn.Linear):
    """Normal weights of deviation 1 / sqrt(fan-in) and no initial bias, as docs/methods/conventions.md has it."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.in_features**-0.5)
        nn.init.zeros_(self.bias)


@NETWORKS.add("planted-perceptron")
def perceptron(features: tuple[int, ...], classes: int) -> nn.Module:
    """64-32-10 with ReLU, the network of docs/methods/conventions.md."""
    return nn.Sequential(nn.Flatten(), _Dense(64, 32), nn.ReLU(), _Dense(32, classes))


@NETWORKS.add("planted-batch-norm")
def batch_norm(features: tuple[int, ...], classes: int) -> nn.Module:
    """64-16-10 with a norm over the batch behind the first layer: six tensors and two buffers in two layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))


def planted(
    kind: str = "feature",
    groups: int = 4,
    clients: int = 20,
    samples: int = 100,
    seed: int = 0,
    test: int = 20,
    sizes: Sequence[int] | None = None,
    public: int = 200,
) -> Federation:
    """Clients in planted groups that differ in features, labels, or the meaning of labels; or `iid`.

    The public samples show every class, unrotated.
    """
    rng = np.random.default_rng(seed)
    prototypes = rng.normal(size=(10, 8, 8))
    inputs, labels, bounds = [], [], []
    start = 0
    for client in range(clients):
        group = client % groups
        size = samples if sizes is None else sizes[client]
        total = size + test
        block = 10 // groups
        drawn = rng.integers(0, block, total) + group * block if kind == "label" else rng.integers(0, 10, total)
        images = prototypes[drawn] + rng.normal(size=(total, 8, 8))
        if kind == "feature":
            images = np.rot90(images, group * 4 // groups, (1, 2))
        if kind == "incongruent":
            drawn = (drawn + group) % 10
        inputs.append(np.ascontiguousarray(images))
        labels.append(drawn)
        bounds.append([start, start + size, start + size, start + total])
        start += total
    seen = prototypes[np.arange(public) % 10] + np.random.default_rng((seed, 1)).normal(size=(public, 8, 8))
    return Federation(
        "planted",
        torch.from_numpy(np.concatenate(inputs)).float()[..., None],
        torch.from_numpy(np.concatenate(labels)).long(),
        10,
        np.array(bounds),
        tuple(f"client {i}" for i in range(clients)),
        None if kind == "iid" else np.arange(clients) % groups,
        torch.from_numpy(seen).float()[..., None] if public else None,
        None,
    )


def grouped(kind: str, sizes: Sequence[int], seed: int = 0, samples: int = 100) -> Federation:
    """Clients in planted groups of the given sizes, in random order (`planted` has groups of one size)."""
    k = len(sizes)
    order = np.random.default_rng((seed, 2)).permutation(np.repeat(np.arange(k), sizes))
    whole = planted(kind, k, clients=k * max(sizes), samples=samples, seed=seed)
    taken = np.zeros(k, np.int64)
    bounds = []
    for group in order:
        bounds.append(whole.bounds[group + k * taken[group]])
        taken[group] += 1
    names = tuple(f"client {i}" for i in range(len(order)))
    return replace(whole, bounds=np.array(bounds), names=names, true_groups=order)


@dataclass
class Trained:
    """The end of a run without files."""

    states: list[Any]
    """The state after each round; the first is the start."""
    runtime: Runtime
    server: ServerView
    federation: Federation
    method: Method[Any]
    ledgers: list[list[tuple[int, str, str, int]]] = field(default_factory=list)
    asked: list[list[tuple[Exchange, Replies]]] = field(default_factory=list)
    logs: list[list[Log]] = field(default_factory=list)

    @property
    def state(self) -> Any:
        return self.states[-1]

    def groups(self) -> NDArray[np.int64]:
        return self.method.assignment(self.state, self.server).groups

    def ari(self) -> float:
        assert self.federation.true_groups is not None
        return float(adjusted_rand_score(self.federation.true_groups, self.groups()))

    def served(self) -> Tensor:
        """The model each client is evaluated with `[n, P]`."""
        assignment = self.method.assignment(self.state, self.server)
        rows = assignment.models[torch.from_numpy(assignment.served)]
        if not assignment.own:
            return rows
        assert isinstance(self.runtime, LocalRuntime)
        kept, initial = self.runtime.states, self.server.initial(0)
        own = torch.stack([kept.of(c).get(assignment.own, initial) for c in range(self.server.n)])
        return own if assignment.part is None else assignment.part.copy(own, rows)

    def accuracy(self) -> NDArray[np.float64]:
        """The test accuracy of each client."""
        everyone = self.server.everyone
        replies = self.runtime.measure(self.method.evaluation(self.state, self.server, everyone))
        scores = replies.report["score"]
        return np.array([s.correct.sum() / s.actual.sum() for s in scores])

    def logged(self, name: str, of: str = "") -> list[float | None]:
        """What was logged under a name, of a thing, one entry a round; None where nothing was."""
        found: list[float | None] = []
        for logs in self.logs:
            values = {log.name: log.values if isinstance(log.values, Mapping) else {"": log.values} for log in logs}
            found.append(values.get(name, {}).get(of))
        return found

    def bytes(self, direction: str, round: int) -> int:
        return sum(4 * scalars for _, way, _, scalars in self.ledgers[round - 1] if way == direction)


def train(
    method: Method[Any],
    federation: Federation,
    rounds: int = 3,
    *,
    training: Training = TRAINING,
    seed: int = 0,
    participation: float = 1.0,
    network: str | None = None,
    settings: Mapping[str, Any] | None = None,
    engine: str = "sequential",
    workers: int = 1,
    remote: bool = False,
    client_dropout: float = 0.0,
    timeout: float | None = None,
    shuffled: bool = False,
    example_privacy: ExamplePrivacy | None = None,
) -> Trained:
    """Train without files. `shuffled` hands the method its cohort in another order than by id.

    Without a `network` it is the perceptron of docs/methods/conventions.md, or a small one with Gaussian features
    where the method needs them; those have no batched engine, and take the sequential one whatever is asked for.
    """
    if network is None and method.needs.gaussian:
        network, settings, engine = "gaussian-mlp", settings or {"hidden": (16,), "dim": 8}, "sequential"
    network = network or "planted-perceptron"
    spec = EngineSpec(
        network,
        settings or {},
        federation.features,
        federation,
        training,
        seed,
        engine,
        example_privacy=example_privacy,
    )
    runtime: Runtime
    if remote:
        runtime = LoopbackRuntime(spec.build(), federation.bounds, client_dropout)
    else:
        runtime = LocalRuntime(spec, federation.samples, client_dropout, workers, timeout)
    builder = spec.build()
    server = ServerView(
        federation.samples,
        builder.layout,
        seed,
        lambda variant: initialise(builder.network, builder.layout, seed, variant),
        federation.public,
        features=federation.features,
        classes=federation.classes,
    )
    run = Trained([method.start(server)], runtime, server, federation, method)
    for number in range(1, rounds + 1):
        rng = np.random.default_rng((seed, number))
        clients = np.sort(rng.permutation(server.n)[: max(1, round(participation * server.n))])
        if shuffled:
            clients = rng.permutation(clients)
        runtime.begin_round(number)
        exchanged: list[tuple[Exchange, Replies]] = []

        def answer(ask: Ask, seen: list[tuple[Exchange, Replies]] = exchanged) -> Replies | Tensor | None:
            reply = runtime.answer(ask)
            if isinstance(ask, Exchange) and isinstance(reply, Replies):
                seen.append((ask, reply))
            return reply

        run.states.append(drive(method.round(run.state, Cohort(number, clients, server)), answer))
        run.ledgers.append(list(runtime.ledger.rows))
        run.asked.append(exchanged)
        run.logs.append([entry for entry in runtime.logged if isinstance(entry, Log)])
    if not remote:
        assert isinstance(runtime, LocalRuntime)
        if workers > 1 or timeout is not None:
            runtime.close()
    return run


def same(one: Any, other: Any) -> bool:
    """Whether two values have the same types, shapes and bits, all the way down."""
    if type(one) is not type(other):
        return False
    match one:
        case torch.Tensor():
            alike = one.dtype == other.dtype and one.shape == other.shape
            return bool(alike and one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes())
        case np.ndarray() | np.generic():
            return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
        case list() | tuple():
            return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
        case Mapping():
            return same(list(one.items()), list(other.items()))
        case Stacked():
            return same(list(one.rows), list(other.rows))
        case VersionedRows():  # versions of one matrix share a buffer
            return same(one.matrix.clone(), other.matrix.clone())
        case _ if hasattr(one, "__dict__"):
            return same(vars(one), vars(other))
        case _:
            return bool(one == other) or bool(one != one and other != other)


def without_client(federation: Federation, samples: int) -> Federation:
    """The federation with client 0 left with `samples` training samples."""
    bounds = federation.bounds.copy()
    bounds[0, 0] = bounds[0, 1] - samples
    return replace(federation, bounds=bounds)
