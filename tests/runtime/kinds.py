"""The runtimes that must answer alike, by name: in this process, in workers, and over bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from coterie.methods.exchange import Exchange, Replies
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from coterie.runtime.runtime import Runtime
from tests.federated import TRAINING, planted
from tests.loopback import LoopbackRuntime


def spec_of(
    clients: int, network: str = "planted-perceptron", engine: str = "sequential", samples: int = 20
) -> tuple[EngineSpec, NDArray[np.int64]]:
    """How to build the engine of planted clients, and how many training samples each has."""
    federation = planted(clients=clients, samples=samples)
    return EngineSpec(network, {}, federation.features, federation, TRAINING, 0, engine), federation.samples


def runtime_of(
    kind: str, clients: int = 8, network: str = "planted-perceptron", client_dropout: float = 0.0
) -> Runtime:
    """A runtime of planted clients: `alone` or `loopback`, or with `workers`, maybe `three`, maybe `batched`."""
    if "batched" in kind:
        network = "planted-perceptron"
    spec, samples = spec_of(clients, network, "batched" if "batched" in kind else "sequential")
    if kind == "loopback":
        return LoopbackRuntime(spec.build(), planted(clients=clients, samples=20).bounds, client_dropout)
    count = 3 if "three" in kind else 2 if "workers" in kind else 1
    return LocalRuntime(spec, samples, client_dropout, workers=count)


def runtimes(*kinds: str, **settings: Any) -> Any:
    """A fixture `runtime` of each of these kinds."""

    @pytest.fixture(params=kinds, name="runtime")
    def each(request: pytest.FixtureRequest) -> Iterator[Runtime]:
        with closing(runtime_of(request.param, **settings)) as runtime:
            yield runtime

    return each


def ask(runtime: Runtime, exchange: Exchange, number: int | None = 1) -> Replies:
    """Answer an exchange in a new round, or in the one that goes on."""
    if number is not None:
        runtime.begin_round(number)
    replies = runtime.answer(exchange)
    assert isinstance(replies, Replies)
    return replies


def kept(runtime: Any, client: int) -> Mapping[str, Tensor]:
    """What a client keeps, by name."""
    found: Mapping[str, Tensor] = (runtime.kept if isinstance(runtime, LoopbackRuntime) else runtime.states.of)(
        client
    )
    return found
