"""Clients go to the group whose model suits their samples, wherever a first guess has put them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.methods.likely_places import place_by_likelihood
from coterie.runs.schema.experiment import Experiment
from coterie.runs.session import Session
from coterie.runtime.runtime import drive

SIZE = 10
"""Samples in a half."""


@pytest.fixture
def session() -> Iterator[Session]:
    experiment = Experiment(
        data={"name": "digits", "split": "permuted-labels(2)", "clients": 10, "samples_per_client": 40},
        network="linear",
        method="fedavg",
        run={"workers": 1},
    )
    with closing(Session(experiment)) as session:
        session.runtime.begin_round(1)
        yield session


def place(session: Session, guess: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    asked = place_by_likelihood(session.server.everyone, guess, session.server, SIZE)
    return drive(asked, session.runtime.answer)


def test_who_was_put_elsewhere_comes_back(session: Session) -> None:
    truth = np.arange(10) % 2
    guess = truth.copy()
    guess[[0, 3, 6]] = 1 - guess[[0, 3, 6]]
    labels, halves = place(session, guess)
    np.testing.assert_array_equal(labels, truth)
    assert (halves == truth).mean() > 0.9


def test_one_group_stays_one(session: Session) -> None:
    labels, halves = place(session, np.zeros(10, np.int64))
    assert not labels.any()
    assert not halves.any()
