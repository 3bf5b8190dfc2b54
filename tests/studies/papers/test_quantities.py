"""Quantities read from a run folder whose tables are written by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from coterie.grouping.label_divergence import label_divergence
from coterie.runs.folder.metrics import CLASSIFICATION
from coterie.runs.folder.picture import Picture
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import FEDERATION
from coterie.studies.papers.quantities import AtLeast, Quantity, built_in
from tests.studies.compare import by_hand

BUILT_IN = built_in(CLASSIFICATION)

ACCURACY = [0.5, None, 0.8, 0.7]
"""Of each round; the second was not evaluated."""

LOGGED = {
    # name: round -> part -> value
    "lambda": {1: {"0": 1.0, "1": 3.0, "2": 8.0}, 4: {"0": 2.0, "1": 5.0, "2": 9.0}},
    "gap1": {1: {"conv1": -0.5, "conv2": -0.3, "fc": 0.1}, 3: {"conv1": 0.2, "conv2": 0.6, "fc": 0.3}},
    "hopkins": {1: {"": 0.4}, 2: {"": 0.9}, 3: {"": 0.6}},
    "fired": {2: {"": 0.0}, 4: {"": 1.0}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = by_hand.folder(tmp_path_factory.mktemp("runs"), "run", ACCURACY, planted=False, log=LOGGED)
    run.write_federation(
        pl.DataFrame(
            {
                "client": [0, 1, 2],
                "name": ["a", "b", "c"],
                "true_group": [None, None, None],
                "few_shot": [True, False, False],
                "train": [10, 10, 10],
                "validation": [0, 0, 0],
                "test": [2, 2, 2],
                "labels": [[10, 0], [8, 2], [0, 10]],
            },
            schema=FEDERATION,
        )
    )
    return run


def read(folder: RunFolder, **keys: Any) -> float | AtLeast:
    return Quantity(**keys).read(folder, "macro_accuracy", len(ACCURACY))


def is_nan(value: float | AtLeast) -> bool:
    return isinstance(value, float) and math.isnan(value)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        ({"log": "hopkins", "at": "max"}, 0.9),
        ({"log": "hopkins", "at": "min"}, 0.4),
        ({"log": "hopkins", "at": "first"}, 0.4),
        ({"log": "hopkins", "at": "last"}, 0.6),
        ({"log": "hopkins", "at": "sum"}, 1.9),
        ({"log": "hopkins", "at": "mean"}, 1.9 / 3),
        ({"log": "hopkins", "at": "max", "unit": "%"}, 90.0),
        ({"log": "hopkins", "at": "count"}, 3.0),
        ({"log": "hopkins", "share_above": 0.5}, 2 / 3),
        ({"log": "hopkins", "share_above": 0.4, "unit": "%"}, 200 / 3),
        ({"log": "hopkins", "round": 2}, 0.9),
        ({"log": "hopkins", "round": 4}, 0.6),
        ({"log": "gap1", "of": "fc", "at": "last"}, 0.3),
        ({"log": "gap1", "of": "conv*", "at": "last"}, 0.4),
        ({"log": "gap1", "of": "conv*", "first_above": 0.0}, 3.0),
        ({"log": "gap1", "of": "fc", "first_above": 0.0}, 1.0),
        ({"log": "gap1", "of": "conv*", "first_below": -0.3}, 1.0),
        # Never, so beyond the last round.
        ({"log": "gap1", "of": "conv*", "first_above": 0.4}, AtLeast(5.0)),
        ({"log": "lambda", "of": "@few_shot", "at": "last"}, 2.0),
        ({"log": "lambda", "of": "@others", "at": "first"}, 5.5),
        ({"measure": "macro_accuracy", "at": "max"}, 0.8),
        ({"measure": "macro_accuracy", "round": 2}, 0.5),
        ({"measure": "macro_accuracy", "round": 30, "unit": "%"}, 70.0),
        ({"measure": "macro_accuracy", "at": "mean"}, 2.0 / 3),
        ({"measure": "macro_accuracy", "drop_at": "fired", "unit": "%"}, 10.0),
        ({"measure": "groups", "at": "min"}, 1.0),
        ({"measure": "groups", "first_above": 2}, 3.0),
        ({"rounds_to": 0.8}, 3.0),
        ({"rounds_to": 0.81}, AtLeast(5.0)),
    ],
)
def test_a_number_of_a_run(folder: RunFolder, keys: dict[str, Any], value: float | AtLeast) -> None:
    assert read(folder, **keys) == (value if isinstance(value, AtLeast) else pytest.approx(value))


@pytest.mark.parametrize(
    "keys",
    [
        {"log": "nobody logs this", "at": "max"},
        {"log": "nobody logs this", "first_above": 0.0},
        {"log": "gap1", "at": "max"},  # no part of it is nameless
        {"log": "lambda", "of": "conv*", "at": "max"},
        {"measure": "macro_accuracy", "drop_at": "hopkins"},  # above 0 from the first round on
        {"measure": "macro_accuracy", "drop_at": "nobody logs this"},
        {"measure": "ari", "at": "max"},
    ],
)
def test_what_a_run_does_not_have(folder: RunFolder, keys: dict[str, Any]) -> None:
    assert is_nan(read(folder, **keys))


def test_correlation_with_the_labels(folder: RunFolder, tmp_path: Path) -> None:
    assert is_nan(read(folder, correlation="label-kl"))  # there is no picture
    counts = np.array([[10, 0], [8, 2], [0, 10]])
    kl = {(i, j): label_divergence(counts[[i, j]]) for i, j in ((0, 1), (0, 2), (1, 2))}
    for far, wanted in (
        ({pair: 3 * value + 1 for pair, value in kl.items()}, 1.0),
        ({pair: -value for pair, value in kl.items()}, -1.0),
        ({(0, 1): 1.0, (0, 2): 2.0, (1, 2): 3.0}, np.corrcoef(list(kl.values()), [1.0, 2.0, 3.0])[0, 1]),
    ):
        affinity = np.zeros((3, 3))
        for (i, j), value in far.items():
            affinity[i, j] = affinity[j, i] = value
        # The picture holds the clients in another order than the people.
        order = np.array([2, 0, 1])
        folder.write_picture(Picture(affinity[np.ix_(order, order)], "distance", order, np.zeros((3, 2)), order, 4))
        assert read(folder, correlation="label-kl") == pytest.approx(wanted, abs=1e-6)
    folder.write_picture(Picture(np.zeros((3, 2)), "to centres", order, np.zeros((3, 2)), order, 4))
    assert is_nan(read(folder, correlation="label-kl"))


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"log": "a", "measure": "ari", "at": "max"},
        {"log": "a"},
        {"log": "a", "at": "max", "round": 3},
        {"rounds_to": 0.5, "at": "max"},
        {"measure": "ari", "of": "x", "at": "max"},
        {"log": "a", "drop_at": "b"},
    ],
)
def test_keys_that_do_not_go_together(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Quantity(**keys)


ROW = {
    "accuracy": 0.6735,
    "macro_accuracy": None,
    "std": 0.05,
    "ari": None,
    "groups": 4,
    "up_bytes": 3_000_000,
    "down_bytes": 1_500_000,
    "simulated_seconds": 36.0,
    "rounds": 20,
    "target": 0.7,
    "rounds_to_target": None,
    "bytes_to_target": None,
    "seconds_to_target": None,
}


def test_units_of_what_every_run_has() -> None:
    found = {name: BUILT_IN[name].of(ROW) for name in ("accuracy", "std", "up_mb", "down_mb", "mb", "seconds")}
    assert found == pytest.approx(
        {"accuracy": 67.35, "std": 5.0, "up_mb": 3.0, "down_mb": 1.5, "mb": 4.5, "seconds": 36.0}
    )
    assert BUILT_IN["groups"].of(ROW) == 4
    assert BUILT_IN["ari"].of(ROW) is None
    assert BUILT_IN["macro_accuracy"].of(ROW) is None


def test_a_target_that_was_never_reached() -> None:
    never = {name: BUILT_IN[name].of(ROW) for name in ("rounds_to_target", "mb_to_target", "seconds_to_target")}
    bounds = {"rounds_to_target": AtLeast(21), "mb_to_target": AtLeast(4.5), "seconds_to_target": AtLeast(36.0)}
    assert never == bounds
    assert [BUILT_IN[name].of({**ROW, "target": None}) for name in never] == [None, None, None]
    reached = {**ROW, "rounds_to_target": 7, "bytes_to_target": 700_000, "seconds_to_target": 9.5}
    assert [BUILT_IN[name].of(reached) for name in never] == [7.0, 0.7, 9.5]
