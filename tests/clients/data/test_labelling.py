"""Labels as classes: in sorted order, or by the names that a model knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from coterie.clients.data.read.columns import Columns
from coterie.clients.data.read.datasets import check_and_convert
from coterie.clients.data.read.labelling import class_names, class_numbers, known_classes
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
        ([True, False], None),
        (np.array(["b", "a"], object), ("a", "b")),
    ],
)
def test_names_are_those_of_the_numbers(values: ArrayLike, names: tuple[str, ...] | None) -> None:
    columns = labelled(values)
    notes: list[str] = []
    numbers, classes = class_numbers(columns, notes)
    assert class_names(columns) == names
    assert bool(notes) == (names is not None)
    called = names or tuple(map(str, range(classes)))
    assert np.array_equal(known_classes(columns, called), numbers)


def test_classes_that_do_not_occur_keep_their_numbers() -> None:
    assert known_classes(labelled(["d", "b"]), ("a", "b", "c", "d")).tolist() == [3, 1]
    assert known_classes(labelled([7.0]), tuple(map(str, range(10)))).tolist() == [7]


def test_labels_that_are_no_class_are_refused() -> None:
    with pytest.raises(BadInput, match=r"a\.npz: label in row 1 is cow; the classes are cat, dog$"):
        known_classes(labelled(["cat", "cow", "pig"]), ("cat", "dog"))
    with pytest.raises(BadInput, match=r"label in row 0 is 30; the classes are 0, 1, .*, 11 and 8 more$"):
        known_classes(labelled([30]), tuple(map(str, range(20))))
    with pytest.raises(BadInput, match=r"label in row 1 is 0\.5; labels must be integers or strings"):
        known_classes(labelled([1, 0.5]), ("0", "1"))
    with pytest.raises(BadInput, match="all labels are cat; there must be at least two classes"):
        class_numbers(labelled(["cat", "cat"]), [])


def test_a_rare_class_of_two_is_said_where_nobody_named_a_task() -> None:
    rare, even, three = ([0] * 15 + [1] * 3), ([0, 1] * 9), ([0] * 15 + [1] * 2 + [2])
    (note,) = check_and_convert("a", labelled(rare)).notes
    assert note.startswith("the rarer of the two classes is 16.7% of the samples")
    assert "task.name = 'binary' shows AUROC" in note
    for values, task in ((even, None), (three, None), (rare, CLASSIFICATION), (rare, Binary())):
        assert not check_and_convert("a", labelled(values), task).notes
