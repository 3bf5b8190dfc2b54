"""Counts failures of clients towards quarantine (`runtime/quarantine.py`), also of those that were left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.runs.hooks.hook import Hook
from coterie.runs.record import RoundResult


class CountFailures(Hook):
    """Has a round count towards quarantine, and notes who is not asked any more, or is asked again."""

    def round_ended(self, result: RoundResult) -> None:
        names, runtime = self.run.federation.names, self.run.runtime
        runtime.notes += [f"{names[client]} {change}" for client, change in runtime.quarantine.commit().items()]

    def to_checkpoint(self) -> Mapping[str, Any]:
        return self.run.runtime.quarantine.to_checkpoint()

    def restore(self, memory: Mapping[str, Any]) -> None:
        self.run.runtime.quarantine.restore(memory.get("quarantine", {}))
