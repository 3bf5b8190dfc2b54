"""Clients kept out of training: who they are, how the method receives them, and what a run says of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from coterie.clients.data.federation import build
from coterie.errors import BadInput
from coterie.methods import METHODS
from coterie.randomness import stream
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.held_out_clients import hold_out_clients
from coterie.runs.hooks.unseen_clients import UnseenClients, renumber_groups
from coterie.runs.loop import run
from coterie.runs.schema.experiment import Experiment
from coterie.runs.session import Session
from coterie.runtime.runtime import drive


def _experiment(folder: Path, method: str = "fesem", share: float = 0.25) -> Experiment:
    return Experiment(
        method=method,
        data={"name": "digits", "split": "rotated(4)", "clients": 16},
        training={"epochs": 2, "lr": 0.2},
        run={"rounds": 4, "holdout_clients": share, "folder": str(folder), "workers": 1},
    )


def test_who_is_held_out_is_drawn_and_stands_last() -> None:
    federation = build("digits", "rotated(2)", 10, 0)
    whole, ids = hold_out_clients(federation, 0.2, 0)
    assert ids.tolist() == [8, 9]
    assert sorted(whole.names) == sorted(federation.names)
    away = np.sort(stream(0, "holdout-clients").permutation(10)[:2])
    assert [whole.names[i] for i in ids] == [federation.names[i] for i in away]
    for i in range(10):
        before = federation.names.index(whole.names[i])
        assert torch.equal(whole.slice(i, "train")[0], federation.slice(before, "train")[0])
    same, nobody = hold_out_clients(federation, 0.0, 0)
    assert same is federation
    assert not len(nobody)


def test_somebody_must_be_left_to_train() -> None:
    with pytest.raises(BadInput, match=r"run\.holdout_clients = 0\.9 .*2 of 2"):
        hold_out_clients(build("digits", "iid", 2, 0), 0.9, 0)


@pytest.mark.medium
def test_newcomers_join_the_groups_of_their_kind(tmp_path: Path) -> None:
    result = run(_experiment(tmp_path))
    assert result.clients["client"].unique().sort().to_list() == list(range(12))
    assert result.ledger["client"].max() == 11
    folder = RunFolder(result.folder)
    joined = folder.newcomers()
    assert joined is not None
    assert joined["client"].to_list() == [12, 13, 14, 15]
    federation = folder.federation()
    assert federation is not None
    last = result.clients.filter(result.clients["round"] == 4).join(
        federation.select("client", "true_group"), on="client"
    )
    home = dict(last.group_by("true_group").agg(pl.col("group").mode().first()).iter_rows())
    assert [home.get(p) for p in joined["true_group"]] == joined["group"].to_list()
    assert (joined["arrival"] > 0.5).all()
    assert abs(np.mean(joined["adapted"].to_numpy()) - np.mean(last["accuracy"].to_numpy())) < 0.25


@pytest.mark.medium
@pytest.mark.parametrize("method", ["fedavg", "local-only"])
def test_every_method_says_how_it_receives_them(tmp_path: Path, method: str) -> None:
    """They are scored by every metric of the run."""
    asked = _experiment(tmp_path, method).updated(
        {"task.metrics": ["accuracy", "balanced_accuracy"], "run.rounds": 2}
    )
    joined = RunFolder(run(asked).folder).newcomers()
    assert joined is not None
    assert joined["arrival"].null_count() == 0
    assert joined["group"].to_list() == [-1 if method == "local-only" else 0] * 4
    for column in ("arrival_balanced_accuracy", "adapted_balanced_accuracy"):
        assert joined[column].is_between(0, 1).all()
    if method == "local-only":
        assert np.mean(joined["arrival"].to_numpy()) < np.mean(joined["adapted"].to_numpy())


def test_a_group_that_only_a_newcomer_is_in_has_a_number_of_its_own() -> None:
    """Tables number groups by their smallest member; a model that nobody in training uses comes behind them all."""
    known, groups = np.array([2, 0, 1, 2]), np.array([0, 1, 2, 0])
    assert renumber_groups(np.array([3, 0, -1, 2]), known, groups).tolist() == [3, 1, -1, 0]


def test_groups_chosen_at_the_last_evaluation_count(tmp_path: Path) -> None:
    """Half of the clients were away in the last round and chose anew; a newcomer's group is numbered with them."""
    session = Session(_experiment(tmp_path, "ifca").updated({"run.participation": 0.5, "run.seed": 4}))
    with closing(session):
        for number in range(1, 5):
            result = session.play_round(number)
            session.evaluate_if_due(result)
            session.record(result)
        joined = session.find(UnseenClients).receive()
        assert joined is not None
        state, everybody, clients = session.state, session.server_with_newcomers, session.newcomers
        picked = drive(session.method.newcomer(state, clients, everybody), session.runtime.answer).groups
        assert (state.groups == -1).any()
        shown, known = session.groups, session.evaluate(session.state, last=True).groups
    assert shown is not None
    same_model = picked[:, None] == known
    assert ((joined["group"].to_numpy()[:, None] == shown) == same_model).all()
    assert same_model.any()


@pytest.mark.medium
@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", [e.name for e in METHODS if e.target.__module__.startswith("coterie.")])
def test_every_method_serves_clients_that_it_never_saw(name: str, tmp_path: Path) -> None:
    needs = METHODS[name].target().needs
    asked = Experiment(
        method=name,
        data={
            "name": "digits",
            "split": "rotated(2)",
            "clients": 8,
            "samples_per_client": 40,
            "public": min(needs.public, 100),
        },
        network={"name": "gaussian-mlp" if needs.gaussian else "mlp", "hidden": [16]},
        run={"rounds": 2, "holdout_clients": 0.25, "folder": str(tmp_path), "workers": 1},
    )
    joined = RunFolder(run(asked).folder).newcomers()
    assert joined is not None
    assert joined["client"].to_list() == [6, 7]
    assert joined["arrival"].is_between(0, 1).all()
