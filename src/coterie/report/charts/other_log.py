"""A plain line chart for each name in a run's log that no other chart shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from coterie.report.drawing.figure import Figure
from coterie.report.drawing.marks import LOGARITHMIC, MOST_NAMED, lines_or_band, on_log_scale, value_axis
from coterie.report.numbers import join_words, significant
from coterie.runs.folder.reading import Run

MOST_PLAIN = 24
"""A page has at most so many plain charts; further names are listed."""


def draw_other_names(run: Run, names: Sequence[str], taken: Sequence[str]) -> Iterator[Figure]:
    """Draw each of these names in the log, and list those for which there is no room.

    Args:
        run: whose log it is.
        names: the names; those logged in one round only are left out.
        taken: names of figures that are on the page already.
    """
    names = [name for name in names if run.logged(name)["round"].n_unique() > 1]
    known = set(taken)
    for name in names[:MOST_PLAIN]:
        figure = _draw_name(run, name, known)
        known.add(figure.name)
        yield figure
    if rest := names[MOST_PLAIN:]:
        said = ", ".join(rest[:MOST_PLAIN]) + (" and others" if len(rest) > MOST_PLAIN else "")
        yield Figure("log-rest", "Also in the log", f"Not drawn, for want of room: {said}.")


def _draw_name(run: Run, name: str, taken: set[str]) -> Figure:
    """Draw a line for each `of` of a name; where they are many, their median and range."""
    frame = run.logged(name)
    log = on_log_scale(frame["value"])
    chart, median = lines_or_band(run, frame, value_axis(name, log))
    if median is None:
        ends = {of: value for _, of, value in frame.iter_rows()}
        said = join_words([significant(end, 4) + f" for {of}" * bool(of) for of, end in ends.items()], MOST_NAMED)
        caption = f"What the method logged as {name}. Here it ends at {said}"
    else:
        caption = (
            f"What the method logged as {name}, for {frame['of'].n_unique():,} parts of it: the line is their "
            f"median, the band their range. Here the median ends at {significant(median['value'][-1], 4)}"
        )
    caption += f", logged in rounds {frame['round'][0]} to {frame['round'][-1]}.{LOGARITHMIC * (log is not None)}"
    return Figure(_own_name(name, taken), name, caption, chart)


def _own_name(name: str, taken: set[str]) -> str:
    """Make a name for files and for places on the page that no other figure has."""
    plain = "log-" + (re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "number")
    count, own = 1, plain
    while own in taken:
        count += 1
        own = f"{plain}-{count}"
    return own
