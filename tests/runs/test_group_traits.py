"""What the end of a run says of its groups: layers, inputs, and nothing that was promised to stay hidden."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from coterie.clients.data.federation import build
from coterie.clients.tasks import CLASSIFICATION
from coterie.errors import BadInput
from coterie.randomness import stream
from coterie.report.why_groups import explain_groups
from coterie.runs.folder.group_traits import GroupTraits, LayerDistances
from coterie.runs.folder.reading import read_runs
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.hooks import group_traits
from coterie.runs.hooks.group_traits import MOST_PIXELS, distance_ratio, measure_inputs
from coterie.runs.loop import run
from coterie.runs.schema.experiment import Experiment
from coterie.runs.session import Session


def test_the_ratio_of_distances_is_that_of_all_pairs() -> None:
    rng = stream(0, "points")
    points, groups = rng.normal(size=(11, 3)), np.array([0, 1, 0, 2, 2, 1, 0, 0, 2, 1, 0])
    points[:, 0] += 2 * groups
    away = ((points[:, None] - points[None]) ** 2).sum(2)
    same, pairs = groups[:, None] == groups[None], ~np.eye(11, dtype=bool)
    wanted = np.sqrt(away[~same].mean() / away[same & pairs].mean())
    assert distance_ratio(points, groups) == pytest.approx(wanted)
    assert np.isnan(distance_ratio(np.ones((4, 2)), np.array([0, 0, 1, 1])))
    assert np.isnan(distance_ratio(points, np.arange(11)))


def test_points_without_structure_are_as_far_apart_in_any_groups() -> None:
    rng = stream(1, "points")
    found = [distance_ratio(rng.normal(size=(30, 20)), np.sort(rng.integers(0, k, 30))) for k in (2, 5, 15)]
    np.testing.assert_allclose(found, 1, atol=0.1)


@pytest.mark.parametrize("planted", [True, False])
def test_rotated_images_tell_groups_apart_and_dealt_ones_do_not(planted: bool) -> None:
    federation = build("digits", "rotated(2)", 12, 0)
    assert federation.true_groups is not None
    groups = federation.true_groups if planted else np.arange(12) // 2 % 2
    found = measure_inputs(federation, groups)
    assert found is not None
    assert (found.kind, found.means.shape) == ("images", (3, 8, 8, 1))
    assert found.groups.tolist() == [0, 1]
    assert (found.means.min(), found.means.max()) == (0, 255)
    assert (found.p < 0.01) == planted
    assert (found.apart > 2 * found.chance) == planted


def _table(tmp_path: Path) -> Path:
    rng = stream(2, "wards")
    ward = np.repeat(np.arange(10), 30)
    columns = {
        "client": [f"ward {i}" for i in ward],
        "age": rng.normal(50, 10, 300),
        "pressure": rng.normal(130, 15, 300) + 30 * (ward % 2),
        "label": rng.integers(0, 2, 300),
    }
    pl.DataFrame(columns).write_csv(tmp_path / "wards.csv")
    return tmp_path / "wards.csv"


def test_means_of_features_have_the_units_of_the_file(tmp_path: Path) -> None:
    path = _table(tmp_path)
    federation = build(str(path), "by-user", None, 0, task=CLASSIFICATION, standardise="global")
    found = measure_inputs(federation, np.arange(10) % 2)
    assert found is not None
    assert found.names == ("age", "pressure")
    np.testing.assert_allclose(found.means[:, 1], [130, 160, 145], atol=3)
    np.testing.assert_allclose(found.means[:, 0], 50, atol=2)
    np.testing.assert_allclose(found.deviation, [10, np.hypot(15, 15)], atol=2)
    assert found.p < 0.05


def test_large_images_are_shown_small() -> None:
    federation = build("digits", "iid", 4, 0)
    large = federation.inputs.repeat_interleave(17, 1).repeat_interleave(17, 2)
    found = measure_inputs(type(federation)(**{**vars(federation), "inputs": large}), np.array([0, 0, 1, 1]))
    assert found is not None
    assert max(found.means.shape[1:3]) <= MOST_PIXELS


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    traits = GroupTraits(3, LayerDistances(("fc1", "fc2"), np.array([1.5, 2.0]), 4))
    (tmp_path / "groups.npz").write_bytes(traits.encode()[:-30])
    with pytest.raises(BadInput, match=r"groups\.npz .*damaged"):
        RunFolder(tmp_path).group_traits()


def _run(tmp_path: Path, **settings: Any) -> RunFolder:
    experiment = Experiment(
        method={"name": "fesem", "clusters": 2},
        data={"name": "digits", "split": "rotated(2)", "clients": 6},
        run={"rounds": 2, "folder": str(tmp_path), "workers": 1},
        **settings,
    )
    return RunFolder(run(experiment).folder)


@pytest.mark.medium
def test_a_run_keeps_what_tells_its_groups_apart_and_the_page_shows_it(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    traits = folder.group_traits()
    assert traits is not None
    assert traits.layers is not None
    assert traits.inputs is not None
    assert traits.layers.clients == 6
    assert (traits.layers.ratio > 1).all()
    found = explain_groups(read_runs([folder])[0])
    assert found is not None
    assert found.layers is not None
    assert [one.title for one in found.pictures] == ["Group 0, 3 clients", "Group 1, 3 clients", "All clients"]
    assert all(one.source.startswith("data:image/png;base64,") for one in found.pictures)
    assert {row[0] for row in found.layers.rows} == set(traits.layers.layers)
    assert "apart" in found.inputs[0]


@pytest.mark.medium
def test_some_numbers_of_a_large_layer_tell_as_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _run(tmp_path / "whole").group_traits()
    monkeypatch.setattr(group_traits, "MOST_SCALARS", 64)
    some = _run(tmp_path / "some").group_traits()
    assert whole is not None
    assert some is not None
    assert whole.layers is not None
    assert some.layers is not None
    np.testing.assert_allclose(some.layers.ratio, whole.layers.ratio, rtol=0.25)
    assert (some.layers.ratio != whole.layers.ratio).any()


def test_what_a_promise_hides_is_not_explained() -> None:
    experiment = Experiment(
        data={"name": "digits", "split": "rotated(2)", "clients": 6},
        run={"rounds": 2, "workers": 1},
        privacy={"unit": "client", "noise_by": "clients", "noise_multiplier": 0.5},
    )
    with closing(Session(experiment)) as session:
        assert not any(isinstance(hook, group_traits.DescribeGroups) for hook in session.hooks)
