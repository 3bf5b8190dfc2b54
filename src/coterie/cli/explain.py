"""`coterie explain`: what a run will take, before anybody waits for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import What, make_experiment, with_options
from coterie.errors import count_of
from coterie.report.numbers import significant, volume
from coterie.report.tables import Table, to_rich

if TYPE_CHECKING:
    from rich.console import RenderableType

    from coterie.advice.explain.explain import Cost, Explanation

ALIKE = 1.25
"""Rounds that send the same are shown as one if the slower takes less than this many times the faster."""

HELP = """
Predict what a run will need on this machine: engine, memory, time, bytes.
Nothing is written.

Examples:

  coterie explain experiment.toml
  coterie explain fesem --data fashion-mnist --clients 100 --set clusters=4
  coterie explain experiment.toml --json

A few clients of different sizes really train, for two rounds. The others'
answers are copies of theirs: bytes and memory are counted, and seconds are
scaled from what the few took. Later rounds are assumed to cost as much as the
second.

Options are those of [bold]coterie run[/].
"""


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(help=HELP)(explain)


@with_options("runtime", "ray_address")
def explain(
    what: What,
    options: dict[str, Any],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say what a run will take on this machine."""
    from coterie.cli.live import exit_on_interrupt

    with exit_on_interrupt("interrupted; nothing was written"):
        experiment = make_experiment(what, **options)
        from coterie.advice.explain import explain as explaining

        explanation = explaining.explain(experiment)
    if as_json:
        print(json.dumps(explanation.tables(), indent=2))
        return
    from coterie.cli.printing import make_console

    console = make_console()
    for piece in _render(explanation):
        console.print(piece)


def _render(explanation: Explanation) -> Iterator[RenderableType]:
    """Yield the lines and tables that are printed."""
    from rich.text import Text

    from coterie.cli.live import describe_run, find_idle_training, format_clock
    from coterie.runs.baselines import CHEAP_SECONDS

    yield Text(describe_run(explanation.experiment))
    for line in explanation.description:
        yield Text(f"  {line}")
    together = "" if explanation.chunk == 1 else f", up to {explanation.chunk} clients in one kernel"
    processes = f"{explanation.workers} worker processes" if explanation.workers > 1 else "one process"
    precision = explanation.experiment.training.precision
    yield Text(f"engine  {explanation.engine}{together}, {precision}, in {processes}: {explanation.reason}")
    stored = explanation.data
    size = volume(stored.memory_bytes + stored.disk_bytes)
    read = explanation.later or explanation.first
    reading = "" if read is None else f"; training reads {volume(read.read_bytes)} of them a round"
    yield Text(f"data    inputs of {size} {stored.where}{reading}")
    free = explanation.available_bytes
    room = "" if free is None else f" of {volume(free)} that are free here"
    short = "; it does not fit" if explanation.fits is False else ""
    yield Text(f"memory  about {volume(explanation.bytes)}{room}{short}", style="red" if short else "")
    yield to_rich(_tabulate_memory(explanation))
    if explanation.seconds is not None:
        rounds = count_of(explanation.experiment.expected_rounds, "round")
        about = f"about {format_clock(explanation.seconds)} for {rounds}"
        start, end = _format_seconds(explanation.start_seconds), _format_seconds(explanation.end_seconds)
        yield Text(f"time    {about}: {start} to load and start, {end} at the end")
        yield to_rich(_tabulate_rounds(explanation))
        if not explanation.experiment.privacy.kind:
            limit = f"{CHEAP_SECONDS:.0f} s"
            yield Text(
                f"beside  FedAvg, FedAvg + FT and local-only are trained as baselines, if all rounds of all three "
                f"take at most {limit}; --baselines changes this"
            )
    for note in (*find_idle_training(explanation.experiment), *explanation.notes):
        yield Text(f"note: {note}", style="yellow")


def _tabulate_memory(explanation: Explanation) -> Table:
    parts = [(part.name, part.where, part.bytes) for part in explanation.memory]
    parts.append(("in all", "at the peak, when every client has taken part", explanation.bytes))
    return Table(
        ["part", "where", "MB"], [[name, where, f"{size / 1e6:,.1f}"] for name, where, size in parts], texts=2
    )


def _tabulate_rounds(explanation: Explanation) -> Table:
    assert explanation.first is not None
    costs: dict[str, Cost] = {"a round": explanation.first}
    if explanation.later is not None and not _are_alike(explanation.first, explanation.later):
        costs = {"first round": explanation.first, "a later round": explanation.later}
    rows = []
    for title, cost in costs.items():
        seconds = (cost.clients_seconds, cost.server_seconds, cost.evaluation_seconds, cost.seconds)
        sent = volume(cost.up_bytes), volume(cost.down_bytes)
        rows.append([title, *map(_format_seconds, seconds), *sent, _format_seconds(cost.simulated_seconds)])
    sent = volume(explanation.up_bytes or 0), volume(explanation.down_bytes or 0)
    simulated = _format_seconds(explanation.simulated_seconds or 0)
    rows.append(["whole run", "", "", "", _format_seconds(explanation.seconds or 0), *sent, simulated])
    return Table(["", "clients", "server", "evaluation", "seconds", "up", "down", "simulated"], rows)


def _are_alike(one: Cost, other: Cost) -> bool:
    """Whether two rounds send the same and take about the same time."""
    least, most = sorted((one.seconds, other.seconds))
    return (one.up_bytes, one.down_bytes) == (other.up_bytes, other.down_bytes) and most < ALIKE * least


def _format_seconds(value: float) -> str:
    return f"{significant(value, 2) if value < 10 else f'{value:,.0f}'} s"
