"""Labels as classes: in sorted order, or by the names that a model knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from coterie.clients.data.read.columns import Columns
from coterie.clients.data.read.datasets import check_and_convert
from coterie.clients.tasks import CLASSIFICATION, Binary
from coterie.errors import BadInput


def labelled(values: ArrayLike) -> Columns:
    labels: np.ndarray[Any, Any] = np.asarray(values)
    return Columns("a.npz", np.zeros((len(labels), 2)), labels)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["eel", "cat", "eel"], ("cat", "eel")),
        ([5, 10, 7, 5], ("5", "7", "10")),
        ([0, 2, 1], None),
        ([1.0, 0.0], None),
        ([2.0, 0.0], ("0", "2")),
        ([True, False], ("False", "True")),
        (np.array(["b", "a"], object), ("a", "b")),
    ],
)
def test_names_are_those_of_the_numbers(values: ArrayLike, names: tuple[str, ...] | None) -> None:
    notes: list[str] = []
    targets = CLASSIFICATION.read_targets(np.asarray(values), "a.npz", notes)
    assert targets.names == names
    assert bool(notes) == (names is not None)
    known = CLASSIFICATION.read_targets(np.asarray(values), "a.npz", [], names or targets.classes)
    assert np.array_equal(known.values, targets.values)


def test_labels_are_those_of_known_classes() -> None:
    def read(values: ArrayLike, known: tuple[str, ...] | int) -> list[int]:
        found: list[int] = CLASSIFICATION.read_targets(np.asarray(values), "a.npz", [], known).values.tolist()
        return found

    assert read(["d", "b"], ("a", "b", "c", "d")) == [3, 1]
    assert read([7.0], 10) == [7]
    with pytest.raises(BadInput, match=r"a\.npz.*row 1.*cow.*cat, dog"):
        read(["cat", "cow", "pig"], ("cat", "dog"))
    with pytest.raises(BadInput, match=r"label.* row 0 .*30;.* 0, 1, .*, 11 .* 8 "):
        read([30], 20)
    with pytest.raises(BadInput, match=r"row 1 .*0\.5"):
        read([1, 0.5], 2)
    with pytest.raises(BadInput, match=r" cat; .* two "):
        CLASSIFICATION.read_targets(np.array(["cat", "cat"]), "a.npz", [])


def test_a_rare_class_of_two_is_said_where_nobody_named_a_task() -> None:
    rare, even, three = ([0] * 15 + [1] * 3), ([0, 1] * 9), ([0] * 15 + [1] * 2 + [2])
    (note,) = check_and_convert("a", labelled(rare)).notes
    assert all(part in note for part in ("16.7%", "task.name = 'binary'"))
    for values, task in ((even, None), (three, None), (rare, CLASSIFICATION), (rare, Binary())):
        assert not check_and_convert("a", labelled(values), task).notes
