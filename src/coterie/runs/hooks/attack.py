"""Hostile clients of a simulation (`runs/attack.py`): what they send, and how well their mark works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.clients.data.federation import Federation
from coterie.methods.exchange import Exchange, Log, Replies
from coterie.runs.attack import MarkedTests
from coterie.runs.hooks.hook import Hook
from coterie.runs.record import RoundResult

if TYPE_CHECKING:
    from coterie.runs.session import Session


class Hostile(Hook):
    """Lets hostile clients send what they send in truth, and logs how often the mark of a backdoor works."""

    @classmethod
    def is_on(cls, run: Session) -> bool:
        return run.attackers is not None

    def reply(self, exchange: Exchange, replies: Replies, result: RoundResult) -> Replies:
        attackers = self.run.attackers
        assert attackers is not None
        return attackers.strike(exchange, replies, result.number, result.exchanges)

    def round_played(self, result: RoundResult) -> None:
        """Log the success on the others' test images in rounds with an evaluation, where that can be known."""
        run, attackers = self.run, self.run.attackers
        assert attackers is not None
        due = run.experiment.evaluation.is_due(result.number, run.experiment.run.rounds)
        if attackers.attack.kind != "backdoor" or not due:
            return
        assert isinstance(run.population, Federation)  # attacks are simulated
        tests = MarkedTests.of(run.population, attackers)
        success = tests.measure_success(run.method.serving(result.state, run.server), run.runtime.outputs)
        if success is not None:
            run.runtime.logged.append(Log("attack success", success))
