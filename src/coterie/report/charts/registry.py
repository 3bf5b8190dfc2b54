"""Charts register themselves: for every run, or for runs whose method logged certain names.

A chart of the log belongs to names in the log, not to a method. So a method made of parts of others gets theirs.

    @log_chart(Chapter.SHARING, "temperature")
    def draw_temperature(run: Run) -> Figure:
        frame = run.logged("temperature")
        return Figure("temperature", "Title", "Caption.", lines(run, frame, value_axis("temperature")))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from coterie.report.drawing.figure import Figure
from coterie.runs.folder.reading import Run


class Chapter(IntEnum):
    """The chapters of a run's charts, in reading order."""

    ACCURACY = 1
    """How well the clients do."""
    GROUPS = 2
    """Who belongs together."""
    NEWCOMERS = 3
    """How clients fare who were held out of training."""
    TRIGGERS = 4
    """When the server looks for groups."""
    GROUPING = 5
    """How it finds them."""
    SHARING = 6
    """What the clients of a group share."""
    OTHER = 7
    """What else the method logged."""
    COST = 8
    """What it takes."""


@dataclass(frozen=True)
class RunChart:
    """A chart that every run has, or every run of which `when` is true."""

    chapter: Chapter
    draw: Callable[[Run, Sequence[Run]], Figure]
    """Draws a run, beside others where the chart can show several."""
    when: Callable[[Run], bool]
    name: str
    """Of the chart, where it cannot be drawn."""


@dataclass(frozen=True)
class LogChart:
    """A chart of what a method logged."""

    chapter: Chapter
    draw: Callable[[Run], Figure]
    needs: tuple[str, ...]
    """Names in the log without which it is not drawn."""
    shows: tuple[str, ...]
    """Names that it shows too where they are logged. A later chart that needs one of these first is left out."""
    of: frozenset[str] | None
    """The parts (`of` in the log) that the first needed name may have; None for any."""

    def fits(self, run: Run) -> bool:
        """Say whether the log has what the chart needs, in the form that the chart knows."""
        if any(not run.logged(name).height for name in self.needs):
            return False
        return self.of is None or set(run.logged(self.needs[0])["of"]) <= self.of


RUN_CHARTS: list[RunChart] = []
LOG_CHARTS: list[LogChart] = []

DrawRun = Callable[[Run], Figure]
DrawRuns = Callable[[Run, Sequence[Run]], Figure]


def _name(draw: Callable[..., Figure]) -> str:
    return draw.__name__.removeprefix("draw_").replace("_", " ")


def run_chart(chapter: Chapter, when: Callable[[Run], bool] = lambda run: True) -> Callable[[DrawRun], DrawRun]:
    """Decorate a function that draws a run, to put its figure into a chapter of the page of every run."""

    def register(draw: DrawRun) -> DrawRun:
        RUN_CHARTS.append(RunChart(chapter, lambda run, against: draw(run), when, _name(draw)))
        return draw

    return register


def runs_chart(chapter: Chapter) -> Callable[[DrawRuns], DrawRuns]:
    """Decorate a function that draws a run and those it is compared with, as `run_chart` does."""

    def register(draw: DrawRuns) -> DrawRuns:
        RUN_CHARTS.append(RunChart(chapter, draw, lambda run: True, _name(draw)))
        return draw

    return register


def log_chart(
    chapter: Chapter, *needs: str, shows: Sequence[str] = (), of: Sequence[str] | None = ("",)
) -> Callable[[DrawRun], DrawRun]:
    """Decorate a function that draws names in a run's log; the arguments are those of `LogChart`.

    Charts of one file are taken in the order in which they stand there.
    """

    def register(draw: DrawRun) -> DrawRun:
        LOG_CHARTS.append(LogChart(chapter, draw, needs, tuple(shows), None if of is None else frozenset(of)))
        return draw

    return register
