"""A few of the kills and interruptions of which `make storm` and `python -m tests.interruptions` make thousands."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.interruptions import Interruptions, draw_moments
from tests.processes import Processes
from tests.storm import Storm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who a process's workers are"),
]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def test_a_few_kills_lose_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    storm = Storm(Processes(tmp_path), 3, 0, said.append)
    assert storm.rage().startswith("3 kills (")
    assert storm.runs >= 1


@pytest.mark.usefixtures("interruptible", "nothing_frozen")
@pytest.mark.parametrize(("workers", "count"), [(1, 4), (2, 2)])
def test_a_run_ends_whenever_it_is_interrupted(tmp_path: Path, workers: int, count: int) -> None:
    interruptions, rng = Interruptions(tmp_path, workers), np.random.default_rng(5)
    assert len(interruptions.moments) > 10_000
    for number, moment in enumerate(draw_moments(interruptions.moments, count, rng)):
        interruptions.run(f"run-{number}", moment)
