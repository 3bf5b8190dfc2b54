"""Moves the models of a run's groups by a server optimizer, and remembers its moments between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coterie.methods import Cohort
from coterie.methods.server_optimizer import ServerMoments, SteppingAggregation
from coterie.runs.hooks.hook import Hook
from coterie.runs.record import RoundResult

if TYPE_CHECKING:
    from coterie.runs.session import Session


class ServerOptimizer(Hook):
    """Lets the method average by `SteppingAggregation`, over noise where a promise has the server add it."""

    def __init__(self, run: Session) -> None:
        super().__init__(run)
        self._moments: ServerMoments | None = None
        self._stepping: SteppingAggregation | None = None

    @classmethod
    def is_on(cls, run: Session) -> bool:
        return run.experiment.aggregation.optimizer != "none"

    def server_view(self, cohort: Cohort) -> Cohort:
        step, inner = self.run.experiment.aggregation.server_step, cohort.server.aggregation
        assert step is not None
        self._stepping = SteppingAggregation(inner, step, cohort.server.layout, self._moments)
        return replace(cohort, server=replace(cohort.server, aggregation=self._stepping))

    def round_ended(self, result: RoundResult) -> None:
        assert self._stepping is not None
        self._moments = self._stepping.moments

    def to_checkpoint(self) -> Mapping[str, Any]:
        return {"server_moments": self._moments}

    def restore(self, memory: Mapping[str, Any]) -> None:
        self._moments = memory["server_moments"]
