"""What is to be known of the data is said by a run, by explain and in Python; small clients can train."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.runs.schema.experiment import Experiment


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    rng = np.random.default_rng(0)
    users = np.repeat(["a", "b", "c", "d"], [20, 20, 20, 1])
    np.savez(tmp_path / "users.npz", client=users, x=rng.normal(size=(61, 3)), y=np.arange(61) % 2)
    run = {"rounds": 2, "workers": 1, "folder": str(tmp_path / "runs")}
    return Experiment(method="fedavg", data=str(tmp_path / "users.npz"), run=run)


class Listener(coterie.Observer):
    """Keeps the notes of a run."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.medium
def test_notes_reach_observers_or_the_log(experiment: Experiment, caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener()
    with caplog.at_level(logging.WARNING, "coterie"):
        next(iter(coterie.rounds(experiment, [listener])))
        assert not caplog.messages
        next(iter(coterie.rounds(experiment)))
    assert listener.notes[0].endswith(": d (1)")
    assert caplog.messages[0] == f"note: {listener.notes[0]}"
    assert listener.notes[0] in coterie.explain(experiment).notes


@pytest.mark.medium
def test_a_client_without_test_samples_trains_and_counts_in_no_mean(experiment: Experiment) -> None:
    result = coterie.run(experiment.updated({"data.small_clients": "keep", "data.validation": 0.0}))
    last = result.clients.filter(result.clients["round"] == 2)
    assert last["test_samples"].to_list() == [4, 4, 4, 0]
    assert last["took_part"].to_list() == [True] * 4
    alone = last["accuracy"].to_list()
    assert alone[3] is None or np.isnan(alone[3])
    assert result.summary["macro_accuracy"] == pytest.approx(np.mean(alone[:3]))
