from pathlib import Path

import numpy as np
import polars as pl
import pytest

from coterie.report.why_groups import explain_groups, label_distance
from coterie.runs.folder.group_traits import GroupTraits, LayerDistances
from coterie.runs.folder.reading import read_runs
from coterie.runs.folder.tables import FEDERATION

from .synthesis import synthesise


def test_the_distance_of_labels_is_that_of_shares() -> None:
    counts = np.array([[10.0, 0], [5, 0], [0, 7], [0, 1]])
    assert label_distance(counts, np.array([0, 0, 1, 1])) == pytest.approx(0.5)
    assert label_distance(counts, np.array([0, 1, 0, 1])) == pytest.approx(0)


@pytest.mark.parametrize("skewed", [True, False])
def test_labels_are_told_apart_from_chance(tmp_path: Path, skewed: bool) -> None:
    folder = synthesise(tmp_path, "one", clients=12, groups=2, rounds=3, picture=False)
    last = read_runs([folder])[0].last.sort("client")
    labels = [[30, 10, 0] if skewed and group == 0 else [10, 10, 20] for group in last["group"]]
    people = {"name": [f"ward {i}" for i in range(12)], "true_group": None, "few_shot": None, "train": 40}
    frame = pl.DataFrame({"client": range(12), "labels": labels, **people, "validation": 0, "test": 20})
    folder.write_federation(frame.select(FEDERATION.names()).cast(FEDERATION))
    why = explain_groups(read_runs([folder])[0])
    assert why is not None
    assert ("not tell" in why.sentences[0]) != skewed
    assert [row[0] for row in why.table.rows] == ["0", "1"]
    assert why.table.rows[0][4] == "40"
    assert ("0 (" in why.table.rows[0][1]) == skewed
    # Where the data have names for their classes the page has them, too.
    folder.write_environment({**folder.environment(), "classes": ["scrap", "good", "rework"]})
    named = explain_groups(read_runs([folder])[0])
    assert named is not None
    assert ("scrap (" in named.table.rows[0][1]) == skewed


def test_without_labels_the_page_says_so_and_one_group_needs_no_reason(tmp_path: Path) -> None:
    folder = synthesise(tmp_path, "two", clients=12, groups=2, rounds=3, picture=False)
    why = explain_groups(read_runs([folder])[0])
    assert why is not None
    assert len(why.table.header) == 4  # no column of labels
    together = synthesise(tmp_path, "together", clients=12, groups=1, rounds=3, picture=False)
    assert explain_groups(read_runs([together])[0]) is None


def test_layers_stand_in_the_order_in_which_they_tell_groups_apart(tmp_path: Path) -> None:
    folder = synthesise(tmp_path, "one", clients=12, groups=2, rounds=3, picture=False)
    apart = LayerDistances(("conv1", "conv2", "fc1", "fc2"), np.array([1.2, np.nan, 3.4, 0.9]), 12)
    folder.write_group_traits(GroupTraits(3, apart))
    why = explain_groups(read_runs([folder])[0])
    assert why is not None
    assert why.layers is not None
    assert [row[0] for row in why.layers.rows] == ["fc1", "conv1", "fc2", "conv2"]
    assert [row[1].split()[0] for row in why.layers.rows[:3]] == ["3.4", "1.2", "0.9"]
