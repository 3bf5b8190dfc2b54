"""What every benchmark needs: ways timed in turn, the machine they ran on, and the file that keeps the numbers."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.smoke import Arguments


def machine() -> dict[str, Any]:
    """The machine and the versions that the numbers depend on: processor, cores, memory in GiB, libraries."""
    import numpy as np
    import torch

    from coterie.runtime.threads import cores

    return {
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def measured(
    ways: Mapping[str, Callable[[], None]], repeats: int, most_seconds: float = inf
) -> dict[str, list[float]]:
    """Seconds of each way `[repeats]`, timed in turn; one more run of each, the first, is not counted.

    After `most_seconds` no turn begins but the first that counts.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + most_seconds
    for repeat in range(repeats + 1):
        if repeat > 1 and time.perf_counter() > end:
            break
        for name, once in ways.items():
            start = time.perf_counter()
            once()
            if repeat:
                found[name].append(time.perf_counter() - start)
    return found


def median(values: Sequence[float]) -> float:
    """The middle one of the values, at least one."""
    return float(statistics.median(values))


def ratios(base: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """How many times longer `base` took than `other`: of the medians, then the least and the most of any repeat.

    Both were timed in turn, so that the repeats of one index ran side by side and share the machine's moods.
    """
    each = [a / b for a, b in zip(base, other, strict=True)]
    return median(base) / median(other), min(each), max(each)


def write(path: Path | str | None, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep a benchmark's rows as JSON, with the machine they were measured on; nothing where there is no path."""
    from coterie.studies.rows import write_rows

    if path is None:
        return
    found = {"benchmark": name, "machine": machine(), "rows": [dict(row) for row in rows]}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(write_rows(found, {"rows": 1}), encoding="utf-8")


def arguments(name: str, doc: str | None, smoke: Mapping[str, Any], repeats: int | None = 5) -> Arguments:
    """A benchmark's command line with --json, and with --repeats unless that is None, for others to be added to."""
    parser = Arguments(name, doc, smoke)
    if repeats is not None:
        parser.add_argument("--repeats", type=int, default=repeats, help="how often each way is timed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also keep the rows in this file")
    return parser


def _processor() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
