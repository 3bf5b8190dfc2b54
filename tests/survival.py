"""What a method must survive: few clients, little data, absences, batch norm, and a kill between two rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.clients.data.federation import Federation
from coterie.clients.engine.engine import Engine
from coterie.clients.rules import Client, LocalUpdate, Order
from coterie.clients.rules.requests import Request
from coterie.methods import Cohort, Method
from coterie.models.networks import NETWORKS
from coterie.runtime.checkpoint import Checkpoints
from coterie.runtime.local.runtime import LocalRuntime
from coterie.runtime.runtime import drive
from tests.federated import Trained, planted, same, train, without_client

SIZES = [40 + 3 * i for i in range(20)]


@NETWORKS.add("narrow-batch-norm")
def narrow(features: tuple[int, ...], classes: int) -> nn.Module:
    """64-16-16-10 with batch norm behind the first layer and the second: three layers, and buffers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Linear(16, classes),
    )


def local(run: Trained) -> LocalRuntime:
    assert isinstance(run.runtime, LocalRuntime)
    return run.runtime


def asked(run: Trained, client: int, round: int, request: Request) -> Any:
    """What the engine answers a client in a round, asked directly."""
    engine: Engine = local(run).engine
    me: Client = engine.client(Order(client, round, LocalUpdate(), {}), {})
    (result,) = engine.answer([me], [request])
    return result


def kept(run: Trained, name: str) -> list[Tensor | None]:
    """What each client keeps under a name."""
    return [local(run).states.of(client).get(name) for client in range(run.server.n)]


def assert_survives(
    method: Method[Any], rounds: int, network: Mapping[str, Any], normed: Mapping[str, Any]
) -> None:
    """Ends with finite models for everybody, whoever is there, and whatever little they have.

    Args:
        method: what is trained with.
        rounds: how many there are.
        network: what `train` is told of a network without batch norm.
        normed: the same of one with it.
    """
    federation = planted("feature", clients=8, samples=40)
    tiny = without_client(federation, 1)
    rare = {"participation": 0.5, "client_dropout": 0.3}
    for clients, settings in (
        (without_client(planted("feature", clients=1), 1), normed),
        (tiny, {**normed, **rare}),
        (replace(tiny, labels=torch.zeros_like(tiny.labels)), {**network, **rare}),
        (federation, {**network, "client_dropout": 0.999999}),
    ):
        run = train(method, clients, rounds, **settings)
        server = run.server
        for last in (False, True):
            replies = run.runtime.measure(method.evaluation(run.state, server, server.everyone, last=last))
            assert len(replies) == server.n, replies.missing
            assert all(np.isfinite(s.loss) for s in replies.report["score"])
        newcomers = replace(server, samples=np.append(server.samples, server.samples[:1]))
        joined = drive(method.newcomer(run.state, np.array([0]), newcomers), run.runtime.answer)
        assert torch.isfinite(joined.models).all()
        assert len(joined.groups) == 1


def assert_resumes(method: Method[Any], folder: Path, rounds: int = 5, **settings: Any) -> None:
    """Taken up after every round, from its checkpoint and by a fresh runtime, it goes through the same bits."""
    federation = planted("feature", clients=8, sizes=SIZES[:8])
    settings = {"participation": 0.5, "client_dropout": 0.2} | settings
    whole = train(method, federation, rounds, **settings)
    checkpoints, run = Checkpoints(folder, "mine"), train(method, federation, 0, **settings)
    for number in range(1, rounds + 1):
        checkpoints.save(number, {"state": run.state, **local(run).states.to_checkpoint()})
        found = checkpoints.latest()
        assert found is not None
        _, memory, _ = found
        run = train(method, federation, 0, **settings)
        local(run).states.restore(memory["kept"], memory["has"])
        run.states = [memory["state"]]
        _play(run, federation, number, settings["participation"])
        assert same(run.state, whole.states[number])
    assert _same_kept(local(run), local(whole))
    assert run.accuracy().tolist() == whole.accuracy().tolist()


def _play(run: Trained, federation: Federation, number: int, participation: float) -> None:
    """One round, with the cohort that `train` draws."""
    n = federation.n
    clients = np.sort(np.random.default_rng((0, number)).permutation(n)[: max(1, round(participation * n))])
    run.runtime.begin_round(number)
    run.states.append(drive(run.method.round(run.state, Cohort(number, clients, run.server)), run.runtime.answer))


def _same_kept(one: LocalRuntime, other: LocalRuntime) -> bool:
    for client in range(len(one.samples)):
        ours, theirs = one.states.of(client), other.states.of(client)
        if ours.keys() != theirs.keys() or any(not torch.equal(ours[k], theirs[k]) for k in ours):
            return False
    return True
