"""Settings of the C allocator: freed memory stays with the process, for every step asks for it again."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # parameters of mallopt, from glibc's malloc.h
_MADV_HUGEPAGE = 14  # from the header of Linux
_LARGEST = 32 << 20
"""Bytes: glibc takes no higher threshold. Above it an allocation is a mapping of its own, new each time."""
_KEPT = 1 << 29
"""Bytes at the end of the heap that may lie idle before they go back to the system."""
_HUGE = 256 << 20
"""Bytes of the heap that are asked for in pages of 2 MiB. What is not touched takes no memory."""
_PAGE = 2 << 20


@cache
def retain_freed_memory() -> None:
    """Let this process, and those forked from it, keep freed memory for the next allocation.

    Activations and gradients of several megabytes come and go in every step. Usually glibc gives them back to the
    system and asks anew, and the system writes zeros into every page: a tenth of the time of a CNN's step, and
    more than a product needs that writes a gradient. In pages of 2 MiB the processor finds their addresses sooner.
    Does nothing where there is no glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
    libc.mallopt(_TRIM_THRESHOLD, _KEPT)
    libc.sbrk.argtypes, libc.sbrk.restype = [ctypes.c_ssize_t], ctypes.c_void_p
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    start = libc.sbrk(0)
    libc.mallopt(_TOP_PAD, _HUGE)
    libc.free(libc.malloc(_LARGEST - _PAGE))
    first, end = -(-start // _PAGE) * _PAGE, libc.sbrk(0)
    libc.mallopt(_TOP_PAD, 128 << 10)  # glibc's own
    if end > first:
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _MADV_HUGEPAGE)
