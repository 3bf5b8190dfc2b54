"""Ends a run whose validation loss no longer falls, with the models of its best round (`training.stop`)."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import BadInput
from coterie.methods import Cohort
from coterie.methods.exchange import Exchange, Log
from coterie.runs.hooks.hook import Hook
from coterie.runs.record import RoundResult, read_scores
from coterie.runtime.states import ClientStates

if TYPE_CHECKING:
    from coterie.runs.session import Session

PATIENCE = 5
"""Rounds without a lower validation loss after which a run ends."""


class EarlyStopping(Hook):
    """Scores every round on the clients' validation samples, and lets the last round return to the best one.

    The loss is the mean over the clients that have validation samples, each with the model that it is served. The
    round in which a run ends takes the method's state and what clients keep from the best round, and is evaluated
    with these. So the tables hold the cost of all rounds, and the scores and models of the best.
    """

    def __init__(self, run: Session) -> None:
        super().__init__(run)
        self._least, self._round = inf, 0
        self._now: tuple[float, int] = self._least, self._round
        self._best: dict[str, Any] | None = None

    @classmethod
    def is_on(cls, run: Session) -> bool:
        return run.experiment.training.stop == "validation"

    def server_view(self, cohort: Cohort) -> Cohort:
        if self._round and self._round == self.run.done:  # nothing of the round that begins has changed it
            self._best = {"state": self.run.state, **_copy_kept(self.run)}
        return cohort

    def ask(self, exchange: Exchange) -> None:
        if exchange.rule.client_state and not isinstance(self.run.runtime.states, ClientStates):
            raise BadInput(
                f"training.stop = 'validation' is not possible with {self.run.experiment.method.name} and real "
                "clients: each client keeps a part of its model, and the server cannot restore that of the best "
                "round; leave it out"
            )

    def round_played(self, result: RoundResult) -> None:
        run, number = self.run, result.number
        loss = self._validate(result.state)
        run.runtime.answer(Log("validation_loss", loss))
        self._now = (loss, number) if loss < self._least else (self._least, self._round)
        if self._is_over(number, self._now[1]):
            run.planned = number
        if number == run.planned and self._best is not None and self._now[1] < number:
            result.state = self._best["state"]
            _put_back(run, self._best)

    def round_ended(self, result: RoundResult) -> None:
        self._least, self._round = self._now
        if result.number == self.run.planned and 0 < self._round < result.number:
            self.run.tell(
                [
                    f"the validation loss was lowest after round {self._round} ({self._least:.4g}); the run ends "
                    f"in round {result.number} with the models of round {self._round}"
                ]
            )

    def to_checkpoint(self) -> Mapping[str, Any]:
        best = None if self._round == self.run.done else self._best
        return {"least_loss": self._least, "best_round": self._round, "best": best}

    def restore(self, memory: Mapping[str, Any]) -> None:
        self._least, self._round, self._best = memory["least_loss"], memory["best_round"], memory["best"]
        if self._is_over(self.run.done, self._round):
            self.run.planned = self.run.done

    def _is_over(self, number: int, best: int) -> bool:
        return best > 0 and number - best >= PATIENCE

    def _validate(self, state: Any) -> float:
        """Return the mean loss of all clients on their validation samples; NaN where nobody has a finite one."""
        run = self.run
        groups = run.method.assignment(state, run.server).groups
        exchange = run.method.evaluation(state, run.server, run.server.everyone, "validation", False)
        found = read_scores(run.runtime.measure(exchange), exchange.clients, groups[exchange.clients], run.metrics)
        losses = found.loss[found.tested].tolist()
        # A model that diverged at one client is no better for it.
        return float(np.mean(losses)) if losses and all(map(isfinite, losses)) else inf


def _copy_kept(run: Session) -> dict[str, dict[str, Tensor]]:
    """Return a copy of what clients keep, `[r, *shape]` by name, and of which clients it is."""
    states = run.runtime.states  # real clients keep nothing: they would have been refused
    rows = {name: states.rows(name) for name in states.names} if isinstance(states, ClientStates) else {}
    return {
        "kept": {name: torch.stack(values) for name, (_, values) in rows.items()},
        "has": {name: torch.tensor(clients) for name, (clients, _) in rows.items()},
    }


def _put_back(run: Session, best: Mapping[str, Any]) -> None:
    """Let clients keep what they kept after the best round; it can be undone like any update of a round."""
    states = run.runtime.states
    if not isinstance(states, ClientStates):
        return
    for name in dict.fromkeys([*best["kept"], *states.names]):
        owners = best["has"][name].tolist() if name in best["has"] else []
        before = dict(zip(owners, best["kept"][name], strict=True)) if owners else {}
        for client in sorted({*before, *states.rows(name)[0]}):
            states.update(client, {name: before.get(client)})
