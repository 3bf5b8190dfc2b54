"""Processes of cells start deaf to Ctrl-C, and whoever starts them hears it again afterwards, whatever happens."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable

import pytest

from coterie.runtime.signals import ignore_interrupts

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are blocked where there are masks")


def blocked() -> set[int]:
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


def interrupt() -> None:
    assert signal.SIGINT in blocked()
    os.kill(os.getpid(), signal.SIGINT)


def fail() -> None:
    raise OSError("no memory")


@pytest.mark.parametrize(("happens", "raised"), [(interrupt, KeyboardInterrupt), (fail, OSError)])
def test_what_happens_meanwhile_is_heard_and_leaves_nothing_blocked(
    happens: Callable[[], None], raised: type[BaseException]
) -> None:
    """Another thread may take the signal, so that it comes before the end of the block or with it."""
    with pytest.raises(raised), ignore_interrupts():
        happens()
    assert signal.SIGINT not in blocked()


def test_ctrl_c_just_before_leaves_nothing_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that arrives before it is blocked is delivered when it is: Python raises out of the very call."""
    block, delivered = signal.pthread_sigmask, list[int]()

    def deliver_late(how: int, mask: Iterable[int]) -> set[int]:
        former = block(how, mask)
        if set(mask) and not delivered:
            delivered.append(signal.SIGINT)
            raise KeyboardInterrupt
        return {int(number) for number in former}

    monkeypatch.setattr(signal, "pthread_sigmask", deliver_late)
    with pytest.raises(KeyboardInterrupt), ignore_interrupts():
        pass
    assert signal.SIGINT not in blocked()


def test_what_was_blocked_before_stays_so() -> None:
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with ignore_interrupts():
        pass
    found = blocked()
    signal.pthread_sigmask(signal.SIG_SETMASK, former)
    assert signal.SIGINT in found
