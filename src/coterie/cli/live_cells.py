"""Show the cells of a comparison as they run: a bar on a terminal, a line per finished cell everywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coterie.cli.live import format_clock
from coterie.cli.printing import EscapingConsole
from coterie.errors import count_of
from coterie.report.numbers import measured
from coterie.runs.folder.metrics import RunMetric
from coterie.studies.compare.cells import CellOutcome, Watcher
from coterie.studies.compare.notes import gather_notes
from coterie.studies.compare.spec import Cell

MOST_SILENT_SECONDS = 10.0
"""Without a terminal, after so long a silence a line says how far a cell is."""
SURE_SHARE, SURE_SECONDS = 0.05, 3.0
"""The time left is said once so much of the work has been watched, for so many seconds."""


@contextmanager
def watch_cells(
    quiet: bool = False, console: Console | None = None, *, holds_notes: bool = False
) -> Iterator[Watcher]:
    """Give the observer that shows how cells get on. Leaving the context ends the display, also after an error.

    Args:
        quiet: show nothing.
        console: where to show it; None for standard output.
        holds_notes: the caller prints what the runs have noted, by `CellLines.tell_notes`, behind a table.
    """
    console = console or EscapingConsole(highlight=False)
    if quiet:
        yield Watcher()
        return
    watching = (LiveCells if console.is_terminal else CellLines)(console)
    try:
        yield watching
    except BaseException:
        holds_notes = False
        raise
    finally:
        watching.stop()
        if not holds_notes:
            watching.tell_notes()


class CellLines(Watcher):
    """One line per cell that ended. One observer may watch several series of cells, one after the other."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said_at = self._began_at = time.monotonic()
        self._later: int | None = None
        """How many rounds follow the series of cells that runs now; None where it is no stage of many."""
        self._most_left = 0
        """The most rounds that were left at any time."""
        self._rounds: dict[str, int] = {}
        self._heard, self._heard_at = 0, 0.0
        """How many rounds have ended while somebody watched, and when the first did."""
        self._notes: list[tuple[Cell, str]] = []
        self._has_tried = self._has_said_all = self._is_estimated = False
        self._runs: dict[str, int] = {}
        """The place of each run in the order of the comparison, which is not that in which runs end."""
        self._told: set[str] = set()
        self._told_kinds: set[tuple[str, str]] = set()

    def later(self, rounds: int | None) -> None:
        self._later = rounds

    def started(self, todo: Sequence[Cell], done: int) -> None:
        self._cells, self._done = len(todo) + done, done
        self._rounds = {cell.key: self._rounds.get(cell.key, 0) for cell in todo}
        self._planned = {cell.key: cell.until or cell.experiment.expected_rounds for cell in todo}
        self._is_estimated = any(cell.experiment.run.passes is not None for cell in todo)
        are_further = bool(self._runs) and not done
        for cell in todo:
            if not cell.trial:
                self._runs.setdefault(cell.key, len(self._runs))
        self._reached: dict[str, tuple[RunMetric, float]] = {}
        self._running: dict[str, Cell] = {}
        if self._later is None:
            self._heard = self._most_left = 0
        self._most_left = max(self._most_left, self._rounds_left())
        if todo:
            # Whoever has seen trials wants to know when the runs begin that count.
            tries = bool(todo[0].trial)
            self._word = "tuning" if tries else "final" if self._has_tried else "run"
            self._has_tried |= tries
            kind = "further run" if are_further else "final run" if self._word == "final" else "run"
            what = count_of(self._cells, "trial" if tries else kind)
            rounds = set(self._planned.values())
            about = "about " * self._is_estimated
            each = f", {about}{count_of(rounds.pop(), 'round')}" if len(rounds) == 1 else ""
            each += " each" * (bool(each) and len(todo) > 1)
            there = f", of which {done} {'is' if done == 1 else 'are'} finished" if done else ""
            if self._later is None:
                self.say(f"{what}{there}{each}")
            elif not self._has_said_all:
                self._has_said_all = True
                self.say(f"about {count_of(self._most_left, 'round')} in all")

    def begun(self, cell: Cell) -> None:
        self._running[cell.key] = cell

    def round(self, cell: Cell, number: int, value: float | None, metric: RunMetric) -> None:
        if not self._heard:
            self._heard_at = time.monotonic()
        self._heard += 1
        self._rounds[cell.key] = number
        self._planned[cell.key] = max(self._planned[cell.key], number)
        if value is not None:
            self._reached[cell.key] = metric, value
        self._tell_round(cell)

    def note(self, cell: Cell, text: str) -> None:
        if not cell.trial:  # that some settings do not work is what trials are for
            self._notes.append((cell, text))

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        self._running.pop(cell.key, None)
        self._planned[cell.key] = self._rounds[cell.key]  # it may have ended sooner than expected, or failed
        self._done += 1
        self._tell_ended(cell, outcome)

    def waiting(self) -> None:
        for cell in [*self._running.values()][:1]:
            self._tell_round(cell)

    def phase(self, text: str) -> None:
        self.say(f"{text} …")

    def stop(self) -> None:
        """Release the terminal; stopping twice is harmless."""

    def tell_first(self, sentences: Sequence[str]) -> None:
        """Print notes before the first run, which the runs' own then do not repeat."""
        for sentence in sentences:
            self.say(f"note: {sentence}", "yellow")
        self._told.update(sentences)

    def tell_notes(self, beside: Sequence[str] = ()) -> None:
        """Print what the runs have noted since, each note once in all, with the first that say it.

        Args:
            beside: sentences that are printed already, of which some hold a note.
        """
        self._notes.sort(key=lambda noted: self._runs[noted[0].key])
        for note in gather_notes(self._notes):
            is_known = note.text in self._told or any(note.text in sentence for sentence in beside)
            if not is_known and not note.kinds <= self._told_kinds:
                self.say(f"note: {note.describe(len(self._runs))}", "yellow")
                self._told.add(note.text)
            self._told_kinds |= note.kinds
        self._notes.clear()

    def has_told(self, sentence: str) -> bool:
        """Say whether a note was printed already, whatever the sentence says of the runs that have it."""
        return any(text in sentence for text in self._told)

    def _tell_round(self, cell: Cell) -> None:
        """Say how far the cell is, where nothing was said for long."""
        if time.monotonic() - self._said_at >= MOST_SILENT_SECONDS:
            round = f"round {self._rounds[cell.key]}/{self._planned[cell.key]}"
            self.say(f"{self.count} done  {cell.label} in {round}  {self.left}")

    def _tell_ended(self, cell: Cell, outcome: CellOutcome) -> None:
        if outcome.status == "failed":
            self.say(f"{self.count}  {cell.label}: failed: {outcome.sentence}", "" if cell.trial else "red")
            return
        reached = ""
        if cell.key in self._reached:
            metric, value = self._reached[cell.key]
            reached = f"  {metric.title} {measured(metric, value)}"
        stage = f" to round {cell.until}" if cell.until else ""
        self.say(f"{self.count}  {cell.label}{stage}{reached}  {self.left}")

    @property
    def count(self) -> str:
        """Write how many cells are done, of how many; of one stage of many, the share of all rounds."""
        if self._later is not None:
            return f"{self._word} {1 - self._rounds_left() / max(1, self._most_left):4.0%}"
        return f"{self._word} {self._done:>{len(str(self._cells))}}/{self._cells}"

    @property
    def left(self) -> str:
        """Estimate the time until the last round from the mean time of a round so far; empty before it is known."""
        left, seconds = self._rounds_left(), time.monotonic() - self._heard_at
        if seconds < SURE_SECONDS or self._heard < 2 + SURE_SHARE * (self._heard + left):
            return ""
        about = "about " * self._is_estimated
        return f"{about}{format_clock(seconds / (self._heard - 1) * left)} left"

    def say(self, line: str, style: str = "") -> None:
        """Print a line."""
        self._said_at = time.monotonic()
        self._console.print(Text(line, style), soft_wrap=True)

    def _rounds_left(self) -> int:
        return sum(self._planned[key] - self._rounds[key] for key in self._planned) + (self._later or 0)


class LiveCells(CellLines):
    """A bar of the cells that are done, and the round of each that runs now."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        # Every message of a cell, and every second without one, renews it, so it needs no thread of its own.
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def started(self, todo: Sequence[Cell], done: int) -> None:
        super().started(todo, done)
        if todo:
            self._live.start()
            self._show()

    def begun(self, cell: Cell) -> None:
        super().begun(cell)
        self._show()

    def round(self, cell: Cell, number: int, value: float | None, metric: RunMetric) -> None:
        super().round(cell, number, value, metric)
        self._show()

    def waiting(self) -> None:
        self._show()

    def _tell_round(self, cell: Cell) -> None:
        """The picture shows the round of each cell."""

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        super().ended(cell, outcome)
        self._show()
        if self._done == self._cells:
            self.stop()

    def stop(self) -> None:
        self._live.stop()

    def _show(self) -> None:
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        head = Table.grid(padding=(0, 2))
        is_stage = self._later is not None
        total, left = (
            (self._most_left, self._rounds_left()) if is_stage else (self._cells, self._cells - self._done)
        )
        bar = ProgressBar(total, total - left, width=24, complete_style="cyan", finished_style="green")
        seconds = format_clock(time.monotonic() - self._began_at)
        head.add_row(Text(self.count), bar, Text(seconds), Text(self.left))
        rows = Table.grid(padding=(0, 2))
        for key, cell in self._running.items():
            rows.add_row(
                Text(f"  {cell.label}", style="dim", no_wrap=True, overflow="ellipsis"),
                Text(f"round {self._rounds[key]}/{self._planned[key]}"),
                Text(measured(*self._reached[key]) if key in self._reached else ""),
            )
        return Group(head, rows)
