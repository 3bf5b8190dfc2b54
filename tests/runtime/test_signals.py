"""Signals at bad moments wait or are insisted on, and whoever handled them before does so again afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType

import polars as pl
import pytest

from coterie.runtime.signals import defer_signals, insist_on_signals


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """Both signals raise KeyboardInterrupt; the list says which arrived."""
    arrived: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        raise KeyboardInterrupt

    former = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM)}
    before = [signal.getsignal(n) for n in former]
    yield arrived
    assert [signal.getsignal(n) for n in former] == before
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_the_outermost_block_is_through(handled: list[int], number: signal.Signals) -> None:
    steps = []

    def work() -> None:
        with defer_signals():
            with defer_signals():
                os.kill(os.getpid(), number)
                steps.append(len(handled))
            steps.append(len(handled))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == [0, 0]
    assert handled == [number]


def test_a_table_is_whole_though_the_signal_comes_while_it_is_made(handled: list[int]) -> None:
    class Interrupting(str):
        """Sends the signal at the very moment when native code asks for the value."""

        def __hash__(self) -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().__hash__()

    frame = None
    with pytest.raises(KeyboardInterrupt), defer_signals():
        frame = pl.DataFrame([{Interrupting("a"): 1}], schema={"a": pl.Int64})
    assert frame is not None
    assert frame["a"].to_list() == [1]
    assert handled == [signal.SIGTERM]


def test_an_ignored_signal_stays_ignored() -> None:
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with defer_signals():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, former)


def test_a_signal_in_a_block_that_fails_is_delivered_all_the_same(handled: list[int]) -> None:
    def fail() -> None:
        with defer_signals():
            os.kill(os.getpid(), signal.SIGINT)
            raise OSError("the disk is full")

    with pytest.raises(KeyboardInterrupt) as caught:
        fail()
    assert isinstance(caught.value.__context__, OSError)
    assert handled == [signal.SIGINT]


class Dropping:
    """Is interrupted while it is removed, when Python drops every exception."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_that_python_drops_leaves_the_block_all_the_same(handled: list[int]) -> None:
    steps = []

    @insist_on_signals()
    def work() -> None:
        Dropping()
        steps.append(len(handled))

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            work()
    assert steps == [1, 2]
    Dropping()
    assert handled == [signal.SIGINT] * 3


def test_an_interruption_that_a_library_makes_another_error_of_is_an_interruption(handled: list[int]) -> None:
    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise TypeError("not a number") from None

    with pytest.raises(KeyboardInterrupt), insist_on_signals():
        work()
    with pytest.raises(TypeError):
        work()
    assert handled == [signal.SIGTERM] * 2


@pytest.mark.parametrize("block", [defer_signals, insist_on_signals])
def test_errors_of_the_block_stay_what_they_are(
    handled: list[int], block: Callable[[], AbstractContextManager[None]]
) -> None:
    with pytest.raises(ZeroDivisionError), block():
        raise ZeroDivisionError
    assert handled == []
