"""Numbers of threads: one while something is computed, and what they were otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from threading import Event, Thread

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from coterie.clients.rules import Answer, Client, Order, Rule, Work, rule
from coterie.methods.exchange import Exchange
from coterie.runtime.runtime import Runtime
from coterie.runtime.threads import one_thread
from tests.runtime.kinds import ask, runtime_of

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


def _threads(runtime: Runtime) -> dict[str, set[float]]:
    return {name: set(values) for name, values in ask(runtime, Exchange(np.arange(4), Threads())).numbers.items()}


@pytest.mark.parametrize("kind", ["alone", "workers", "loopback"])
def test_clients_compute_with_one_thread_and_nobody_else_has_to(kind: str) -> None:
    with closing(runtime_of(kind, 4)) as runtime:
        assert torch.get_num_threads() == SEVERAL
        outside = _threads(runtime)
        assert outside["torch"] == {1.0}
        assert kind != "workers" or outside["blas"] == {1.0}
        assert torch.get_num_threads() == SEVERAL
        with one_thread(blas=True):
            assert _threads(runtime)["blas"] == {1.0}
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
