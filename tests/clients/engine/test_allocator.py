"""Freed memory that is kept."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from coterie.clients.engine.allocator import retain_freed_memory

def step():
    return [torch.empty(1_500_000).fill_(1.0) for _ in range(4)]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "kept":
    retain_freed_memory()
    retain_freed_memory()
for _ in range(5):
    step()
print(faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_pages_are_asked_for_once() -> None:
    """24 MB that come and go are 5,900 pages of 4 KiB each time, unless they are kept."""
    # Whether glibc keeps memory of itself depends on what lies behind it: here it is told not to.
    usually = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
    usual, kept = (
        int(
            subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, check=True, env=usually).stdout
        )
        for how in ("usual", "kept")
    )
    assert kept < 2_000 < 20_000 < usual
