"""The charts of a run. A file holds one kind of chart; a new chart is a function in one of them or in a new file.

Each chart registers itself (`coterie.report.charts.registry`), and every file of this folder is imported here.
Charts of one chapter stand in the order of the files' names, and then in that of the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from coterie.errors import BadInput
from coterie.report.charts.other_log import draw_other_names
from coterie.report.charts.registry import LOG_CHARTS, RUN_CHARTS, Chapter, LogChart, RunChart
from coterie.report.drawing.figure import Chart, Figure, with_style
from coterie.report.drawing.saving import save_charts
from coterie.runs.folder.reading import Run, read_runs
from coterie.runs.folder.run_folder import RunFolder

for _module in sorted(iter_modules(__path__), key=lambda module: module.name):
    import_module(f"{__name__}.{_module.name}")


def draw_run(run: Run, against: Sequence[Run] = ()) -> list[Figure]:
    """Draw every figure of a run in reading order, also those that have no chart but say why."""
    drawn: list[tuple[Chapter, Figure]] = []
    for chart in RUN_CHARTS:
        drawn += [
            (chart.chapter, f) for f in _draw_or_say(chart.name, partial(_draw_if_meant, chart, run, against))
        ]
    drawn += draw_log(run)
    ordered = [figure for _, figure in sorted(drawn, key=lambda pair: pair[0])]
    return [styled for figure in ordered for styled in _draw_or_say(figure.name, partial(_style, figure))]


def _style(figure: Figure) -> list[Figure]:
    return [with_style(figure)]


def _draw_if_meant(chart: RunChart, run: Run, against: Sequence[Run]) -> list[Figure]:
    return [chart.draw(run, against)] if chart.when(run) else []


def _draw_logged(chart: LogChart, run: Run) -> list[Figure]:
    return [chart.draw(run)]


def _draw_or_say(name: str, draw: Callable[[], list[Figure]]) -> list[Figure]:
    """Return figures, or one that says why there are none: no chart costs the others, nor a run its page.

    Raises:
        BadInput: a file of the run is damaged.
    """
    try:
        return draw()
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001  # whatever numbers of a run make of a chart
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return [Figure(name, name.capitalize(), f"This chart could not be drawn ({reason[:200]}).")]


def draw_log(run: Run) -> list[tuple[Chapter, Figure]]:
    """Draw what the method logged, in reading order; nothing for an empty log."""
    drawn: list[tuple[Chapter, Figure]] = []
    known: set[str] = set()
    for chart in sorted(LOG_CHARTS, key=lambda chart: chart.chapter):
        if chart.needs[0] not in known and chart.fits(run):
            figures = _draw_or_say(chart.needs[0], partial(_draw_logged, chart, run))
            drawn += [(chart.chapter, figure) for figure in figures]
            known |= {*chart.needs, *chart.shows}
    others = [name for name in run.log["name"].unique(maintain_order=True) if name not in known]
    taken = [figure.name for _, figure in drawn]
    rest = _draw_or_say("log", lambda: list(draw_other_names(run, others, taken)))
    return [*drawn, *((Chapter.OTHER, figure) for figure in rest)]


def charts_of(folder: RunFolder, against: Sequence[RunFolder] = ()) -> dict[str, Chart]:
    """Draw the charts of a run, by name; a chart that the run has no data for is left out.

    Raises:
        BadInput: a file of a run is damaged.
    """
    run, *others = read_runs([folder, *against])
    return {figure.name: figure.chart for figure in draw_run(run, others) if figure.chart is not None}


def save_charts_of(folder: RunFolder, directory: Path | str, against: Sequence[RunFolder] = ()) -> list[Path]:
    """Write each chart to `directory` as SVG and as PNG (at twice the size) and return the files.

    Raises:
        BadInput: a file of a run is damaged.
    """
    return save_charts(charts_of(folder, against), directory)
