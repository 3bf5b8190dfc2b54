"""The charts of a run. `draw_run` has all of them in the order of the page; a new chart is a line there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from altair.utils.schemapi import debug_mode

from coterie.errors import BadInput
from coterie.report.charts.accuracy import draw_accuracy, draw_distribution
from coterie.report.charts.groups import draw_affinity, draw_history, draw_model_map
from coterie.report.charts.log import MOST_PLAIN, draw_logged, find_names
from coterie.report.drawing.figure import Figure, with_style
from coterie.report.numbers import join_words
from coterie.runs.folder.reading import RunResults


@debug_mode(False)  # Altair's checks take half of the time of all charts; the tests do them
def draw_run(run: RunResults, against: Sequence[RunResults] = ()) -> list[Figure]:
    """Draw every figure of a run in reading order, also those that have no chart but say why."""
    draws: dict[str, Callable[[], Figure]] = {
        run.metrics.deciding.name: partial(draw_accuracy, run, against),
        "distribution": partial(draw_distribution, run, against),
        "groups": partial(draw_history, run),
        "affinity": partial(draw_affinity, run),
        "map": partial(draw_model_map, run),
    }
    logged, undrawn = find_names(run)
    draws |= {figure: partial(draw_logged, run, figure, name) for figure, name in logged.items()}
    drawn = [_draw_or_say(name, draw) for name, draw in draws.items()]
    if undrawn:
        said = f"Left out for lack of room: {join_words(undrawn, MOST_PLAIN)}."
        drawn.append(Figure("log-rest", "Also in the log", said))
    return drawn


def _draw_or_say(name: str, draw: Callable[[], Figure]) -> Figure:
    """Return a figure in the style of all, or one that says why not: no chart costs the others, nor a run its page.

    Raises:
        BadInput: a file of the run is damaged.
    """
    try:
        return with_style(draw())
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001  # whatever numbers of a run make of a chart
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return Figure(name, name.capitalize(), f"This chart could not be drawn ({reason[:200]}).")
