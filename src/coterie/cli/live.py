"""Show a run round by round: a table that renews itself on a terminal, plain lines everywhere else."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coterie.cli.printing import EscapingConsole
from coterie.errors import print_escaped
from coterie.report.numbers import decimals, measured, volume

if TYPE_CHECKING:
    from coterie.runs.events import Observer, Result, Round
    from coterie.runs.schema.experiment import Experiment

MOST_LINES = 100
"""About how many lines a run prints without a terminal."""

MOST_SIZES = 8
"""How many groups are shown with their sizes."""


@contextmanager
def watch_run(
    quiet: bool = False, console: Console | None = None, described: bool = True
) -> Iterator[list[Observer]]:
    """Give the observers that show a run. Leaving the context ends the live table, also after an error.

    Args:
        quiet: give no observer.
        console: where to show it; None for standard output.
        described: also print the lines that describe the federation.
    """
    console = console or EscapingConsole(highlight=False)
    if quiet:
        yield []
    elif console.is_terminal:
        table = LiveTable(console, described)
        try:
            yield [table]
        finally:
            table.stop()
    else:
        yield [PlainLines(console, described)]


@contextmanager
def exit_on_interrupt(sentence: str) -> Iterator[None]:
    """Print `sentence` and exit with code 130 if Ctrl-C or SIGTERM interrupts the block.

    A run that has begun catches the first interruption itself and saves its state. The second one is ignored, so
    that it can; the third one ends it. When an interrupted block is left, all is said and saved. From there on a
    signal ends the process at once, for Python's own handler would put a traceback into its last moments.
    """
    # A process in the background ignores these signals, and goes on ignoring them.
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    count = 0

    def interrupt(number: int, frame: Any) -> None:
        nonlocal count
        count += 1
        if count != 2:
            raise KeyboardInterrupt
        os.write(2, b"the state is being saved; interrupt once more to give up\n")

    former = {number: signal.signal(number, interrupt) for number in numbers}
    interrupted = False
    try:
        yield
    except KeyboardInterrupt:
        interrupted = True
        print_escaped(sentence)
        raise typer.Exit(128 + signal.SIGINT) from None
    except typer.Exit as leaving:
        interrupted = leaving.exit_code == 128 + signal.SIGINT
        raise
    finally:
        if interrupted:
            sys.stdout.flush()
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if interrupted else handler)


class PlainLines:
    """One line per round; about `MOST_LINES` of them if a run has very many rounds."""

    def __init__(self, console: Console, described: bool = True) -> None:
        self._console = console
        self._described = described
        self._left_out = 0

    def started(self, experiment: Experiment, description_lines: Sequence[str]) -> None:
        self._print(describe_run(experiment))
        for line in description_lines if self._described else ():
            self._print(f"  {line}")
        for text in find_idle_training(experiment):
            self.note(text)

    def round(self, round: Round) -> None:
        self._left_out += count_left_out(round)
        step = math.ceil(round.planned / MOST_LINES)
        if round.number % step and round.number not in (1, round.planned):
            return
        numbers = [f"{name} {value}" for name, value in describe_round(round).items()]
        parts = [
            f"round {round.number:>{len(str(round.planned))}}/{round.planned}",
            *numbers,
            *describe_costs(round),
        ]
        if self._left_out:
            reasons = f": {format_failures(round)}" if round.failures else ""
            parts.append(f"left out {self._left_out}{reasons}")
            self._left_out = 0
        self._print("  ".join(parts))

    def note(self, text: str) -> None:
        self._print(f"note: {text}", "yellow")

    def phase(self, text: str) -> None:
        """Say what takes time after the last round."""
        self._print(f"{text} …")

    def finished(self, result: Result) -> None:
        pass

    def _print(self, line: str, style: str = "") -> None:
        self._console.print(Text(line, style), soft_wrap=not self._console.is_terminal)


class LiveTable(PlainLines):
    """The state of the run, renewed after each round."""

    def __init__(self, console: Console, described: bool = True) -> None:
        super().__init__(console, described)
        # The rounds renew the table; a thread that does so in between could be forked into a worker.
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._last_failure = ""
        self._numbers: dict[str, str] = {}
        self._picture = Group()

    def started(self, experiment: Experiment, description_lines: Sequence[str]) -> None:
        super().started(experiment, description_lines)
        self._live.start()
        self._live.update(Text("first round …"), refresh=True)

    def round(self, round: Round) -> None:
        self._left_out += count_left_out(round)
        if round.failures:
            self._last_failure = f"round {round.number}, {format_failures(round)}"
        self._numbers |= describe_round(round)
        sent, left = describe_costs(round)
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(round.planned, round.number, width=24, complete_style="cyan", finished_style="green")
        head.add_row(Text(f"round {round.number}/{round.planned}"), bar, Text(left))
        rows = Table.grid(padding=(0, 2))
        rows.add_column(no_wrap=True)
        for name, value in {**self._numbers, "sent": sent}.items():
            rows.add_row(Text(f"  {name}", style="dim"), Text(value))
        if self._left_out:
            text = f"{self._left_out} in all; {self._last_failure}"
            rows.add_row(Text("  left out", style="dim"), Text(text, style="yellow"))
        self._picture = Group(head, rows)
        self._live.update(self._picture, refresh=True)

    def phase(self, text: str) -> None:
        self._live.update(Group(self._picture, Text(f"{text} …")), refresh=True)

    def finished(self, result: Result) -> None:
        self._live.update(self._picture, refresh=True)
        self.stop()

    def stop(self) -> None:
        """Leave the table as it stands and release the terminal; stopping twice is harmless."""
        self._live.stop()


def describe_run(experiment: Experiment) -> str:
    """Return the run in a few words."""
    data, run = experiment.data, experiment.run
    name = f"{run.name}: " if run.name else ""
    return f"{name}{experiment.method.name} on {data.name}, {data.split}, seed {run.seed}"


def describe_round(round: Round) -> dict[str, str]:
    """Write the metrics that a round has, each a mean over the clients, and how many clients each group has.

    `adapted` is the first metric after the experiment's adaptation, where it has one.
    """
    found, metrics = {}, round.measured
    for name, column, unit in (
        (metrics.deciding.title, metrics.headline, metrics.deciding),
        ("adapted", f"adapted_{metrics.headline}", metrics.deciding),
        ("worst 10 %", "worst10", metrics.deciding),
        *((metric.title, f"macro_{metric.name}", metric) for metric in metrics.further),
        ("loss", "loss", None),
    ):
        value: Any = round.metrics.get(column)
        if value is not None and not math.isnan(value):
            found[name] = decimals(value, 3) if unit is None else measured(unit, value)
    if any(round.group_sizes):
        found["groups"] = format_sizes(round.group_sizes)
    return found


def describe_costs(round: Round) -> tuple[str, str]:
    """Write what was sent since the run began, and the time that is left."""
    sent = f"{volume(round.up_bytes_total)} up, {volume(round.down_bytes_total)} down so far"
    return sent, f"{format_clock(estimate_seconds_left(round))} left"


def format_sizes(group_sizes: Sequence[int]) -> str:
    """Write how many groups have clients, and how many clients each of them has: `3 (8, 7, 5)`."""
    there = [str(size) for size in group_sizes if size]
    shown = there[:MOST_SIZES] + ["…"] * (len(there) > MOST_SIZES)
    return f"{len(there)} ({', '.join(shown)})"


def find_idle_training(experiment: Experiment) -> list[str]:
    """Return a sentence for each setting that keeps clients from training, which is seldom meant."""
    found = []
    if experiment.training.lr == 0:
        found.append("training.lr = 0, so no training changes a model")
    if experiment.training.epochs == 0:
        found.append("training.epochs = 0, so no client trains")
    return found


def format_failures(round: Round) -> str:
    """Write the first client that was left out, with the reason, and how many more there are."""
    client, reason = round.failures[0]
    name = round.names[client] if client < len(round.names) else f"client {client}"
    more = f" and {count_left_out(round) - 1} more" if count_left_out(round) > 1 else ""
    return f"{name} ({reason}){more}"


def count_left_out(round: Round) -> int:
    """Count the clients that were left out, each once."""
    return len({client for client, _ in round.failures})


def estimate_seconds_left(round: Round) -> float:
    """Estimate the seconds until the last round from the mean time of a round so far."""
    return round.seconds_total / round.number * (round.planned - round.number)


def format_clock(seconds: float) -> str:
    """Write seconds as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
