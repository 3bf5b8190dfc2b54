"""Cores and threads. Results depend on the number of threads, so whoever computes for a run uses one.

The numbers of threads belong to the whole process. They are lowered while anybody computes, whichever thread of
the interpreter that is, and given back when nobody does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from threadpoolctl import ThreadpoolController


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Lowered:
    """A limit of the process that holds while any thread is inside; `lower` sets it and returns what lifts it."""

    def __init__(self, lower: Callable[[], Callable[[], None]]) -> None:
        self._lower = lower
        self._lock = Lock()
        self._inside = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._restore = self._lower()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._restore()


def _lower_torch() -> Callable[[], None]:
    before = torch.get_num_threads()
    return lambda: torch.set_num_threads(before)


class _Libraries:
    """The linear algebra libraries that are loaded in this process. Finding them takes 1 to 2 ms."""

    def __init__(self) -> None:
        self._modules = 0

    def lower(self) -> Callable[[], None]:
        """Limit them to one thread. They are searched for again when more modules have been imported."""
        if self._modules != len(sys.modules):
            self._modules = len(sys.modules)
            self._found = ThreadpoolController()
        limits = self._found.limit(limits=1, user_api="blas")
        return lambda: limits.restore_original_limits()


_torch, _blas = _Lowered(_lower_torch), _Lowered(_Libraries().lower)


@contextmanager
def one_thread(blas: bool = False) -> Iterator[None]:
    """PyTorch computes with one thread inside, and as before outside. May be entered again while inside.

    Args:
        blas: hold NumPy's and SciPy's linear algebra to one thread too, as far as they are loaded by now: for whole
            rounds and for the life of a process.
    """
    with _torch():
        torch.set_num_threads(1)  # each thread of the interpreter has a number of its own besides the process's
        if not blas:
            yield
            return
        with _blas():
            yield
