from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

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
    yield arrived
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_the_block_is_through(handled: list[int], number: signal.Signals) -> None:
    steps = []

    def work() -> None:
        with defer_signals():
            os.kill(os.getpid(), number)
            steps.append(len(handled))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == [0]
    assert handled == [number]


def test_the_handlers_are_back_afterwards(handled: list[int]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with defer_signals():
        pass
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


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


@pytest.mark.parametrize("interrupted", [1, 2, 3, 4])
def test_the_handlers_are_back_though_a_signal_comes_while_they_are_put_there_or_back(
    handled: list[int], monkeypatch: pytest.MonkeyPatch, interrupted: int
) -> None:
    """Else the other signal would wait for ever, and nothing would end such a run any more."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    install, calls = signal.signal, []

    def install_late(number: int, handler: Any) -> Any:
        calls.append(number)
        if len(calls) == interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        return install(number, handler)

    monkeypatch.setattr(signal, "signal", install_late)
    with pytest.raises(KeyboardInterrupt), defer_signals():
        pass
    monkeypatch.undo()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
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

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == [1]
    Dropping()
    assert handled == [signal.SIGINT] * 2


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


def test_errors_of_the_block_stay_what_they_are(handled: list[int]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), insist_on_signals():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before
    assert handled == []


def test_a_block_that_is_collected_late_leaves_handlers_that_are_right() -> None:
    """Where a signal cuts off how an inner block ends, Python ends it when it is collected: after the outer one."""
    before = signal.getsignal(signal.SIGINT)
    outer, inner = defer_signals(), insist_on_signals()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGINT) is before
    del inner
    gc.collect()
    assert signal.getsignal(signal.SIGINT) is before
    alone = defer_signals()
    alone.__enter__()
    del alone
    gc.collect()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("first", [0, 1])
def test_two_blocks_that_were_cut_off_are_left_in_any_order(first: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    blocks = [defer_signals(), insist_on_signals()]
    for block in blocks:
        block.__enter__()
    del block
    for place in (first, 0):
        del blocks[place]
        gc.collect()
    assert signal.getsignal(signal.SIGINT) is before


def test_what_was_raised_keeps_no_block_alive(handled: list[int]) -> None:
    """Its traceback leads to the block, which remembers it: neither would ever be collected, nor the block left."""
    before = signal.getsignal(signal.SIGINT)

    def cut_off() -> None:
        block = insist_on_signals()
        block.__enter__()
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        cut_off()
    gc.collect()
    assert signal.getsignal(signal.SIGINT) is before
    assert handled == [signal.SIGINT]


def test_a_signal_in_a_block_that_fails_is_delivered_all_the_same(handled: list[int]) -> None:
    def fail() -> None:
        with defer_signals():
            os.kill(os.getpid(), signal.SIGINT)
            raise OSError("the disk is full")

    with pytest.raises(KeyboardInterrupt) as caught:
        fail()
    assert isinstance(caught.value.__context__, OSError)
    assert handled == [signal.SIGINT]
