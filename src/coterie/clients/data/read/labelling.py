"""What labels are for, and which samples have none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clients.data.read.columns import MISSING_TEXTS, Columns
from coterie.clients.tasks import CLASSIFICATION, Regression, Task
from coterie.clients.tasks.classification import is_whole
from coterie.errors import BadInput

MOST_CLASSES = 20
"""Different whole numbers that are taken for classes whatever they are; of more, 0, 1, … and 1, 2, … alone."""


def choose_task(labels: NDArray[Any], notes: list[str]) -> Task:
    """Return what labels `[N]` are for; what many numbers were taken for is added to `notes`.

    Classification for texts and for numbers of at most 20 values or without a gap from 0 or 1 on; regression for
    other numbers. Named datasets have their own; clients who hold their data have classification.
    """
    if labels.ndim == 1 and labels.dtype.kind in "OSU":
        _find_names(labels, notes)
    if labels.dtype.kind not in "if" or labels.ndim != 1:
        return CLASSIFICATION
    values = np.unique(labels[~is_unlabelled(labels, are_classes=True)])
    count = len(values)
    if count <= MOST_CLASSES:
        return CLASSIFICATION
    first, last = values[0], values[-1]
    if first in (0, 1) and last - first == count - 1 and (values == np.floor(values)).all():
        notes.append(
            f"the labels, {count} whole numbers from {first:g} to {last:g}, are taken for classes; if they are "
            "amounts, add --set task.name=regression"
        )
        return CLASSIFICATION
    notes.append(
        f"the labels, {count:,} numbers from {first:g} to {last:g}, are taken for amounts, so this is a "
        "regression; if each is a class, add --set task.name=classification"
    )
    return Regression()


MOST_TEXTS = 1000
"""Different texts that are taken for classes whatever they are; of more, a class must have two samples or more."""


def _find_names(labels: NDArray[Any], notes: list[str]) -> None:
    """Say where texts `[N]` are rather names of samples than of classes: there are about as many as samples.

    Raises:
        BadInput: there are very many.
    """
    count = len(set(labels.tolist()))
    if 2 * count <= len(labels) or count <= MOST_CLASSES:
        return
    if count <= MOST_TEXTS:
        notes.append(
            f"{len(labels):,} samples have {count:,} different texts as labels, so this may be a column of names; "
            "data.label says which column is the outcome"
        )
    else:
        raise BadInput(
            f"{len(labels):,} samples have {count:,} different texts as labels, so this is probably a column of "
            "names; set data.label to the column of the outcome, or task.name = 'classification' if the texts are "
            "classes"
        )


RARE = 0.2
"""Share of the rarer of two classes below which accuracy says little."""


def advise_binary(targets: NDArray[Any]) -> list[str]:
    """Return a note on two classes `[N]` of which one is rare, that were taken for a classification unasked."""
    count = int(np.bincount(targets, minlength=2).min())
    if count >= RARE * len(targets):
        return []
    return [
        f"the rarer of the two classes is {count / len(targets):.1%} of the samples, so accuracy says little; "
        "task.name = 'binary' shows AUROC"
    ]


def is_unlabelled(labels: NDArray[Any], are_classes: bool) -> NDArray[np.bool_]:
    """Return which labels `[N]` say that there is none: empty ones, and -1 beside several classes from 0 on."""
    if labels.dtype.kind == "f":
        empty = np.isnan(labels)
    elif labels.dtype.kind == "O":
        empty = np.array([label is None or label in MISSING_TEXTS or label != label for label in labels], np.bool_)
    elif labels.dtype.kind in "SU":
        empty = np.isin(labels.astype(str), MISSING_TEXTS)
    else:
        empty = np.zeros(len(labels), np.bool_)
    if not are_classes or labels.dtype.kind not in "if":
        return np.asarray(empty)
    others = labels[~empty & (labels != -1)]
    from_zero = bool((others >= 0).all() and (others == np.floor(others)).all() and len(np.unique(others)) > 1)
    return empty | (labels == -1) if from_zero else np.asarray(empty)


def leave_out_unlabelled(columns: Columns, task: Task, notes: list[str]) -> Columns:
    """Return the samples that have a label; how many have none is added to `notes`.

    Raises:
        BadInput: none has.
    """
    assert columns.labels is not None
    if columns.labels.ndim != 1:
        return columns
    empty = is_unlabelled(columns.labels, task.one_class)
    if not empty.any():
        return columns
    if empty.all():
        raise BadInput(f"{columns.where}: no sample has a label; training needs some")
    have, were = ("has", "was") if empty.sum() == 1 else ("have", "were")
    notes.append(f"{empty.sum():,} of {len(empty):,} samples {have} no label and {were} left out")
    kept = columns.take(~empty)
    labels = kept.labels
    assert labels is not None
    if task.one_class and labels.dtype.kind == "f" and is_whole(labels).all():
        labels = labels.astype(np.int64)  # a table with gaps makes floats of whole numbers
    return replace(kept, labels=labels)


def to_plain_strings(values: NDArray[Any]) -> NDArray[Any]:
    """Strings of whatever kind as NumPy strings; anything else as it is."""
    return values.astype(str) if values.dtype.kind in "OS" else values
