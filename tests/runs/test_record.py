"""From what clients reported to the rows of a run's tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coterie.clients.rules import Scored
from coterie.methods.exchange import Replies
from coterie.runs.folder.metrics import CLASSIFICATION
from coterie.runs.record import RoundResult, Scores, client_rows, read_scores
from coterie.runtime.ledger import Ledger


def found(n: int) -> Scores:
    values = {"accuracy": np.full(n, 0.5), "f1": np.full(n, 0.5)}
    return Scores(values, np.full(n, 0.5), np.ones(n, np.bool_), np.zeros(n, np.int64))


def test_everybody_has_a_row_and_their_own_numbers() -> None:
    ledger = Ledger([(2, "down", "model", 10), (2, "up", "model", 5), (0, "down", "model", 10)])
    took_part = np.array([True, False, True])
    result = RoundResult(7, took_part, scores=found(3), train_loss={2: 0.25})
    rows = client_rows(result, np.zeros(3, np.int64), np.array([4, 5, 6]), ledger, CLASSIFICATION)
    assert rows["client"].to_list() == [0, 1, 2]
    assert rows["train_loss"].to_list() == [None, None, 0.25]
    assert rows["down_bytes"].to_list() == [40, 0, 40]
    assert rows["up_bytes"].to_list() == [0, 0, 20]


def test_who_has_no_group_gets_the_one_it_chose() -> None:
    score = Scored(0.5, *(np.array([2, 1]) for _ in range(3)))
    clients = np.arange(4)
    report: dict[str, list[Any]] = {"score": [score] * 3, "choice": [1, None, 0]}
    replies = Replies(clients[1:], np.ones(3, np.int64), {}, {}, report, {0: "vanished"})
    told = read_scores(replies, clients, np.array([-1, -1, 1, 1]), CLASSIFICATION)
    assert told.groups.tolist() == [-1, 1, 1, 1]
    assert np.isnan(told.values["accuracy"][0])
    assert told.values["accuracy"][1:].tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="zip"):
        read_scores(
            Replies(clients[1:], np.ones(3, np.int64), {}, {}, {"choice": [1]}, {}),
            clients,
            np.zeros(4, int),
            CLASSIFICATION,
        )
