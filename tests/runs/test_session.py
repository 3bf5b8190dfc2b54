"""What one session does around a method's round."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import coterie
from coterie.grouping import aggregate
from coterie.grouping.aggregate import group_means
from coterie.runs.hooks import picture
from coterie.runs.hooks.picture import ModelSketches
from coterie.runs.session import Session


def test_the_server_computes_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums and eigenvectors depend on the number of threads, so a round has one."""
    seen: list[int] = []

    def watched(*given: Any) -> Any:
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        seen.append(torch.get_num_threads())
        return group_means(*given)

    monkeypatch.setattr(aggregate, "group_means", watched)
    with threadpool_limits(2):
        torch.set_num_threads(2)
        try:
            list(coterie.rounds(coterie.Experiment(method="fedavg", run={"rounds": 1})))
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(1)
    assert len(seen) > 1
    assert set(seen) == {1}


def measured_on(folder: Path, split: str, **data: Any) -> coterie.RunFolder:
    experiment = coterie.Experiment(
        method="ifca",
        data={"split": "dirichlet(0.3)", "clients": 6, "min_samples": 20, **data},
        network={"name": "mlp", "hidden": [8]},
        evaluation={"on": split},
        run={"rounds": 2, "workers": 1, "folder": str(folder), "holdout_clients": 0.2},
    )
    return coterie.RunFolder(coterie.run(experiment).folder)


@pytest.mark.medium
def test_validation_samples_count_where_that_is_said(tmp_path: Path) -> None:
    """Training is the same to the bit; what is measured is not, and newcomers are not tested."""
    tested, validated = (measured_on(tmp_path, split) for split in ("test", "validation"))
    trained = ["round", "train_loss", "groups", "up_bytes", "down_bytes", "participants"]
    assert tested.rounds().select(trained).equals(validated.rounds().select(trained))
    assert (tested.rounds()["accuracy"] != validated.rounds()["accuracy"]).all()
    assert (tested.newcomers() is None, validated.newcomers() is None) == (False, True)
    for folder, split in ((tested, "test"), (validated, "validation")):
        last, people = folder.clients().filter(round=2), folder.federation()
        assert people is not None
        assert last["test_samples"].to_list() == people[split].head(last.height).to_list()
        sizes, accuracy = last["test_samples"].to_numpy(), last["accuracy"].to_numpy()
        assert np.allclose(accuracy * sizes, np.round(accuracy * sizes))
        assert folder.rounds()["accuracy"][-1] == pytest.approx(float(np.average(accuracy, weights=sizes)))


@pytest.mark.medium
def test_who_has_no_validation_samples_has_no_accuracy(tmp_path: Path) -> None:
    folder = measured_on(tmp_path, "validation", validation=0.002)
    last = folder.clients().filter(round=2)
    nothing = last["test_samples"] == 0
    assert 0 < nothing.sum() < last.height
    assert (last["accuracy"].is_null() | last["accuracy"].is_nan()).to_list() == nothing.to_list()
    assert 0 <= folder.rounds()["macro_accuracy"][-1] <= 1


def decided_on(method: str, validation: float) -> coterie.Experiment:
    return coterie.Experiment(
        method=method,
        data={"split": "dirichlet(0.3)", "clients": 6, "min_samples": 20, "validation": validation},
        network={"name": "mlp", "hidden": [8]},
        run={"rounds": 9, "workers": 1},
    )


def test_a_method_that_decides_by_validation_samples_needs_some() -> None:
    """Where no client has any the run is refused; where some lack them, that is said before the first round."""
    with pytest.raises(coterie.BadInput, match=r"^data\.validation = 1e-06 ") as raised:
        list(coterie.rounds(decided_on("dcpfl", 1e-6)))
    assert len(raised.value.problems) == 1
    with closing(Session(decided_on("dcpfl", 0.002))) as session:
        sizes = np.diff(session.federation.bounds)[:, 1]
        none = int((sizes == 0).sum())
        assert 0 < none < 6
        (warning,) = session.find_warnings()
        assert re.match(f"{none} of 6 clients .*validation", warning)
    with closing(Session(decided_on("fedavg", 1e-6))) as session:
        assert not session.find_warnings()


@pytest.mark.parametrize("method", ["ifca", "fesem", "fedcps"])
@pytest.mark.parametrize(("clusters", "said"), [(4, True), (3, False)])
def test_groups_that_must_stay_empty_are_told(method: str, clusters: int, said: bool) -> None:
    """Of data by user the clients are known once they are read; before that more groups are refused."""
    rng = np.random.default_rng(0)
    people = {name: (rng.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2) for name in "abc"}
    experiment = coterie.Experiment(data=people, method={"name": method, "clusters": clusters}, run={"workers": 1})
    with closing(Session(experiment)) as session:
        told = [note for note in session.find_warnings() if "method.clusters" in note]
    assert len(told) == said


def crowd(workers: int = 1, rounds: int = 2) -> coterie.Experiment:
    return coterie.Experiment(
        method="fedavg",
        data={"clients": 30, "min_samples": 5},
        network={"name": "mlp", "hidden": [4]},
        run={"rounds": rounds, "workers": workers, "participation": 0.4},
    )


def test_of_very_many_clients_some_are_looked_at_for_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly chosen from all, so that what is remembered of them has a bound."""

    def pictured(most: int) -> list[int]:
        monkeypatch.setattr(picture, "MAX_SKETCHED", most)
        with closing(Session(crowd())) as some:
            for number in (1, 2):
                some.record(some.play_round(number))
            found = some.find(ModelSketches).draw()
            assert found is not None
            return [int(client) for client in found.clients]

    everyone, some = pictured(30), pictured(10)
    among = np.linspace(0, 29, 10).astype(int)
    assert some == [c for c in everyone if c in among]
    assert 0 < len(some) < len(everyone)


@pytest.mark.parametrize("method", ["scaffold", "pfedme", "apfl", "fedsgd", "per-fedavg"])
@pytest.mark.parametrize("solver", [{"optimizer": "adam"}, {"momentum": 0.9}, {}])
def test_a_solver_that_a_method_does_not_use_is_named(method: str, solver: dict[str, object]) -> None:
    experiment = coterie.Experiment.model_validate(
        {
            "method": {"name": method},
            "data": {"name": "digits", "clients": 4, "samples_per_client": 20},
            "network": {"name": "mlp", "hidden": [4]},
            "training": solver,
            "run": {"workers": 1},
        }
    )
    with closing(Session(experiment)) as session:
        told = [note for note in session.find_warnings() if method in note]
    assert len(told) == len(solver)
    assert all(key in note for key, note in zip(solver, told, strict=True))
