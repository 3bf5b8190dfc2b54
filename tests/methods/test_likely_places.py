"""Clients go to the group whose model suits their samples, wherever a first guess has put them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.methods.likely_places import Placed, choose_groups, place_by_likelihood
from coterie.runs.schema.experiment import Experiment
from coterie.runs.session import Session
from coterie.runtime.runtime import drive

SIZE = 10
"""Samples in a half."""


def open_session(split: str) -> Session:
    data = {"name": "digits", "split": split, "clients": 10, "samples_per_client": 40}
    session = Session(Experiment(data=data, network="linear", method="fedavg", run={"workers": 1}))
    session.runtime.begin_round(1)
    return session


@pytest.fixture
def session() -> Iterator[Session]:
    with closing(open_session("permuted-labels(2)")) as session:
        yield session


def place(session: Session, guess: NDArray[np.int64]) -> Placed:
    asked = place_by_likelihood(session.server.everyone, guess, session.server, SIZE)
    return drive(asked, session.runtime.answer)


def test_who_was_put_elsewhere_comes_back(session: Session) -> None:
    truth = np.arange(10) % 2
    guess = truth.copy()
    guess[[0, 3, 6]] = 1 - guess[[0, 3, 6]]
    placed = place(session, guess)
    np.testing.assert_array_equal(placed.labels, truth)
    assert (placed.halves == truth).mean() > 0.9
    assert placed.held_out.mean() < place(session, np.zeros(10, np.int64)).held_out.mean()


def test_one_group_stays_one(session: Session) -> None:
    placed = place(session, np.zeros(10, np.int64))
    assert placed.count == 1
    assert not placed.halves.any()


@pytest.mark.parametrize(("split", "groups"), [("permuted-labels(2)", 2), ("iid", 1)])
def test_as_many_groups_are_chosen_as_predict_best(split: str, groups: int) -> None:
    numbers = np.arange(10)
    guesses = [numbers * 0, numbers % 2, numbers % 2 + 2 * (numbers > 5), numbers % 5]
    with closing(open_session(split)) as session:
        asked = choose_groups(session.server.everyone, guesses, session.server, SIZE)
        placed = drive(asked, session.runtime.answer)
    labels, halves = placed.relabelled()
    assert placed.count == len(np.unique(labels)) == groups
    assert halves.max() < groups
