"""How much memory a run takes, and how much this machine has."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

KIB = 1024


def available_bytes() -> int | None:
    """Return the bytes that a new process may take without swapping; None where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("ascii").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * KIB
    except (OSError, KeyError):
        return None
    left = _container_bytes()
    return free if left is None else min(free, left)


def _container_bytes() -> int | None:
    """Return the bytes that a container's limit leaves; None where there is no limit."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text("ascii").strip()
        used = int((group / "memory.current").read_text("ascii"))
        numbers = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
    except (OSError, ValueError):
        return None
    # The kernel gives up cached pages of files when memory runs short.
    return None if limit == "max" else int(limit) - used + int(numbers.get("inactive_file", 0))


def resident_bytes() -> int:
    """Return this process's bytes in memory now; where the system does not say, the most there ever were."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * mmap.PAGESIZE
    except OSError:
        if sys.platform == "win32":
            return _working_set()
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * KIB


class _MemoryCounters(ctypes.Structure):
    """Windows' PROCESS_MEMORY_COUNTERS, as `GetProcessMemoryInfo` fills it."""

    _fields_ = (
        ("cb", ctypes.c_ulong),
        ("PageFaultCount", ctypes.c_ulong),
        ("PeakWorkingSetSize", ctypes.c_size_t),
        ("WorkingSetSize", ctypes.c_size_t),
        ("quotas and files", ctypes.c_size_t * 6),
    )


def _working_set() -> int:
    """Return the bytes of this process that Windows holds in memory."""
    if sys.platform != "win32":
        raise OSError("this is not Windows")
    counters = _MemoryCounters(cb=ctypes.sizeof(_MemoryCounters))
    this_process = ctypes.c_void_p(-1)
    if not ctypes.windll.psapi.GetProcessMemoryInfo(this_process, ctypes.byref(counters), counters.cb):
        raise OSError("Windows does not say how much memory this process has")
    return int(counters.WorkingSetSize)


def private_bytes(process: BaseProcess) -> int | None:
    """Return the bytes that a process shares with no other; None where the system does not say."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return None
    sizes = {name: rest for name, _, rest in (line.partition(":") for line in lines[1:])}
    return sum(int(sizes[name].split()[0]) * KIB for name in ("Private_Clean", "Private_Dirty") if name in sizes)


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
