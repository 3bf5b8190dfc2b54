"""Keeps a run's promise of privacy (`runs/promise.py`) in every round, and logs what is spent of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.grouping.noise import Noise, follow_quantile
from coterie.methods import Cohort
from coterie.methods.exchange import Exchange, Log
from coterie.methods.privacy import NoisyAggregation
from coterie.runs.hooks.hook import Hook
from coterie.runs.record import RoundResult

if TYPE_CHECKING:
    from coterie.runs.session import Session


class KeepPromise(Hook):
    """Adds the server's noise, or sees that each client tells under its own noise once a round.

    Where the server adds noise, each client is drawn by itself (Poisson sampling), as the promise supposes; so it
    may be nobody. It supposes too that nobody knows who was drawn, as whoever guesses the run's seed would.
    """

    def __init__(self, run: Session) -> None:
        super().__init__(run)
        self._clip_norm = self._next_clip_norm = run.experiment.privacy.clip_norm
        self._noisy: NoisyAggregation | None = None
        self._asked = np.zeros(run.server.n, np.bool_)

    @classmethod
    def is_on(cls, run: Session) -> bool:
        return run.promise is not None

    def server_view(self, cohort: Cohort) -> Cohort:
        promise, experiment, number = self.run.promise, self.run.experiment, cohort.round
        assert promise is not None
        self._asked[:] = False
        self._next_clip_norm = self._clip_norm
        if not self.run.adds_noise:
            return cohort
        share, n, randomness = experiment.run.participation, cohort.server.n, self.run.randomness
        noise = Noise(promise.multiplier, self._clip_norm, experiment.privacy.clip_quantile is not None)
        self._noisy = NoisyAggregation(noise, share * n, randomness.stream("privacy", round=number))
        drawn = randomness.stream("participation", round=number).random(n)
        server = replace(cohort.server, aggregation=self._noisy)
        return replace(cohort, clients=np.flatnonzero(drawn < share), server=server)

    def ask(self, exchange: Exchange) -> None:
        if self.run.adds_noise or not (exchange.rule.uploads or exchange.rule.client_state):
            return
        if self._asked[exchange.clients].any():
            raise RuntimeError(f"{self.run.experiment.method.name} asks a client twice in a private round")
        self._asked[exchange.clients] = True

    def row_limit(self, exchange: Exchange, name: str, number: int) -> float:
        return 0.0

    def round_played(self, result: RoundResult) -> None:
        promise, logged = self.run.promise, self.run.runtime.logged
        assert promise is not None
        if (noisy := self._noisy) is not None:
            if noisy.sums > 1:
                method = self.run.experiment.method.name
                raise RuntimeError(f"{method} asked for {noisy.sums} sums in a private round")
            quantile = self.run.experiment.privacy.clip_quantile
            if quantile is not None and noisy.sums:
                self._next_clip_norm = follow_quantile(self._clip_norm, noisy.short, quantile)
                logged.append(Log("clip norm", self._clip_norm))
        logged.append(Log("epsilon", promise.find_spent(result.number)))

    def round_ended(self, result: RoundResult) -> None:
        self._clip_norm = self._next_clip_norm

    def to_checkpoint(self) -> Mapping[str, Any]:
        return {"clip_norm": self._clip_norm} if self.run.adds_noise else {}

    def restore(self, memory: Mapping[str, Any]) -> None:
        self._clip_norm = memory.get("clip_norm", self._clip_norm)
