"""Many clients: thresholds are lowered, and what is found is compared with the exact way below them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from coterie.errors import BadInput
from coterie.methods.client_rows import VersionedRows
from coterie.methods.fesem import FeSEMState
from coterie.runs.checkpoint_schedule import open_checkpoints
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from coterie.runs.session import Session

LOW = {"sketch_above": 30, "hierarchy_above": 40}
"""Thresholds below the clients of these tests."""

CFL = {"name": "cfl", "t_min": 2, "eps1_frac": 2.0, "ratio": 0.0, "gamma_max": 0.5, "recursive": True}


def experiment(
    method: Mapping[str, Any], scale: Mapping[str, int] | None = None, participation: float = 1.0
) -> Experiment:
    """Eighty clients of 20 digits in four groups, which hold different classes, and 2,410 parameters."""
    return Experiment(
        data={"name": "digits", "split": "label-blocks(4)", "clients": 80, "samples_per_client": 20},
        network={"name": "mlp", "hidden": [32]},
        method=method,
        training={"epochs": 3, "batch_size": 7, "lr": 0.1},
        run={"rounds": 4, "participation": participation, "workers": 1},
        scale=scale,
    )


def after(session: Session, first: int, last: int) -> None:
    """Rounds `first` to `last`, each remembered."""
    for number in range(first, last + 1):
        session.record(session.play_round(number))


def trained(experiment: Experiment, rounds: int) -> Session:
    with closing(Session(experiment)) as session:
        after(session, 1, rounds)
    return session


def groups(session: Session) -> NDArray[np.int64]:
    return session.method.assignment(session.state, session.server).groups


@pytest.mark.medium
@pytest.mark.parametrize("method", [{"name": "fesem"}, CFL, CFL | {"name": "layercfl", "layers": "last:1"}])
def test_many_clients_find_the_groups_that_few_find(method: Mapping[str, Any]) -> None:
    exact, many = (trained(experiment(method, scale), 3) for scale in (None, LOW))
    assert groups(exact).tolist() == (np.arange(80) % 4).tolist()
    assert groups(many).tolist() == groups(exact).tolist()
    warnings = " ".join(many.method.warnings(many.server, 3))
    assert "80 clients" in warnings
    assert "scale.sketch_above = 30" in warnings
    assert ("scale.hierarchy_above = 40" in warnings) == (method["name"] != "fesem")
    assert "scale" not in " ".join(exact.method.warnings(exact.server, 3))


@pytest.mark.medium
def test_a_layer_is_chosen_by_a_sample() -> None:
    method = {"name": "layercfl", "t_min": 3, "eps1_frac": 2.0, "ratio": 0.0, "gamma_max": 0.5, "recursive": True}
    exact, many = (trained(experiment(method, scale), 3) for scale in (None, LOW))
    assert (many.state.groupings >= 0).all(0).sum() == 30
    assert many.state.looks == exact.state.looks == 2
    assert many.state.chosen == exact.state.chosen
    assert groups(many).tolist() == groups(exact).tolist()


@pytest.mark.parametrize(
    "method",
    [
        {"name": "ifca", "init": "kmeans"},
        {"name": "fedcps", "init": "kmeans", "clusters": 4},
        {"name": "fesem-ma"},
        {"name": "grouped-layers", "after": 1},
    ],
)
def test_k_means_starts_from_sketches_where_it_says_so(method: Mapping[str, Any]) -> None:
    scale = {"sketch_above": 30}
    exact, many = (trained(experiment(method, each), 1) for each in (None, scale))
    assert groups(many).tolist() == groups(exact).tolist()
    assert any("sketches" in text for text in many.method.warnings(many.server, 1))
    assert not any("sketches" in text for text in exact.method.warnings(exact.server, 1))


def test_the_kept_update_of_each_client_is_its_own() -> None:
    exact, many = (trained(experiment(CFL, scale), 1) for scale in (None, LOW))
    assert torch.equal(exact.state.updates, many.state.updates)


@pytest.mark.parametrize("signal", ["all", "last_kernel"])
def test_centres_of_many_are_those_of_few(signal: str) -> None:
    """After the same warm-up nothing differs but products in float32, which move nobody here."""
    method = {"name": "fesem", "signal": signal}
    few, many = (trained(experiment(method, scale, 0.3), 4) for scale in (None, LOW))
    one, other = few.state, many.state
    assert isinstance(one, FeSEMState)
    assert other.groups.tolist() == one.groups.tolist()
    assert torch.equal(other.last, one.last)
    assert torch.equal(other.centres, one.centres)


def test_an_interrupted_round_of_many_leaves_no_trace() -> None:
    whole = trained(experiment({"name": "fesem"}, LOW, 0.3), 4)
    with closing(Session(experiment({"name": "fesem"}, LOW, 0.3))) as session:
        after(session, 1, 2)
        before = session.state.last.clone()
        result = session.play_round(3)
        assert not torch.equal(result.state.last, before)
        session.save_last_round()
        assert torch.equal(session.state.last, before)
        after(session, 3, 4)
    assert torch.equal(session.state.last, whole.state.last)
    assert torch.equal(session.state.centres, whole.state.centres)


def test_many_clients_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    asked = experiment({"name": "fesem"}, LOW, 0.3)
    whole = trained(asked, 4)
    folder = RunFolder.create(tmp_path, "many")
    with closing(Session(asked)) as session:
        folder.write_experiment(session.experiment.to_toml())
        after(session, 1, 2)
        open_checkpoints(folder).save(2, session.to_checkpoint())
    with closing(Session(asked)) as session:
        session.restore(folder)
        assert session.done == 2
        after(session, 3, 4)
    assert torch.equal(session.state.last, whole.state.last)
    assert torch.equal(session.state.centres, whole.state.centres)


def test_nobody_has_a_model_before_the_warm_up() -> None:
    with closing(Session(experiment({"name": "fesem"}, LOW))) as session:
        last = session.state.last
        assert last.shape == (80, session.layout.size)
        assert last.untyped_storage().nbytes() == 4 * session.layout.size


def test_versions_of_a_matrix() -> None:
    """Every version holds what it held, in whichever order they are asked, and there is one matrix."""
    rng = np.random.default_rng(0)
    plain = [torch.zeros(9, 2)]
    versions = [VersionedRows(plain[0].clone())]
    for _ in range(6):
        of = int(rng.integers(len(plain)))  # from any version, also one that has a later one
        clients, rows = (
            np.sort(rng.permutation(9)[:3]),
            torch.from_numpy(rng.normal(size=(3, 2)).astype(np.float32)),
        )
        versions.append(versions[of].replace_rows(clients, rows))
        plain.append(plain[of].index_copy(0, torch.from_numpy(clients), rows))
    for i in rng.integers(len(plain), size=40):
        assert torch.equal(versions[i].matrix, plain[i])
    assert len({version.matrix.data_ptr() for version in versions}) == 1
    with pytest.raises(AttributeError, match="nothing"):
        versions[0].nothing  # noqa: B018


@pytest.mark.parametrize("name", ["dcpfl", "clusterfl", "flis", "fedtsdp"])
def test_a_matrix_of_all_pairs_is_refused(name: str) -> None:
    many = Experiment(method=name, data={"clients": 50_000})
    with pytest.raises(BadInput) as caught:
        many.check()
    (sentence,) = caught.value.problems
    assert f"method.name = '{name}'" in sentence
    assert "takes 20.0 GB" in sentence
    many.updated({"scale.hierarchy_above": 50_000}).check()
    Experiment(method=name, data={"clients": 20_000}).check()


def test_who_is_compared_counts() -> None:
    paper = {"name": "fedtsdp", "eps2": 3.5}
    Experiment(method=paper, data={"clients": 50_000}, run={"participation": 0.01}).check()
    Experiment(method="flis", data={"clients": 30_000}, run={"holdout_clients": 0.4}).check()
    for name in ("fedavg", "ifca", "fesem", "cfl", "layercfl", "adacfl", "grouped-layers"):
        Experiment(method=name, data={"clients": 100_000}).check()


def test_a_session_refuses_what_only_the_data_tell(tmp_path: Path) -> None:
    """How many users data have is known once they are read."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(40), 20)
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(800, 3)).astype(np.float32), y=users % 2, user=users)
    many = Experiment(
        data={"name": str(tmp_path / "own.npz"), "split": "by-user", "public": 20},
        method="flis",
        scale={"hierarchy_above": 30},
    )
    many.check()
    with pytest.raises(BadInput, match="40 clients"):
        Session(many)
