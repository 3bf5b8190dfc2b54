"""What somebody is told whose method returns or serves what nobody can use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.clients.rules import LocalUpdate, rule
from coterie.errors import BadInput
from coterie.methods import Assignment, FedAvg
from coterie.methods.exchange import Exchange, Send


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """Its round returns nothing."""

    def round(self, state: Any, cohort: Any) -> Any:
        yield from super().round(state, cohort)


@dataclass(frozen=True)
class Short(FedAvg):
    """It serves all but one client."""

    def assignment(self, state: Any, server: Any) -> Assignment:
        return replace(super().assignment(state, server), groups=np.zeros(server.n - 1, np.int64))


@dataclass(frozen=True)
class Small(FedAvg):
    """It serves a part of a model."""

    def assignment(self, state: Any, server: Any) -> Assignment:
        found = super().assignment(state, server)
        return replace(found, models=found.models[:, :5])


@dataclass(frozen=True)
class Unasked(FedAvg):
    """Its round asks nobody."""

    def round(self, state: Any, cohort: Any) -> Any:
        return state


@dataclass(frozen=True)
class Miscounting(FedAvg):
    """It averages with a weight too few."""

    def round(self, state: Any, cohort: Any) -> Any:
        sent = {"model": Send.same(state.model[0], cohort.clients)}
        replies = yield Exchange(cohort.clients, LocalUpdate(), sent)
        groups, average = np.zeros(len(replies), np.int64), cohort.server.aggregation
        return replace(
            state, model=average.average_groups(replies.models, groups, state.model, replies.samples[1:])
        )


@rule("test-mistaken")
@dataclass(frozen=True)
class Mistaken(LocalUpdate):
    """It fails for every client."""

    def run(self, client: Any, order: Any) -> Any:
        raise AttributeError("no targets here")


@dataclass(frozen=True)
class Unprepared(FedAvg):
    """Its round needs an answer at least."""

    def round(self, state: Any, cohort: Any) -> Any:
        replies = yield Exchange(cohort.clients, Mistaken(), {"model": Send.same(state.model[0], cohort.clients)})
        np.argmax(replies.samples)
        return state


@dataclass(frozen=True)
class Confused(FedAvg):
    """One client fails, the others answer, and the mistake is the round's own."""

    def round(self, state: Any, cohort: Any) -> Any:
        yield Exchange(cohort.clients[:1], Mistaken(), {"model": Send.same(state.model[0], cohort.clients[:1])})
        yield Exchange(cohort.clients[1:], LocalUpdate(), {"model": Send.same(state.model[0], cohort.clients[1:])})
        raise KeyError("of the round")


@pytest.mark.parametrize(
    ("method", "error", "told"),
    [
        (Unasked, TypeError, "yield"),
        (Confused, KeyError, "of the round"),
        (Unprepared, BadInput, "'client 0' AttributeError: no targets here"),
        (Forgetful, TypeError, "Forgetful"),
        (Short, ValueError, r"Short .*\(3,\).*\(4,\)"),
        (Miscounting, ValueError, r"weights .*\(3,\).* 4 models"),
        (Small, ValueError, r"'model' .*\(1, 5\);.* \d+ "),
    ],
)
def test_a_sentence_says_what_is_wrong(
    method: type[FedAvg], error: type[Exception], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"name": "digits", "clients": 4, "samples_per_client": 20, "split": "iid"}
    run = {"rounds": 1, "workers": 1}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=told):
        coterie.run(coterie.Experiment(method=method, data=data, run=run))
