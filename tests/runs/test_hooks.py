"""A hook of a run: when it is called, that it may change what a method hears, and that its memory is kept."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.methods import Cohort
from coterie.methods.exchange import Exchange, Replies
from coterie.runs.hooks import order
from coterie.runs.hooks.hook import Hook
from coterie.runs.hooks.screening import leave_out
from coterie.runs.loop import train
from coterie.runs.record import RoundResult
from coterie.runs.session import Session
from tests.interrupted import Stopping


class Strict(Hook):
    """Lets the first three clients take part, and hears nothing of the second."""

    def __init__(self, run: Session) -> None:
        super().__init__(run)
        self.calls: list[str] = []
        self.heard = 0

    def server_view(self, cohort: Cohort) -> Cohort:
        self.calls.append(f"view {cohort.round}")
        return replace(cohort, clients=cohort.clients[:3])

    def ask(self, exchange: Exchange) -> None:
        self.calls.append(f"ask {len(exchange.clients)}")

    def reply(self, exchange: Exchange, replies: Replies, result: RoundResult) -> Replies:
        self.calls.append(f"reply {len(replies)}")
        return leave_out(replies, {1: "is not heard"})

    def round_played(self, result: RoundResult) -> None:
        self.calls.append(f"played, {'not ' * (result.scores is None)}evaluated")

    def round_ended(self, result: RoundResult) -> None:
        self.calls.append(f"ended, {'not ' * (result.scores is None)}evaluated")
        self.heard += int(result.took_part.sum())

    def run_ended(self) -> list[str]:
        return [f"{self.heard} answers were heard"]

    def to_checkpoint(self) -> Mapping[str, Any]:
        return {"heard": self.heard}

    def restore(self, memory: Mapping[str, Any]) -> None:
        self.heard = memory["heard"]


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> coterie.Experiment:
    monkeypatch.setattr(order, "ORDER", (*order.ORDER, Strict))
    return coterie.Experiment(
        method="fedavg",
        data={"name": "digits", "clients": 4, "samples_per_client": 40},
        network={"name": "mlp", "hidden": [4]},
        run={"rounds": 2, "workers": 1, "folder": str(tmp_path), "name": "run"},
    )


def test_a_hook_is_called_in_order_and_whom_it_leaves_out_has_failed(experiment: coterie.Experiment) -> None:
    with closing(Session(experiment)) as session:
        events = list(train(session))
        calls = session.find(Strict).calls
    each = ["ask 3", "reply 3", "played, not evaluated", "ended, evaluated"]
    assert calls == ["view 1", *each, "view 2", *each]
    assert [event.metrics["participants"] for event in events] == [2, 2]
    assert events[0].failures == [(1, "is not heard")]


def test_what_a_hook_remembers_is_in_the_checkpoint(experiment: coterie.Experiment) -> None:
    cut = coterie.run(experiment, observers=[Stopping(1)])
    assert cut.status == "interrupted"
    coterie.resume(cut.folder)
    assert coterie.RunFolder(cut.folder).warnings() == ["4 answers were heard"]


def test_a_run_has_the_hooks_that_it_needs(experiment: coterie.Experiment) -> None:
    with closing(Session(experiment)) as session:
        names = {type(hook).__name__ for hook in session.hooks}
    assert names == {"Screening", "CountFailures", "DescribeGroups", "ModelSketches", "Divergence", "Strict"}
