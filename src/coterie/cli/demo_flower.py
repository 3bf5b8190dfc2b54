"""The demonstration of a real federation: a server and three clients in processes of their own, TLS and keys."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coterie.cli.flower_new import write_app
from coterie.cli.live import format_clock
from coterie.clients.data.federation import Federation
from coterie.clients.data.read.datasets import find_problems
from coterie.errors import count_of, print_escaped
from coterie.report.numbers import percent
from coterie.runs.folder.run_folder import RunFolder, list_runs
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.setup import load_federation
from coterie.shipping.flower.command_line import DeploymentFailed, Scalar
from coterie.shipping.flower.deployment import Deployment, deploy
from coterie.shipping.flower.parts import write_parts
from coterie.shipping.flower.status import FEDERATION, FederationStatus

NAME = "demo-flower"
"""What the run is called."""

CLIENTS = 3

WRITERS, DIGITS = "mnist-writers", "digits"
"""The data of the clients: the digits of a person each or, where that file is not here, scikit-learn's."""

INTRODUCTION = (
    "A server and three clients, each a process of its own, talk over TLS on this machine;",
    "each client proves itself with its key. {whose}",
    "The images of the second client are upside down. The server is not told, and no image",
    "leaves its client. FeSEM has to find out which clients belong together.",
)

WHOSE = {
    WRITERS: "Each holds the digits of another writer.",
    DIGITS: "Each holds its own of scikit-learn's digits.",
}

SECONDS = 900.0
"""Limit for the run. It takes some minutes, most of them to start a process for every message."""


def show(folder: str, seed: int = 0) -> RunFolder:
    """Run the demonstration and print what happens and what it found.

    Raises:
        BadInput: Flower is not installed, or runs cannot be made in `folder`.
        DeploymentFailed: something did not come up, or the run did not end well; the message says where to look.
    """
    data = DIGITS if find_problems(WRITERS) else WRITERS
    simulated = make_simulation(data, seed)
    federation = load_federation(prepare(simulated))
    experiment = use_own_data(simulated, federation, folder)
    experiment.check()
    for line in INTRODUCTION:
        print_escaped(line.format(whose=WHOSE[data]))
    print()
    say = _TimedPrinter()
    with tempfile.TemporaryDirectory(prefix="coterie-flower-") as temporary:
        place = Path(temporary)
        nodes: dict[str, dict[str, Scalar]] = {}
        for client, part in enumerate(write_parts(federation, place / "data")):
            name = _name(client)
            nodes[name] = {"client": name, "data": str(part), "state-dir": str(place / "states" / name)}
        write_app(place / "app", experiment.to_toml())
        with deploy(place / "federation", nodes, seconds=SECONDS) as deployment:
            say(f"the SuperLink listens at {deployment.address}, and {len(nodes)} SuperNodes are connected")
            run = _train(deployment, place / "app", folder, say)
        say("everything is stopped")
    _print_result(run)
    return run


def make_simulation(data: str, seed: int) -> Experiment:
    """Return the experiment whose clients' data the real ones are given."""
    split = "by-user + rotated(2)" if data == WRITERS else "rotated(2)"
    return Experiment(
        data={"name": data, "split": split, "clients": CLIENTS, "test": 0.3},
        network={"name": "mlp", "hidden": [32]},
        # A long warm-up parts single writers; a common one is for many clients.
        method={"name": "fesem", "clusters": 2, "warm_up": 0},
        training={"epochs": 5, "batch_size": 10, "lr": 0.05},
        evaluation={"every": 2},
        run={"rounds": 4, "seed": seed},
    ).resolved()


def use_own_data(simulated: Experiment, federation: Federation, folder: str) -> Experiment:
    """Return the same experiment for clients that hold their data themselves."""
    held: dict[str, Any] = {
        "name": "remote",
        "clients": CLIENTS,
        "features": federation.features,
        "classes": federation.classes,
    }
    return simulated.updated({"data": held, "run.folder": folder})


def _train(deployment: Deployment, app: Path, folder: str, say: Callable[[str], None]) -> RunFolder:
    """Submit the app and print the progress of its run until it has ended."""
    before = {run.name for run in list_runs(folder)}
    number = deployment.submit(app, {"name": NAME, "runs": str(Path(folder).resolve())})
    say("the run is submitted")
    found: list[RunFolder] = []
    reached = -1

    def look() -> None:
        nonlocal reached
        found[:] = [run for run in list_runs(folder) if run.name not in before and (run.path / FEDERATION).exists()]
        if found and (standing := FederationStatus.read(found[0])).round > reached:
            reached = standing.round
            say(_progress(standing))

    status = deployment.wait(number, SECONDS, look)
    if not status.completed or not found:
        printed = "\n  ".join(["", *deployment.output(number).splitlines()[-15:]])
        raise DeploymentFailed(f"the run has ended as {status.state}: {status.details}{printed}")
    return found[0]


def _progress(standing: FederationStatus) -> str:
    online = sum(client.online for client in standing.clients)
    if not standing.round:
        return f"connected: {count_of(online, 'client')}; first round …"
    groups = _format_groups([client.group for client in standing.clients])
    return f"round {standing.round}/{standing.of}  {count_of(online, 'client')}  groups {groups}"


def _format_groups(groups: Sequence[int | None]) -> str:
    """Write groups as `client-0 client-2 | client-1`."""
    together: dict[int | None, list[str]] = {}
    for client, group in enumerate(groups):
        together.setdefault(group, []).append(_name(client))
    return " | ".join(" ".join(names) for names in together.values())


def _name(client: int) -> str:
    return f"client-{client}"


def _print_result(run: RunFolder) -> None:
    clients = run.clients()
    last = clients.filter(clients["round"] == clients["round"].max())
    accuracies = ", ".join(f"{_name(c)} {percent(a)}" for c, a in last.select("client", "accuracy").iter_rows())
    print()
    print_escaped(f"found     {_format_groups(last['group'].to_list())}")
    print_escaped(
        f"in truth  {_format_groups([client % 2 for client in range(CLIENTS)])}"
    )  # rotated(2) turns every second one
    print_escaped(f"accuracy  {accuracies}")
    print_escaped(f"\npage  {run.path / 'report.html'}")
    print_escaped(f"next  coterie flower status {run.path}")
    print("      coterie flower new my-federation")


class _TimedPrinter:
    """Prints what happens, and when."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        print_escaped(f"{format_clock(time.monotonic() - self._start):>5}  {text}", flush=True)
