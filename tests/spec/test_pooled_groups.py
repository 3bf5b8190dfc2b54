"""Pooled groups (6.20 of docs/methods/pooled-groups.md): partial pooling to the mean of a group, not of all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.methods import Halves, PartialPooling, PooledGroups
from tests.federated import planted, train


def test_pooled_groups_6_20_is_partial_pooling_where_there_is_one_group() -> None:
    ours = train(PooledGroups(passes=1), planted("iid", clients=8), 4)
    other = train(PartialPooling(passes=1, shrink="tensor"), planted("iid", clients=8), 4)
    assert len(ours.state.models) == 1
    for one, two in zip(ours.states, other.states, strict=True):
        assert torch.equal(one.models, two.model)
        assert torch.equal(one.variances, two.variances)


@pytest.mark.slow
def test_pooled_groups_6_20_finds_the_groups_of_halves() -> None:
    federation = planted("incongruent", 2, clients=12)
    ours, halves = (train(method, federation, 2) for method in (PooledGroups(passes=1), Halves()))
    assert len(ours.state.models) > 1
    assert ours.state.groups.tolist() == halves.state.groups.tolist()


@pytest.mark.slow
def test_pooled_groups_6_20_beat_one_mean_and_groups_alone(tmp_path: Path) -> None:
    """Two groups of regressions whose members' coefficients differ a little, too."""
    rng, lines = np.random.default_rng(0), ["client,a,b,c,d,label"]
    for client in range(30):
        slopes = 3 * np.array([1.0, -1.0, 0.5, 0.0]) * (-1) ** client + 0.4 * rng.normal(size=4)
        for _ in range(40):
            x = rng.normal(size=4)
            lines.append(f"c{client}," + ",".join(f"{v:.4f}" for v in (*x, x @ slopes + rng.normal())))
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n", "utf-8")
    errors = {}
    for name in ("pooled-groups", "halves", "partial-pooling", "local-only"):
        errors[name] = coterie.run(
            coterie.Experiment(
                data={"name": str(tmp_path / "a.csv"), "validation": 0.0, "test": 0.5},
                task="regression",
                network="linear",
                method=name,
                training={"lr": 0.1, "batch_size": 5},
                evaluation={"every": 15},
                run={"rounds": 15, "workers": 1, "folder": str(tmp_path / "runs"), "name": name},
            )
        ).summary["macro_rmse"]
    best = errors.pop("pooled-groups")
    assert best < min(errors.values())


@pytest.mark.slow
def test_pooled_groups_6_20_clients_who_differ_in_constants_keep_these_and_share_slopes(tmp_path: Path) -> None:
    """A random intercept: constants and slopes have shares of their own."""
    rng, lines = np.random.default_rng(1), ["client,a,b,c,d,label"]
    for client in range(20):
        constant = 2 * rng.normal()
        for _ in range(20):
            x = rng.normal(size=4)
            lines.append(f"c{client}," + ",".join(f"{v:.4f}" for v in (*x, x[0] + constant + rng.normal())))
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n", "utf-8")
    errors = {}
    for shrink in ("tensor", "layer"):
        errors[shrink] = coterie.run(
            coterie.Experiment(
                data={"name": str(tmp_path / "a.csv"), "validation": 0.0, "test": 0.5},
                task="regression",
                network="linear",
                method={"name": "partial-pooling", "shrink": shrink},
                training={"lr": 0.1, "batch_size": 5},
                evaluation={"every": 15},
                run={"rounds": 15, "workers": 1, "folder": str(tmp_path / "runs"), "name": shrink},
            )
        ).summary["macro_rmse"]
    assert errors["tensor"] < errors["layer"]
