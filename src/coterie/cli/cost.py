"""`coterie cost`: what runs would take on given devices, in seconds and joules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.completion import complete_runs
from coterie.cli.options import RunsFolder, find_run

HELP = """
Estimate from a table of devices how long runs would take, and how much energy
the devices would use.

The table is a CSV file with one row for each kind of device. The first client
has the first kind, the second client the second kind, and so on in turn. The
columns are device (a name), seconds_per_sample and joules_per_sample of
training, up_mbit, down_mbit, up_watts and down_watts of the link, and
on_seconds and off_seconds of a device that switches on and off. A missing
column costs nothing; a link without a speed has 2 Mbit/s.
"""


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(help=HELP)(cost)


def cost(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Names of runs, or their folders.", autocompletion=complete_runs),
    ],
    devices: Annotated[Path, typer.Option(metavar="FILE.csv", help="The table of devices.")],
    folder: RunsFolder = "runs",
) -> None:
    """Print what runs take on given devices."""
    from coterie.cli.printing import make_console
    from coterie.report.devices import price_run, read_devices
    from coterie.report.numbers import significant
    from coterie.report.tables import Table, to_rich

    table = read_devices(devices)
    rows = []
    for text in runs:
        found = find_run(text, folder)
        price = price_run(found, table)
        numbers = (price.seconds, price.joules, price.computing, price.up, price.down, price.most)
        rows.append([found.path.name, *(significant(number) for number in numbers)])
    header = ["run", "seconds", "joules", "computing", "up", "down", "most, one client"]
    make_console().print(to_rich(Table(header, rows)))
