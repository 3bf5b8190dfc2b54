"""Properties 8.7 and 8.9 of docs/methods/conventions.md: odd federations, and a kill after any round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.methods import DCPFL, FLIS, AdaCFL, ClusterFL, FedCPS, FedSGD, FedTSDP, GroupedLayers, LayerCFL, Method
from tests.federated import TRAINING, planted, train
from tests.spec.test_cross import METHODS
from tests.spec.test_dcpfl import FAST, with_validation
from tests.survival import assert_resumes, assert_survives

MORE: dict[str, Method[Any]] = {
    "fedsgd-minibatch": FedSGD(batch="minibatch"),
    "layercfl-recursive": LayerCFL(
        t_min=1, eps1_frac=2.0, ratio=0.0, recursive=True, layers="last:1", weights="uniform", gamma_max=0.0
    ),
    "layercfl-weights": LayerCFL(
        t_min=2, eps1_frac=2.0, ratio=0.0, gamma_max=0.0, signal="weights", layers="all", persist_opt=True
    ),
    "layercfl-refused": LayerCFL(t_min=1, eps1_frac=2.0, ratio=0.0, gamma_max=1.0, cooldown=1),
    "adacfl-halves": AdaCFL(t_min=2, eps1_frac=2.0, ratio=0.0),
    "fedcps-nothing-shared": FedCPS(3, "all", lambda_mode="eq3_raw", init="plain"),
    "fedcps-grid-steps": FedCPS(3, 1, lambda_mode="grid_steps", lambda_grid=(0.01, 0.1, 1.0), init="redraw"),
    "fedtsdp-by-distance": FedTSDP(h=1.0, eps2=3.5),
    "dcpfl-trials": FAST,
    "dcpfl-finer": replace(FAST, retry="next", margin=1e9),
    "dcpfl-alone": DCPFL(t_start=0, dynamic=False, cut=0.0),
    "flis-mixture": FLIS(mode="hc", join="threshold", threshold=0.6, evaluated="mixture"),
    "clusterfl-stopping": ClusterFL(local_epochs=1, every=1, stop=1e3),
    "clusterfl-coupled": ClusterFL(local_epochs=1, every=2, coupled=True, stop=0.0),
    "grouped-layers-whole": GroupedLayers(clusters=2, after=2),
}
"""Settings in which the state, or what clients keep, has other parts than in `METHODS`."""
ALL = {name: method for name, method in (METHODS | MORE).items() if not method.needs.gaussian}
LONG = ("dcpfl-trials", "dcpfl-finer", "clusterfl-stopping")
"""Whose first trial is in round 7, or who stop late."""


@pytest.mark.medium
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ALL)
def test_cross_8_7_few_clients_little_data_absences_and_batch_norm(name: str) -> None:
    """Degenerate federations end with finite models for everybody."""
    assert_survives(ALL[name], 9 if name in LONG else 3, {}, {"network": "narrow-batch-norm"})


@pytest.mark.medium
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ALL)
def test_cross_8_9_resumed_after_any_round(name: str, tmp_path: Path) -> None:
    """All that a later round depends on is in the state and in what the clients keep."""
    training = TRAINING.updated(momentum=0.5, lr_decay=0.98)
    rounds = 9 if name in LONG else 5
    assert_resumes(ALL[name], tmp_path, rounds, training=training, client_dropout=0.1, participation=0.75)


def test_what_is_killed_above_goes_through_every_phase() -> None:
    """Trials are lost and won, leaves are split and refused, identities are frozen, all ends in a stop."""
    federation = with_validation(planted("feature", clients=8, sizes=[40 + 3 * i for i in range(8)]))
    settings: dict[str, Any] = {
        "training": TRAINING.updated(momentum=0.5, lr_decay=0.98),
        "client_dropout": 0.1,
        "participation": 0.75,
    }
    runs = {
        name: train(ALL[name], federation, 9 if name in LONG else 5, **settings)
        for name in ("layercfl-refused", "layercfl-recursive", "fedcps-options", *LONG)
    }
    assert runs["layercfl-refused"].state.until.max() > 0
    assert len(runs["layercfl-recursive"].state.splits) > 1
    assert runs["fedcps-options"].state.frozen
    assert runs["clusterfl-stopping"].asked[-1] == []
    assert any(state.finer is not None for state in runs["dcpfl-trials"].states)
    assert 0.0 in runs["dcpfl-finer"].logged("accepted")
