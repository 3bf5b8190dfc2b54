"""Numbers of threads: one while something is computed, and what they were otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Event, Thread

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from coterie.clients.rules import Answer, Client, Order, Rule, Work, rule
from coterie.errors import BadInput
from coterie.methods.exchange import Exchange, Replies
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from coterie.runtime.runtime import Runtime
from coterie.runtime.threads import one_thread
from tests.federated import TRAINING, planted
from tests.loopback import LoopbackRuntime

SEVERAL = 3


@rule("test-threads")
@dataclass(frozen=True)
class Threads(Rule):
    """How many threads the client computes with."""

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        return Answer(numbers={"torch": float(torch.get_num_threads()), "blas": float(max(_blas()))})


@pytest.fixture(autouse=True)
def several() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(SEVERAL)
    with threadpool_limits(2, user_api="blas"):
        assert _blas() == [2] * len(_blas()) != []
        yield
    torch.set_num_threads(before)


def _blas() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def _runtime(kind: str) -> Runtime:
    federation = planted(clients=4, samples=20)
    spec = EngineSpec("planted-perceptron", {}, federation.features, federation, TRAINING, 0, "sequential")
    if kind == "loopback":
        return LoopbackRuntime(spec.build(), federation.bounds)
    return LocalRuntime(spec, federation.samples, workers=2 if kind == "workers" else 1)


def _threads(runtime: Runtime) -> Replies:
    runtime.begin_round(1)
    replies = runtime.answer(Exchange(np.arange(4), Threads()))
    assert isinstance(replies, Replies)
    return replies


@pytest.mark.parametrize("kind", ["local", "workers", "loopback"])
def test_clients_compute_with_one_thread_and_nobody_else_has_to(kind: str) -> None:
    runtime = _runtime(kind)
    try:
        assert torch.get_num_threads() == SEVERAL
        assert _threads(runtime).numbers["torch"].tolist() == [1.0] * 4
        assert torch.get_num_threads() == SEVERAL
        with one_thread(blas=True):
            assert _threads(runtime).numbers["blas"].tolist() == [1.0] * 4
    finally:
        runtime.close()
    assert torch.get_num_threads() == SEVERAL


def test_workers_hold_linear_algebra_to_one_thread_too() -> None:
    runtime = _runtime("workers")
    try:
        assert _threads(runtime).numbers["blas"].tolist() == [1.0] * 4
    finally:
        runtime.close()


def test_two_runtimes_side_by_side() -> None:
    first, second = _runtime("local"), _runtime("local")
    assert _threads(first).numbers["torch"].tolist() == [1.0] * 4
    first.close()
    assert _threads(second).numbers["torch"].tolist() == [1.0] * 4
    second.close()
    assert torch.get_num_threads() == SEVERAL


def test_a_runtime_that_cannot_be_built_leaves_nothing_behind() -> None:
    federation = planted(clients=4, samples=20)
    spec = EngineSpec("planted-perceptrons", {}, federation.features, federation, TRAINING, 0, "sequential")
    with pytest.raises(BadInput):
        LocalRuntime(spec, federation.samples, workers=1)
    assert torch.get_num_threads() == SEVERAL


@pytest.mark.parametrize("blas", [False, True])
def test_what_was_lowered_is_raised_again(blas: bool) -> None:
    before = _blas()
    with pytest.raises(ZeroDivisionError), one_thread(blas):  # noqa: PT012  # it must be raised inside
        with one_thread(not blas):
            assert torch.get_num_threads() == 1
            assert _blas() == [1] * len(before)
        assert torch.get_num_threads() == 1
        assert _blas() == ([1] * len(before) if blas else before)
        _ = 1 / 0
    assert torch.get_num_threads() == SEVERAL
    assert _blas() == before


def test_whoever_leaves_first_disturbs_nobody_who_is_still_inside() -> None:
    entered, leave, left = Event(), Event(), Event()

    def other() -> None:
        with one_thread():
            entered.set()
            leave.wait(30)
        left.set()

    thread = Thread(target=other)
    thread.start()
    assert entered.wait(30)
    with one_thread():
        leave.set()
        assert left.wait(30)
        assert torch.get_num_threads() == 1
    thread.join()
    assert torch.get_num_threads() == SEVERAL
