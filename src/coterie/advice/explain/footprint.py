"""How much memory a run takes."""

from __future__ import annotations

import mmap
import multiprocessing
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

KIB = 1024


def resident_bytes() -> int:
    """Return this process's bytes in memory now; on macOS the most there ever were, 0 where nothing is said."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * mmap.PAGESIZE
    except OSError:
        if sys.platform != "darwin":
            return 0
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def worker_bytes() -> list[int]:
    """Return what each worker process shares with no other, in bytes; none where the system does not say."""
    found = []
    for process in multiprocessing.active_children():
        path = Path(f"/proc/{process.pid}/smaps_rollup")
        if process.name == "coterie worker" and path.exists():
            lines = [line.split() for line in path.read_text("ascii").splitlines()]
            found.append(sum(int(words[1]) * KIB for words in lines if words[0].startswith("Private_")))
    return found


def tensor_bytes(value: Any) -> int:
    """Return the bytes of all tensors and arrays in a value; one that occurs twice counts once."""
    return sum({id(v): v.nbytes for v in _vectors(value)}.values())


def _vectors(value: Any) -> Iterator[Tensor | np.ndarray[Any, Any]]:
    if isinstance(value, Tensor | np.ndarray):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _vectors(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _vectors(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _vectors(inner)
