"""Signals at bad moments: Ctrl-C and SIGTERM must neither tear what belongs together nor be lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_Handler = Callable[[int, Any], Any]


@contextmanager
def defer_signals() -> Iterator[None]:
    """Deliver signals that have a handler only after the block, in their order.

    An exception that a handler raises while a library's native code asks Python something may come out of it as
    another exception, or not at all: polars makes a TypeError of a KeyboardInterrupt.
    """
    waiting: list[tuple[_Handler, int, Any]] = []
    is_deferring = True

    def defer(former: _Handler, number: int, frame: Any) -> None:
        if is_deferring:
            waiting.append((former, number, frame))
        else:
            former(number, frame)

    with _handle_signals(defer):
        try:
            yield
        finally:
            is_deferring = False
    for former, number, frame in waiting:
        former(number, frame)


@contextmanager
def insist_on_signals() -> Iterator[None]:
    """Let what a signal's handler raises in the block leave it, whatever a library makes of it; also a decorator.

    Python drops an exception that is raised while an object is removed, and native code may turn it into another
    one or into a wrong result. What was done in the block does not count then.
    """
    raised: list[BaseException] = []

    def note(former: _Handler, number: int, frame: Any) -> None:
        try:
            former(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    with _handle_signals(note):
        try:
            yield
        except BaseException as error:
            if raised and error not in raised:
                raise raised[-1] from None
            raise
    if raised:
        raise raised[-1]


@contextmanager
def _handle_signals(handle: Callable[[_Handler, int, Any], None]) -> Iterator[None]:
    """Call `handle` with the former handler where a signal of the two arrives that has one."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    former = {n: handler for n in (signal.SIGINT, signal.SIGTERM) if callable(handler := signal.getsignal(n))}

    def deliver(number: int, frame: Any) -> None:
        handle(former[signal.Signals(number)], number, frame)

    is_collected = False

    def restore() -> None:
        for number, handler in former.items():
            if not is_collected or signal.getsignal(number) is deliver:
                signal.signal(number, handler)

    try:
        for number in former:
            signal.signal(number, deliver)
        yield
    except GeneratorExit:
        # A signal cut the end of the block off, and this comes whenever the block is collected: whoever was around
        # it may have restored handlers already, and then they are right.
        is_collected = True
        raise
    finally:
        try:
            restore()
        finally:  # a signal may have cut it off
            restore()
