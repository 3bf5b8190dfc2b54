"""What a client reports is bounded before it counts."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
import pytest
import torch

from coterie.clients.rules import Answer, Evaluate, LocalUpdate, Order, Scored
from coterie.runtime.remote.validation import validate_answer

HeldOut = Literal["validation", "test"]

SIZES = (30, 5, 4)
"""Samples for training, validation and test."""


def scored(loss: Any = 0.5, actual: Any = (1, 3), samples: int = 4, **values: float) -> Scored:
    counts = np.array(actual, np.int64)
    return Scored(loss, counts, counts, counts, samples=samples, values=values)


def said_of(report: dict[str, Any], split: HeldOut = "test") -> str | None:
    order = Order(0, 1, Evaluate(split=split) if "score" in report else LocalUpdate(), {}, {}, {})
    uploads = {} if "score" in report else {"model": torch.zeros(1)}
    return validate_answer(order, Answer(uploads, {}, {}, report), SIZES, classes=2)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"train_loss": 10**400}, "train_loss = "),
        ({"train_loss": True}, "train_loss = 'True'"),
        ({"trained_samples": 1e300}, r"trained_samples = '1e\+300'"),
        ({"trained_samples": 10**400}, "trained_samples = "),
        ({"trained_samples": float("nan")}, "trained_samples = 'nan'"),
        ({"choice": 2**31}, "choice = '2147483648'"),
        ({"choice": 10**400}, "choice = "),
        ({"score": scored(actual=(2, 3), samples=5)}, "score .*5 .*4 "),
        ({"score": scored(actual=(0, 0), samples=0)}, "score .*0 .*4 "),
    ],
)
def test_what_cannot_be_is_refused(report: dict[str, Any], said: str) -> None:
    assert re.search(said, str(said_of(report)))


@pytest.mark.parametrize("loss", [10**400, -(10**400), "0.5", True])
def test_a_loss_that_no_table_holds_is_refused(loss: Any) -> None:
    assert str(said_of({"score": scored(loss)})).startswith("reported score = ")


@pytest.mark.parametrize(
    ("report", "split"),
    [
        ({"train_loss": float("nan")}, "test"),  # of training that diverged
        ({"train_loss": None, "trained_samples": 30, "choice": 1}, "test"),
        ({"score": scored()}, "test"),
        ({"score": scored(actual=(2, 3), samples=5)}, "validation"),
        ({"own": 10**400}, "test"),  # no table is made of it
    ],
)
def test_what_can_be_passes(report: dict[str, Any], split: HeldOut) -> None:
    assert said_of(report, split) is None
