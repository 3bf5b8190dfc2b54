"""A run's checkpoints: whose they are, and when one is written."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.registry import keys_deciding
from coterie.runtime.checkpoint import Checkpoints

CHECKPOINT_TIME_SHARE = 0.05
"""Share of the time that checkpoints may take where `run.checkpoint_every` does not say when they are written."""

FLUSH_SECONDS = 1.0
"""Seconds after which readers of a run's folder are shown the finished rounds, whenever checkpoints are due."""


def open_checkpoints(folder: RunFolder) -> Checkpoints:
    """Return the checkpoints in a run's folder; those of an experiment that trains otherwise are refused."""
    decisive = keys_deciding("training", folder.experiment())
    identity = blake2b(json.dumps(decisive, sort_keys=True).encode(), digest_size=16).hexdigest()
    return Checkpoints(folder.path / "checkpoints", identity)


class CheckpointSchedule:
    """When a checkpoint is written: every so many rounds, or as often as takes `CHECKPOINT_TIME_SHARE` of the time.

    No bit of a run depends on it, only how much work a kill can cost: at most as long as the last checkpoint took,
    divided by that share, and a round.
    """

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._cost = 0.0
        self._last_checkpoint = self._last_flush = 0.0

    def is_due(self, number: int) -> bool:
        """Return whether a checkpoint is to be written after round `number`."""
        if self._every is not None:
            return number % self._every == 0
        return time.perf_counter() - self._last_checkpoint >= self._cost / CHECKPOINT_TIME_SHARE

    @contextmanager
    def time_checkpoint(self) -> Iterator[None]:
        """Note how long it takes to write a checkpoint in the block."""
        started = time.perf_counter()
        yield
        self._last_checkpoint = time.perf_counter()
        self._cost = self._last_checkpoint - started

    def flush_is_due(self) -> bool:
        """Return whether readers of the folder have seen nothing new for `FLUSH_SECONDS`."""
        return time.perf_counter() - self._last_flush >= FLUSH_SECONDS

    def flushed(self) -> None:
        """Note that readers of the folder now see all finished rounds."""
        self._last_flush = time.perf_counter()
