"""`coterie flower`: commands for real clients on other machines."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import Allow, give_typed
from coterie.errors import BadInput, count_of, print_escaped
from coterie.report.tables import Table, to_rich

if TYPE_CHECKING:
    from coterie.shipping.flower.status import ClientStatus

HELP = """
Reach real clients through Flower: each trains on data of its own.

Begin with [bold]coterie flower demo[/], a whole federation on this machine; then
[bold]coterie flower new DIR[/] writes an app whose README leads from a rehearsal to
real clients.
"""

REMOTE_DATA: dict[str, Any] = {"name": "remote", "clients": 3, "features": [8, 8, 1], "classes": 10}
"""A placeholder in a new app's experiment for what the clients hold; it fits the digits."""

flower = typer.Typer(rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]})


def add(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(flower, name="flower")


@flower.callback(invoke_without_command=True, help=HELP)
def commands(context: typer.Context) -> None:
    """Print the help where no command is given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@flower.command()
def demo(
    folder: Annotated[str, typer.Option(metavar="DIR", help="Where the run's folder is made.")] = "runs",
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of all random numbers.")] = 0,
) -> None:
    """Find out which of three real clients belong together: a server, TLS and keys on this machine, offline."""
    from coterie.cli.live import exit_on_interrupt
    from coterie.runtime.flower import require

    require("the demonstration of a real federation")
    with exit_on_interrupt("interrupted; everything is stopped"):
        from coterie.cli.demo_flower import show
        from coterie.shipping.flower.command_line import DeploymentFailed

        try:
            show(folder, seed)
        except DeploymentFailed as error:
            print_escaped(f"coterie: {error}", file=sys.stderr)
            raise typer.Exit(1) from None


@flower.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder; new or empty.")],
    experiment: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="The experiment it begins with.")
    ] = None,
    method: Annotated[str | None, typer.Option(metavar="METHOD", help="The method it begins with.")] = None,
    allow: Allow = None,
) -> None:
    """Write a Flower app: an experiment with every setting, and a guide from rehearsal to real clients.

    With --experiment, an experiment on a table of your own becomes one for clients who hold such tables. It names
    their columns, their classes and the values of text.
    """
    from coterie.cli.flower_new import leave_data_with_clients, write_app
    from coterie.clients.data import DATASETS
    from coterie.clients.open_files import is_there
    from coterie.runs.schema.experiment import Experiment

    if experiment is not None and method is not None:
        raise BadInput(f"--method {method!r} does not go with --experiment, which names one; leave one of them out")
    if experiment is not None:
        found = Experiment.from_toml(experiment)
        name = found.data.name
        table = name if name not in DATASETS and is_there(name) else None
        found = found if table is None else leave_data_with_clients(found)
    else:
        give_typed({"method": method})
        found = Experiment(data=REMOTE_DATA, method=_choose_method(method or "fesem"))
    write_app(folder, found.commented_toml())
    where = shlex.quote(str(folder))
    if experiment is None:
        print_escaped(f"{where} is written; say in {where}/experiment.toml what data the clients hold")
    elif table is not None:
        print_escaped(f"{where} is written for {found.data.clients} clients who hold data such as {table}")
    elif found.data.is_remote:
        print_escaped(f"{where} is written")
    else:
        print_escaped(f"{where} is written for a rehearsal: each client uses its part of {found.data.name}")
    print_escaped(f"next: {where}/README.md")


@flower.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name or address under which clients reach the server; repeatable."),
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A client that gets a key pair; repeatable.")
    ] = None,
) -> None:
    """Make a certificate for the server and a key pair for each client; nothing is ever overwritten.

    If DIR has certificates already, only clients are added.
    """
    from coterie.shipping.flower.keys import make_keys

    for path in make_keys(folder, host or [], client or []):
        print_escaped(path)


@flower.command()
def data(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="A simulation.")],
    into: Annotated[Path, typer.Option(metavar="DIR", help="Where the files go.")] = Path("parts"),
    allow: Allow = None,
) -> None:
    """Write each client's part of a simulated federation as a file, which real clients can hold in a rehearsal."""
    from coterie.runs.held_out_clients import hold_out_clients
    from coterie.runs.schema.experiment import Experiment, prepare
    from coterie.runs.setup import load_federation
    from coterie.shipping.flower.parts import write_parts

    found = Experiment.from_toml(experiment)
    federation = load_federation(prepare(found))
    federation, _ = hold_out_clients(federation, found.run.holdout_clients, found.split_seed)
    for path, name, sizes in zip(
        write_parts(federation, into), federation.names, federation.bounds[:, [0, 3]].tolist(), strict=True
    ):
        print_escaped(f"{path}  {name}, {count_of(sizes[1] - sizes[0], 'sample')}")
    print_escaped(
        f'clients who load these files need in [data]: name = "remote", clients = {federation.n}, '
        f"features = {list(federation.features)}, classes = {federation.classes}"
    )


@flower.command()
def status(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN|FOLDER", help="A run, or its folder; without it, the latest.")
    ] = None,
    folder: Annotated[str, typer.Option(metavar="DIR", help="Where run folders are.")] = "runs",
) -> None:
    """Say who is connected to a run, in which group, and when each was last seen, as of its last round."""
    from coterie.cli.printing import make_console
    from coterie.runs.folder.run_folder import RunFolder
    from coterie.shipping.flower.status import FederationStatus, latest_run

    found = latest_run(folder) if run is None else RunFolder.find(run, folder)
    standing = FederationStatus.read(found)
    running = found.status == "running"
    where = make_console()
    progress = f"round {standing.round} of {standing.of}, as of {_ago(standing.written)}"
    where.print(f"{found.name}: {found.status}, {progress}")
    # The server of a run that has ended does not notice who is connected.
    where.print(
        to_rich(_tabulate([client if running else replace(client, online=False) for client in standing.clients]))
    )


def _choose_method(method: str) -> dict[str, Any]:
    """Return the method, with two groups where their number is a setting: there may be no more than clients."""
    from coterie.runs.schema.names import catalog

    grouped = any(setting.name == "clusters" for setting in catalog("method")[method].settings)
    return {"name": method, **({"clusters": 2} if grouped else {})}


def _tabulate(clients: list[ClientStatus]) -> Table:
    """Return a row for each client; those that are not connected are bold."""
    rows = []
    for client in clients:
        numbers = (client.group, client.samples, client.last_round)
        cells = (
            client.name,
            client.node or "",
            "online" if client.online else "offline",
            client.problem or "",
            "" if client.last_seen is None else _ago(client.last_seen),
            # Who has no group yet is in group -1.
            *("" if number is None or number < 0 else str(number) for number in numbers),
        )
        rows.append([str(client.client), *cells])
    titles = ["client", "name", "node", "", "problem", "last seen", "group", "samples", "last round"]
    away = {(row, column) for row, one in enumerate(clients) if not one.online for column in range(len(titles))}
    return Table(titles, rows, texts=6, strong=away)


def _ago(moment: datetime) -> str:
    """Say how long ago a moment was, in the largest unit of which it is at least two."""
    then = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    seconds = max((datetime.now(UTC) - then).total_seconds(), 0)
    for unit, length in (("days", 86400), ("hours", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
