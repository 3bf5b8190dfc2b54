"""Signals at bad moments: Ctrl-C and SIGTERM must neither tear what belongs together nor be lost."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_Handler = Callable[[int, FrameType | None], Any]


def defer_signals() -> AbstractContextManager[None]:
    """Deliver signals that have a handler only after the block, in their order.

    An exception that a handler raises while a library's native code asks Python something may come out of it as
    another exception, or not at all: polars makes a TypeError of a KeyboardInterrupt.
    """
    return _Deferring()


def insist_on_signals() -> _Insisting:
    """Let what a signal's handler raises in the block leave it, whatever a library makes of it; also a decorator.

    Python drops an exception that is raised while an object is removed, and native code may turn it into another
    one or into a wrong result. What was done in the block does not count then.
    """
    return _Insisting()


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Start processes that ignore Ctrl-C; the parent handles it.

    On Windows they do not yet as they begin. They are to ignore it by themselves, too, as soon as they can.
    """
    if sys.platform == "win32":
        yield
        return
    from multiprocessing import resource_tracker

    former = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        resource_tracker.ensure_running()  # its own start would let Ctrl-C through again
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # may raise what has just arrived
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


class _Block:
    """A block of code in which `handle` is called where a signal of the two arrives that has a handler.

    It is no generator: what a signal cuts off would be ended when it is collected, and restore handlers that are
    others by then. A handler that is left behind passes signals on.
    """

    def __init__(self) -> None:
        self._former: dict[int, _Handler] = {}
        """What handled each signal before."""

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # handlers run in the main thread alone
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._former = {int(n): handler for n in numbers if callable(handler := signal.getsignal(n))}
        for number in self._former:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._former[number](number, frame)

    def _leave(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)


class _Deferring(_Block, AbstractContextManager[None]):
    def __init__(self) -> None:
        super().__init__()
        self._is_deferring = False
        self._waiting: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> None:
        super().__enter__()
        self._is_deferring = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_deferring:
            self._waiting.append((number, frame))
        else:
            super()._handle(number, frame)

    def __exit__(self, *raised: object) -> None:
        self._is_deferring = False
        self._leave()
        for number, frame in self._waiting:  # also where the block raised, whose error is then the context
            super()._handle(number, frame)


class _Insisting(_Block, ContextDecorator):
    def __init__(self) -> None:
        super().__init__()
        self._raised: BaseException | None = None

    def _recreate_cm(self) -> Self:
        return type(self)()  # each call of a decorated function has a block of its own

    def _handle(self, number: int, frame: FrameType | None) -> None:
        try:
            super()._handle(number, frame)
        except BaseException as error:
            self._raised = error
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        raised, self._raised = self._raised, None
        if raised is not None and error is not raised:
            raise raised from None
