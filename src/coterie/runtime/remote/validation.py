"""Checks what a client on another machine answers before anything is done with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.clients.data.agree.own import SPLITS
from coterie.clients.rules.evaluate import Evaluate
from coterie.clients.rules.requests import Scored
from coterie.clients.rules.rule import Answer, Order
from coterie.clients.tasks import CLASSIFICATION, Task
from coterie.clients.tasks.measures import metrics_to_compute
from coterie.errors import count_of
from coterie.runtime.remote.handshake import MAX_COUNT

LARGEST = 2**53
"""Largest amount that a client may report: the last whole number before float64 has gaps."""


def validate_answer(
    order: Order, answer: Answer, sizes: Sequence[int], classes: int, task: Task = CLASSIFICATION
) -> str | None:
    """Return what is missing or impossible in an answer, or None where nothing is wrong.

    The shapes and the finiteness of its vectors are checked elsewhere (see `runtime.validate`).

    Args:
        order: what the client was asked.
        answer: its answer.
        sizes: training, validation and test samples that the client said it holds.
        classes: number of classes of the federation; 0 where a sample is not of one.
        task: what is learnt.
    """
    numbers = order.rule.numbers(order)
    missing = [name for name in order.rule.uploads if name not in (*answer.uploads, *order.rule.optional_uploads)]
    if missing := missing + [name for name in numbers if name not in answer.numbers]:
        return f"sent no {' and no '.join(missing)}"
    for name, (least, most) in numbers.items():
        value = answer.numbers[name]
        if not least <= value <= most:
            return f"sent {name} = {value:g}; it must be from {least:g} to {most:g}"
        if name == "choice" and value != int(value):
            return f"sent {name} = {value:g}; it must be a whole number"
    models = order.items["models"].values if "models" in order.items else ()
    measured = metrics_to_compute(task, classes)
    for name, value in answer.report.items():
        if not _is_possible(name, value, classes, len(models), measured):
            return f"reported {name} = {_said(value)}, which is not possible"
        if isinstance(value, Scored) and isinstance(order.rule, Evaluate):
            held = sizes[SPLITS.index(order.rule.split)]
            if value.samples != held:
                return (
                    f"reported {name} of {count_of(value.samples, 'sample')}; it said that it holds {held} of them"
                )
    return None


def _said(value: Any) -> str:
    """What a client reported, for a sentence; the digits of a whole number may be too many to be written."""
    vast = isinstance(value, int) and abs(value) > LARGEST
    return "a number without end" if vast else repr(str(value)[:80])


def _is_possible(name: str, value: Any, classes: int, models: int, measured: Sequence[str]) -> bool:
    """Whether a reported measurement can be of which tables are made; all others are ignored."""
    match name:
        case "train_loss":
            return _is_number_or_none(value)
        case "trained_samples":
            return isinstance(value, int | float) and 0 <= value <= LARGEST
        case "choice":
            return value is None or (type(value) is int and 0 <= value < (models or MAX_COUNT))
        case "score" | "adapted":
            return isinstance(value, Scored) and _is_score(value, classes, measured)
        case _:
            return True


def _is_number_or_none(value: Any) -> bool:
    """Whether it is one that float64 holds; the loss of training that diverged is not a number, or infinite."""
    return value is None or type(value) is float or (type(value) is int and abs(value) <= LARGEST)


def _is_score(value: Scored, classes: int, measured: Sequence[str]) -> bool:
    if not _is_number_or_none(value.loss):
        return False
    if type(value.samples) is not int or not 0 <= value.samples <= MAX_COUNT:
        return False
    if set(value.values) != set(measured) or not all(type(v) is float for v in value.values.values()):
        return False
    counts = (value.actual, value.predicted, value.correct)
    if any(c.shape != (classes,) or c.dtype != np.int64 or (c < 0).any() for c in counts):
        return False
    if classes and int(value.actual.sum()) != value.samples:
        return False
    return bool((value.correct <= np.minimum(value.actual, value.predicted)).all())
