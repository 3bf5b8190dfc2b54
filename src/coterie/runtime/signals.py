"""Signals at bad moments: Ctrl-C and SIGTERM must neither tear what belongs together nor be lost."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

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

    try:
        with _handle_signals(defer):
            try:
                yield
            finally:
                is_deferring = False
    finally:  # also where the block raised, whose error is then the context
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

    try:
        with _handle_signals(note):
            try:
                yield
            except GeneratorExit:  # cut off, and now collected: what was raised has been seen
                raise
            except BaseException as error:
                if raised and error not in raised:
                    raise raised[-1] from None
                raise
        if raised:
            raise raised[-1]
    finally:
        raised.clear()  # else what was raised would keep the block alive, and that what was raised


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


@dataclass(eq=False)
class _Block:
    """A block of code and who handles signals in it, who passes them on to whoever did before."""

    handle: Callable[[_Handler, int, Any], None]
    former: dict[int, _Handler]
    """What handled each signal when the block was entered; within another block that is `_deliver`."""


_blocks: list[ref[_Block]] = []
"""Those that the main thread is in, the innermost last, and those that a signal cut off and nobody collected yet.

Not one is kept from being collected: it may hold what a handler raised, and that what was going on."""

_before: dict[int, _Handler] = {}
"""What handled each signal before the outermost block was entered."""


def _deliver(number: int, frame: Any) -> None:
    _deliver_within(len(_blocks), number, frame)


def _deliver_within(count: int, number: int, frame: Any) -> None:
    """Have a signal handled by the innermost of the first so many blocks, which passes it on to those around it."""
    for place in reversed(range(count)):
        block = _blocks[place]()
        if block is not None and number in block.former:
            former = block.former[number]
            block.handle(partial(_deliver_within, place) if former is _deliver else former, number, frame)
            return
    _before[number](number, frame)


@contextmanager
def _handle_signals(handle: Callable[[_Handler, int, Any], None]) -> Iterator[None]:
    """Call `handle` with the former handler where a signal of the two arrives that has one."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    block = _Block(handle, {int(n): handler for n in numbers if callable(handler := signal.getsignal(n))})
    is_collected = False

    def leave() -> None:
        for number, handler in block.former.items():
            if not is_collected or (handler is not _deliver and signal.getsignal(number) is _deliver):
                signal.signal(number, handler)
        _blocks[:] = [one for one in _blocks if one() is not None and one() is not block]

    try:
        _before.update((number, handler) for number, handler in block.former.items() if handler is not _deliver)
        _blocks.append(ref(block))
        for number in block.former:
            signal.signal(number, _deliver)
        yield
    except GeneratorExit:
        # A signal cut the end of the block off, and this comes whenever the block is collected: whoever was around
        # it may have restored handlers already, and then they are right.
        is_collected = True
        raise
    finally:
        try:
            leave()
        finally:  # a signal may have cut it off
            leave()
