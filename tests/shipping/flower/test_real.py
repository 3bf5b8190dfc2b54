"""One real federation with TLS and keys, a SuperLink and two SuperNodes, which all tests of it share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

import coterie
from coterie.cli.flower_new import write_app
from coterie.errors import BadInput
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.check import build_method
from coterie.runs.schema.experiment import Experiment
from coterie.runs.setup import load_federation
from coterie.shipping.flower.command_line import DeploymentFailed, Scalar
from coterie.shipping.flower.deployment import Deployment, deploy
from coterie.shipping.flower.parts import write_parts
from coterie.shipping.flower.status import FederationStatus
from coterie.shipping.model.trained import MODEL, read_model
from tests.shipping.flower.asking import printed, write_asking_app
from tests.shipping.flower.outside import CLIENT_APP, alive, online, until
from tests.shipping.flower.rehearsal import same

LONG = 900.0
"""Seconds that a run may take on a machine with much else to do; alone it takes less than a minute."""

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fesem": {"clusters": 2},
    "fedcps": {"clusters": 2, "init": "plain"},
    "fedtsdp": {},
    "dcpfl": {"t_start": 2, "window": 1, "t_obv": 1},
}
CLIENTS, PUBLIC = 2, 40
NAMES = [f"ward-{client}" for client in range(CLIENTS)]
MORE: list[dict[str, Scalar]] = [
    {"share": 0.5, "note": "it's", "many": 3},
    {"path": 'C:\\"here"', "on": True, "off": False},
]
"""What else the nodes are told, which only the app that asks them looks at."""


def simulated(method: str) -> Experiment:
    """What every client can do in a moment, with all that crosses the network."""
    return Experiment(
        method={"name": method, **METHODS[method]},
        data={
            "name": "digits",
            "split": "rotated(2)",
            "clients": CLIENTS,
            "samples_per_client": 60,
            "public": PUBLIC,
        },
        network={"name": "mlp", "hidden": [16]},
        training={"epochs": 1, "lr": 0.1},
        evaluation={"every": 2},
        run={"rounds": 2, "seed": 3, "workers": 1},
    )


@dataclass(frozen=True)
class Place:
    """Where everything is, the app, and the federation that is there."""

    folder: Path
    app: Path
    deployment: Deployment
    settings: Mapping[str, Mapping[str, Scalar]]
    """What each node was told, by its name."""

    def run(self, method: str) -> RunFolder:
        """Run a method, unless a test before has; its folder."""
        folder = RunFolder(self.folder / "runs" / method)
        if not folder.path.exists():
            config: dict[str, Scalar] = {
                "experiment": str(self.folder / f"{method}.toml"),
                "runs": str(self.folder / "runs"),
                "name": method,
                "wait": LONG,
                "round-seconds": LONG,
            }
            run = self.deployment.submit(self.app, config)
            assert self.deployment.wait(run, LONG).completed, f"{method}: {self.deployment.output(run)}"
        return folder


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The one federation of the session."""
    folder = tmp_path_factory.mktemp("real")
    nodes: dict[str, dict[str, Scalar]] = {}
    for name, more in zip(NAMES, MORE, strict=True):
        nodes[name] = {"client": name, "state-dir": str(folder / name), "data": str(folder / f"{name}.npz"), **more}
    app = folder / "app"
    write_app(app, Experiment().to_toml())
    data = _held(folder)
    for method in METHODS:
        own = simulated(method).updated({"data": data})
        (folder / f"{method}.toml").write_text(own.to_toml(), "utf-8")
    with deploy(folder / "flower", nodes, seconds=LONG) as deployment:
        yield Place(folder, app, deployment, nodes)


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_asking_app(tmp_path_factory.mktemp("apps") / "asking")


def _held(folder: Path) -> dict[str, Any]:
    """Write what the clients and the server hold in simulation as files; what an experiment says of them."""
    experiment = simulated("fedavg")
    federation = load_federation(experiment.resolved(), build_method(experiment.method))
    assert federation.public is not None
    for name, path in zip(NAMES, write_parts(federation, folder), strict=True):
        path.rename(folder / f"{name}.npz")
    public = folder / "public.npz"
    np.savez(public, features=federation.public.numpy())
    return {
        "name": "own",
        "clients": CLIENTS,
        "features": federation.features,
        "classes": federation.classes,
        "public": PUBLIC,
        "public_file": str(public),
    }


@pytest.mark.slow
@pytest.mark.parametrize("method", list(METHODS))
def test_a_real_federation_ends_in_the_bits_of_the_simulation(place: Place, method: str) -> None:
    experiment = simulated(method).updated({"run.folder": str(place.folder / "simulated"), "run.name": method})
    coterie.run(experiment)
    real, simulation = place.run(method), RunFolder(place.folder / "simulated" / method)
    assert same(real.path, simulation.path)
    columns = ["round", "client", "accuracy", "loss", "group", "up_bytes", "down_bytes"]
    assert real.clients().select(columns).equals(simulation.clients().select(columns))
    assert real.ledger().equals(simulation.ledger())
    assert real.failures().is_empty()


@pytest.mark.slow
@pytest.mark.parametrize("method", list(METHODS))
def test_a_real_run_says_who_was_there_and_has_a_page(place: Place, method: str) -> None:
    status = FederationStatus.read(place.run(method))
    assert (status.round, status.of) == (2, 2)
    assert [(m.client, m.name, m.online, m.last_round, m.problem) for m in status.clients] == [
        (client, name, True, 2, None) for client, name in enumerate(NAMES)
    ]
    assert {m.name: m.node for m in status.clients} == place.deployment.nodes
    assert (place.run(method).path / "report.html").stat().st_size > 0


@pytest.mark.slow
def test_every_client_keeps_its_model_and_nobody_else_has_its_data(place: Place) -> None:
    place.run("fedavg")
    held = {}
    for name in NAMES:
        with np.load(place.folder / f"{name}.npz", allow_pickle=False) as part:
            held[name] = part["features"][0].tobytes()
        model = read_model(place.folder / name / MODEL)
        assert model.about.features == (8, 8, 1)
    for path in (place.folder / "runs").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(sample in content for sample in held.values()), path


@pytest.mark.slow
def test_an_app_is_carried_out_and_told_what_it_was_to_be_told(place: Place, asking: Path) -> None:
    assert online(place.deployment) == NAMES
    config: dict[str, Scalar] = {"nodes": CLIENTS, "text": "a 'quoted' word"}
    run = place.deployment.submit(asking, config)
    seen: list[int] = []
    assert place.deployment.wait(run, LONG, look=lambda: seen.extend(place.deployment.find())).completed
    assert seen
    *told, end = printed(place.deployment, run)
    names = {number: name for name, number in place.deployment.nodes.items()}
    assert {names[line["node"]]: line["told"] for line in told} == place.settings
    assert end["config"] == {"nodes": CLIENTS, "work": 0, "linger": 0, "text": "a 'quoted' word"}


@pytest.mark.slow
def test_a_run_can_be_cancelled_and_its_parts_killed(place: Place, asking: Path) -> None:
    run = place.deployment.submit(asking, {"nodes": CLIENTS, "work": 600.0})
    until(lambda: place.deployment.find(CLIENT_APP, "ward-1"))
    (pid,) = place.deployment.find(CLIENT_APP, "ward-1")
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    with pytest.raises(DeploymentFailed, match=r"has not finished after 0\.1 s; the end of .*superlink\.log"):
        place.deployment.wait(run, 0.1)
    for pid in place.deployment.find():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not place.deployment.find())
    place.deployment.command("stop", run, "local")
    status = place.deployment.wait(run, LONG)
    assert (status.finished, status.completed) == (True, False)
    assert not place.deployment.find()


@pytest.mark.slow
def test_an_app_that_is_refused_is_said_to_be(place: Place, tmp_path: Path) -> None:
    with pytest.raises(DeploymentFailed, match=r"flwr run .* was refused: .*pyproject"):
        place.deployment.submit(tmp_path)
    with pytest.raises(BadInput, match="node 'ward-4' is unknown; did you mean ward-"):
        place.deployment.find(CLIENT_APP, "ward-4")
