"""Where answers are put: sketches beside them, rows closed over who is missing, nothing overwritten later."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clients.rules import (
    Answer,
    Client,
    Evaluate,
    FullGradient,
    LocalUpdate,
    Order,
    PrivateUpdate,
    Rule,
    TrainOwn,
    Work,
    rule,
)
from coterie.methods.exchange import Exchange, Outputs, Send
from coterie.models.sketch import Sketch
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from coterie.runtime.runtime import Runtime
from tests.federated import TRAINING, planted
from tests.runtime import kinds
from tests.runtime.kinds import ask, runtimes

CLIENTS = 7
EVERYONE = np.arange(CLIENTS)
each = runtimes(
    *("alone", "batched", "workers", "batched workers", "three workers", "loopback"),
    clients=CLIENTS,
    network="planted-batch-norm",
)


def runtime_of(kind: str) -> Runtime:
    return kinds.runtime_of(kind, CLIENTS, "planted-batch-norm")


def start(runtime: Runtime) -> Tensor:
    return torch.linspace(-0.1, 0.1, runtime.layout.size)


# ---- sketches


def expected(runtime: Runtime, models: Tensor) -> Tensor:
    seen = runtime.layout.trainable
    return Sketch(seen.size, runtime.seed)(seen.take(models).nan_to_num(0.0))


@pytest.mark.medium
def test_sketches_of_what_was_sent(runtime: Runtime) -> None:
    assert runtime.layout.trainable.size > 512
    send = {"model": Send.same(start(runtime), EVERYONE)}
    replies = ask(runtime, Exchange(EVERYONE, LocalUpdate(), send))
    assert replies.sketches is not None
    assert torch.equal(replies.sketches, expected(runtime, replies.models))
    ((clients, seen),) = runtime.model_sketches
    assert clients.tolist() == EVERYONE.tolist()
    assert torch.equal(seen, replies.sketches)
    assert not torch.equal(replies.sketches[0], replies.sketches[1])


@pytest.mark.medium
def test_sketches_of_a_part_are_of_what_crossed(runtime: Runtime) -> None:
    """A method learns nothing of private layers; the run's picture is of the whole models that clients keep."""
    part = runtime.layout.first_layers(1)
    send = {"initial": Send.same(start(runtime), EVERYONE)}
    exchange = Exchange(EVERYONE, PrivateUpdate(), send, upload_part={"model": part})
    replies = ask(runtime, exchange)
    assert replies.models.isnan().any()
    assert replies.sketches is not None
    assert torch.equal(replies.sketches, expected(runtime, replies.models))
    if isinstance(runtime, LocalRuntime):  # nobody sees what a client on another machine keeps
        ((_, seen),) = runtime.model_sketches
        kept = torch.stack([runtime.states.of(c)["model"] for c in range(CLIENTS)])
        assert torch.equal(seen, expected(runtime, kept))
        assert not torch.equal(seen, replies.sketches)


@pytest.mark.medium
def test_sketches_of_what_is_kept_where_nothing_is_sent() -> None:
    for kind in ("alone", "workers"):
        with closing(runtime_of(kind)) as runtime:
            replies = ask(runtime, Exchange(EVERYONE, TrainOwn()))
            assert isinstance(runtime, LocalRuntime)
            kept = torch.stack([runtime.states.of(c)["model"] for c in range(CLIENTS)])
            assert replies.sketches is not None
            assert torch.equal(replies.sketches, expected(runtime, kept))


@pytest.mark.medium
def test_no_sketches_of_what_is_no_model(runtime: Runtime) -> None:
    send = {"model": Send.same(start(runtime), EVERYONE)}
    assert ask(runtime, Exchange(EVERYONE, FullGradient(), send)).sketches is None
    assert runtime.model_sketches == []
    assert runtime.measure(Exchange(EVERYONE, Evaluate(), send)).sketches is None
    nobody = ask(runtime, Exchange(EVERYONE[:0], LocalUpdate()))
    assert nobody.sketches is not None
    assert nobody.sketches.shape == (0, 512)


# ---- who is missing


@rule("test-odd")
@dataclass(frozen=True)
class Odd(Rule):
    """Send the own id everywhere; whoever has one of these ids sends NaN."""

    missing: tuple[int, ...] = ()
    large: int = 0
    uploads = ("model", "more")

    def shapes(self, layout: object) -> dict[str, tuple[int, ...]]:
        return {"more": (max(self.large, 3),)}

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        value = float("nan") if client.id in self.missing else float(client.id)
        shape = self.shapes(client.layout)["more"]
        return Answer({"model": torch.full((client.layout.size,), value), "more": torch.full(shape, value)})


@pytest.mark.parametrize("missing", [(), (0,), (6,), (2, 3), (0, 1, 3, 4, 5), tuple(range(CLIENTS))])
@pytest.mark.parametrize("large", [0, 400_000])
def test_rows_are_closed_over_who_is_missing(missing: tuple[int, ...], large: int) -> None:
    for kind in ("alone", "workers"):
        with closing(runtime_of(kind)) as runtime:
            replies = ask(runtime, Exchange(EVERYONE, Odd(missing, large)))
            there = [c for c in range(CLIENTS) if c not in missing]
            assert replies.clients.tolist() == there
            assert replies.models.shape == (len(there), runtime.layout.size)
            assert replies.models[:, -1].tolist() == replies.uploads["more"][:, -1].tolist() == there
            assert replies.sketches is not None
            assert torch.equal(replies.sketches, expected(runtime, replies.models))


# ---- memory


@pytest.mark.medium
def test_answers_stay_whatever_is_asked_later() -> None:
    """Large ones lie where workers have put them while anybody looks at a part of them, also once it is closed."""
    with closing(runtime_of("workers")) as runtime:
        large, small = (ask(runtime, Exchange(EVERYONE, Odd((), size))).uploads["more"] for size in (400_000, 10))
        row = large[3]
        for number in range(3):  # each would overwrite what the one before it gave, if it could
            others = ask(runtime, Exchange(np.arange(3, 7), Odd((), 400_000)), number).uploads["more"]
            assert others[:, 0].tolist() == [3.0, 4.0, 5.0, 6.0]
            assert large[:, 0].tolist() == small[:, 0].tolist() == EVERYONE.tolist()
        del large, others
        kept = ask(runtime, Exchange(EVERYONE, Odd((), 400_000))).uploads["more"]
        assert row.eq(3.0).all()
    assert kept[:, 0].tolist() == kept[:, -1].tolist() == EVERYONE.tolist()


@pytest.mark.medium
def test_what_came_back_is_sent_from_where_it_lies() -> None:
    runtime, alone = runtime_of("workers"), runtime_of("alone")
    try:
        matrix = torch.randn(300, runtime.layout.size)
        models = []
        for some in (runtime, alone):
            send = {"model": Send(matrix, EVERYONE)}
            first = ask(some, Exchange(EVERYONE, LocalUpdate(), send)).models
            again = {"model": Send(first, EVERYONE[::-1].copy())}
            models.append(ask(some, Exchange(EVERYONE, LocalUpdate(), again), 2).models)
        assert torch.equal(*models)
    finally:
        runtime.close()


@pytest.mark.medium
def test_nothing_can_be_sent() -> None:
    """A part may be empty, as where all layers are private."""
    found = []
    for kind in ("alone", "workers"):
        with closing(runtime_of(kind)) as runtime:
            nothing = runtime.layout.nothing
            model = {"model": Send.same(start(runtime), EVERYONE, nothing)}
            for send in ({"initial": Send.same(start(runtime), EVERYONE)} | model, model):
                replies = ask(runtime, Exchange(EVERYONE, PrivateUpdate(), send, upload_part={"model": nothing}))
                assert dict(replies.missing) == {}
                assert replies.models.isnan().all()
            assert isinstance(runtime, LocalRuntime)
            found.append(torch.stack([runtime.states.of(c)["model"] for c in range(CLIENTS)]))
    assert torch.equal(*found)


# ---- outputs


@pytest.mark.medium
@pytest.mark.parametrize(
    ("network", "engine", "count"),
    [
        ("planted-perceptron", "batched", 70),
        ("planted-batch-norm", "sequential", 131),
        ("planted-perceptron", "sequential", 0),
    ],
)
def test_outputs_are_the_same_whoever_computes_them(network: str, engine: str, count: int) -> None:
    federation = planted(clients=3, samples=20, public=300)
    spec = EngineSpec(network, {}, federation.features, federation, TRAINING, 0, engine)
    expected = spec.build()
    models = torch.rand(count, expected.layout.size) * 0.1 + 0.1  # no negative variances
    assert federation.public is not None
    ask = Outputs(models, federation.public, 2.0)
    whole = expected.outputs(models, federation.public, 2.0) if count else torch.empty(0, 300, 10)
    for processes in (1, 2):
        with closing(LocalRuntime(spec, federation.samples, workers=processes)) as runtime:
            first = runtime.answer(ask)
            assert isinstance(first, Tensor)
            assert torch.equal(first, whole)
            runtime.answer(Outputs(models * 2, federation.public))
            assert torch.equal(first, whole)  # not overwritten


def test_outputs_that_cannot_be_computed_are_an_error() -> None:
    with closing(runtime_of("workers")) as runtime:
        with pytest.raises(RuntimeError, match="outputs"):
            runtime.answer(Outputs(torch.zeros(3, 5), torch.zeros(4, 8, 8)))
        send = {"model": Send.same(start(runtime), EVERYONE)}
        assert len(ask(runtime, Exchange(EVERYONE, LocalUpdate(), send))) == CLIENTS
        assert runtime.notes == []
