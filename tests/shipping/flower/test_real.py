"""One real federation with TLS and keys, a SuperLink and two SuperNodes, for all tests of this file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

import coterie
from coterie.cli.flower_new import write_app
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from coterie.shipping.flower.command_line import DeploymentFailed, Scalar
from coterie.shipping.flower.deployment import Deployment, deploy, kill_group
from coterie.shipping.flower.status import FederationStatus
from coterie.shipping.model.trained import MODEL, read_model
from tests.shipping.flower import test_agreement as tables
from tests.shipping.flower.rehearsal import Place, place, same

LONG = 900.0
"""Seconds that anything may take on a machine with much else to do."""

NAMES = tables.NAMES[:2]
AWAY, HERE = NAMES
"""Who is killed in the last test, and who stays."""

pytestmark = pytest.mark.slow


def experiment(method: str, rounds: int) -> Experiment:
    """Tables of numbers and text, whose columns and scales the clients agree on first."""
    asked = tables.experiment(4, standardise="global").updated(
        {"data.clients": len(NAMES), "run.rounds": rounds, "evaluation.every": rounds}
    )
    # Clients say their loss, train, send what is due, and keep the rest.
    settings = {"t_start": 2, "window": 1, "t_obv": 1} if method == "dcpfl" else {}
    return asked.updated({"method": {"name": method, **settings}, "data.test": 0.2})


@dataclass(frozen=True)
class Real:
    """The clients, and the federation that reaches them."""

    place: Place
    deployment: Deployment

    def submit(self, asked: Experiment, name: str) -> str:
        """Start a run, whose folder has this name; its number at Flower."""
        file = self.place.folder / f"{name}.toml"
        file.write_text(asked.to_toml(), "utf-8")
        where: dict[str, Scalar] = {"experiment": str(file), "runs": str(self.place.runs), "name": name}
        return self.deployment.submit(self.place.folder / "clinics", {**where, "wait": LONG, "round-seconds": LONG})


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("real")
    held = tables.turned(tables.tables(text=True), HERE, ["label", "ward", "marker", "split", "age"])
    place = tables.clinics(folder, {name: held[name] for name in NAMES}, **{"tell-levels": True})
    write_app(folder / "clinics", Experiment().to_toml())
    nodes: dict[str, Mapping[str, Scalar]] = {
        name: {**node, "state-dir": str(folder / f"{name} for real")}
        for name, node in zip(NAMES, place.nodes, strict=True)
    }
    with deploy(folder / "flower", nodes, seconds=LONG) as deployment:
        yield Real(place, deployment)


def test_a_real_federation_ends_in_the_bits_of_a_rehearsal(real: Real) -> None:
    """A process for each message finds what the client kept and agreed on, as one process does."""
    asked = experiment("dcpfl", rounds=2)
    run = real.submit(asked, "real")
    assert real.deployment.wait(run, LONG).completed, real.deployment.output(run)
    rehearsed, folder = RunFolder(real.place.run(asked, name="rehearsed")), RunFolder(real.place.runs / "real")
    assert same(folder.path, rehearsed.path)
    columns = ["round", "client", "accuracy", "loss", "group", "up_bytes", "down_bytes"]
    assert folder.clients().select(columns).equals(rehearsed.clients().select(columns))
    assert folder.ledger().equals(rehearsed.ledger())
    assert folder.failures().is_empty()
    status = FederationStatus.read(folder)
    assert (status.round, status.of) == (2, 2)
    assert [(m.client, m.name, m.online, m.last_round, m.problem) for m in status.clients] == [
        (client, name, True, 2, None) for client, name in enumerate(NAMES)
    ]
    assert {m.name: m.node for m in status.clients} == real.deployment.nodes
    assert (folder.path / "report.html").stat().st_size > 0
    for name in NAMES:
        assert read_model(real.place.folder / f"{name} for real" / MODEL).about.features == (4,)


def test_one_or_five_workers_and_five_nodes_give_the_same_bits(tmp_path: Path) -> None:
    """Means are added up where models are made: in a worker of all clients, of one or two, or at the server."""
    asked = Experiment(
        method="fedavg",
        data={"name": "digits", "clients": 5, "samples_per_client": 60},
        network={"name": "mlp", "hidden": [8]},
        run={"rounds": 1},
    )
    reached = place(tmp_path, clients=5)
    write_app(tmp_path / "five", asked.to_toml())
    nodes = {f"node-{node['client']}": node for node in reached.nodes}
    with deploy(tmp_path / "flower", nodes, seconds=LONG) as deployment:
        where: dict[str, Scalar] = {"runs": str(reached.runs), "name": "nodes", "wait": LONG, "round-seconds": LONG}
        run = deployment.submit(tmp_path / "five", where)
        assert deployment.wait(run, LONG).completed, deployment.output(run)
    for workers in (1, 2, 5):
        name = f"workers-{workers}"
        coterie.run(asked.updated({"run.folder": str(reached.runs), "run.name": name, "run.workers": workers}))
        assert same(reached.runs / "nodes", reached.runs / name)


def test_an_app_that_is_refused_is_said_to_be(real: Real, tmp_path: Path) -> None:
    with pytest.raises(DeploymentFailed, match=r"flwr run .*pyproject"):
        real.deployment.submit(tmp_path)


def test_a_run_outlives_a_node_that_is_killed(real: Real) -> None:
    """The last test: the node does not come back."""
    run = real.submit(experiment("fedavg", rounds=3), "outlived")
    folder = RunFolder(real.place.runs / "outlived")

    def kill_after_a_round() -> None:
        there = (folder.path / "federation.json").exists()
        if there and real.deployment.processes[AWAY].poll() is None and FederationStatus.read(folder).round:
            kill_group(real.deployment.processes[AWAY])

    status = real.deployment.wait(run, LONG, look=kill_after_a_round)
    assert status.completed, real.deployment.output(run)
    assert {row["client"] for row in folder.failures().to_dicts()} == {NAMES.index(AWAY)}
    participants = folder.rounds()["participants"].to_list()
    assert (participants[0], participants[-1]) == (2, 1)
