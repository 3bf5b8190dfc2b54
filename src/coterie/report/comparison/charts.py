"""The charts of a comparison: accuracy over rounds, its price in bytes and in passes, and the groups found."""

from __future__ import annotations

from collections.abc import Callable

import altair as alt
import polars as pl
from altair.utils.schemapi import debug_mode

from coterie.report.comparison.client_gains import draw_gains
from coterie.report.comparison.view import View, value
from coterie.report.drawing.colours import NO_GROUP
from coterie.report.drawing.figure import HEIGHT, Chart, Figure, axis_of_rounds, rows, with_style
from coterie.report.drawing.marks import DASHED, PLAIN, thin_rounds
from coterie.report.numbers import axis_format, capital, join_words, significant, value_format, volume
from coterie.runs.folder.reading import MEGABYTE

MOST_BANDS = 6
"""Methods whose bands over the seeds are drawn; of more, only those of the best and of the baseline."""

_POINTS = 2400


@debug_mode(False)  # as in draw_run
def draw_setting(view: View) -> list[Figure]:
    """The figures of one setting in reading order, also those that have no chart but say why."""
    drawn = [
        draw_curves(view),
        *([draw_gains(view)] if len(view.every) > 1 else []),
        draw_cost(view),
        draw_effort(view),
        *([draw_agreement(view)] if view.clients["true_group"].drop_nulls().n_unique() > 1 else []),
    ]
    return [with_style(figure) for figure in drawn]


def draw_curves(view: View) -> Figure:
    """The measure over rounds: the mean over seeds with the range of the seeds, and the target."""
    name, title = f"{view.metrics.deciding.name}{view.mark}", f"{capital(view.drawn.title)}, over rounds"
    frame = _over_seeds(view, view.drawn_measure)
    if not frame.height:
        return Figure(name, title, "No round was evaluated, so there is nothing to draw.")
    caption = "Each line is the mean over the seeds"
    caption += "" if len(view.seeds) == 1 else ", and the band is their range"
    if len(view.seeds) > 1 and frame["method"].n_unique() > MOST_BANDS:
        caption += ". Bands are drawn for the best method and the baseline alone"
    target = view.cells["target"].drop_nulls().mean() if view.drawn_measure == view.measure else None
    if isinstance(target, float):
        caption += f". The dashed line is the target, {value(view.drawn, target)}"
    return Figure(name, title, f"{caption}.", _draw_lines(view, frame, target=target), height=_height(frame))


def _draw_spent(view: View, of: str, field: str, title: str, about: str, write: Callable[[float], str]) -> Figure:
    """Draw the measure against what was spent on it so far: a line for each method, its mean over seeds.

    Args:
        view: the setting.
        of: the figure's name.
        field: the column of what was spent, such as `megabytes`.
        title: what that is, in a few words.
        about: the same in sentences.
        write: a value of it in words.
    """
    name, whole = f"{of}{view.mark}", f"{capital(view.drawn.title)}, for {title}"
    frame = _over_seeds(view, view.drawn_measure).drop_nulls(field)
    if not frame.height or not frame[field].max():
        return Figure(name, whole, f"No {title} are on record, so there is nothing to draw.")
    ends = frame.group_by("method", maintain_order=True).last().rows_by_key("method", named=True, unique=True)
    said = [f"{view.label_of(method)} {write(row[field])}" for method, row in ends.items()]
    caption = (
        f"{about} Each line is the mean over the seeds. Further "
        f"{'down' if view.drawn.less_is_better else 'up'} and left is better. At the end: {join_words(said, 15)}."
    )
    return Figure(name, whole, caption, _draw_lines(view, frame, along=field), height=_height(frame))


def draw_cost(view: View) -> Figure:
    """Draw the measure against all bytes sent."""
    about = "Megabytes are those of all clients together, up and down, from the first round on."
    return _draw_spent(view, "cost", "megabytes", "megabytes sent", about, lambda v: volume(v * MEGABYTE))


def draw_effort(view: View) -> Figure:
    """Draw the measure against the passes that clients have made over their own samples."""
    about = (
        "A local pass is a client's training on as many samples as it has; the axis counts them from the first "
        "round on, warm-ups included, on average over the clients."
    )
    return _draw_spent(view, "passes", "passes", "local passes", about, significant)


def draw_agreement(view: View) -> Figure:
    """The adjusted Rand index over rounds, of the methods that make groups."""
    name, title = f"groups{view.mark}", "Agreement with the true groups, over rounds"
    grouping = view.curves.filter(pl.col("groups") > 1)["method"].unique().to_list()
    frame = _over_seeds(view, "ari").filter(pl.col("method").is_in(grouping))
    if not frame.height:
        return Figure(
            name, title, "No method made two groups or more, so there are none to compare with the true ones."
        )
    caption = "The adjusted Rand index is 1 where the groups are exactly the true ones, and about 0 by chance."
    chart = _draw_lines(view, frame, named="adjusted Rand index")
    return Figure(name, title, caption, chart, height=_height(frame))


def _over_seeds(view: View, column: str) -> pl.DataFrame:
    """method, round, value, low, high, megabytes, passes: over the seeds, in the methods' order, thinned."""
    known = view.curves.drop_nulls(column)
    frame = known.group_by("method", "round", maintain_order=True).agg(
        pl.col(column).mean().alias("value"),
        pl.col(column).min().alias("low"),
        pl.col(column).max().alias("high"),
        (pl.col("bytes").mean() / MEGABYTE).alias("megabytes"),
        pl.col("passes").mean(),
    )
    return thin_rounds(frame, max(_POINTS // max(len(view.methods), 1), 40)).sort("round", maintain_order=True)


def _draw_lines(
    view: View, frame: pl.DataFrame, *, along: str = "round", named: str = "", target: object = None
) -> Chart:
    """Draw a line for each method along rounds or another column, bands over the seeds, and the target as a level.

    Args:
        view: the setting.
        frame: what `_over_seeds` returns.
        along: the column of the other axis.
        named: what is drawn, where that is not the view's measure.
        target: where the level is.
    """
    methods = frame["method"].unique(maintain_order=True).to_list()
    banded = methods if len(methods) <= MOST_BANDS else [view.best, view.baseline]
    colour, dash = view.colours_and_dashes(methods)
    # A click on a name of the legend brings its method out.
    pick = alt.selection_point(name=f"pick_{along}", fields=["method"], bind="legend")
    seen = alt.when(pick)
    x = alt.X(f"{along}:Q").title(along).scale(zero=True).axis(format=PLAIN)
    if along == "round":
        x = axis_of_rounds(along, int(frame[along].to_numpy().min()), int(frame[along].to_numpy().max()))
    ticks, digits = (PLAIN, ".2f") if named else (axis_format(view.drawn), value_format(view.drawn))
    y = alt.Y("value:Q").title(named or view.drawn.title).scale(zero=False).axis(format=ticks)
    titles = {"value": "mean", "low": "lowest seed", "high": "highest seed"}
    shown = [alt.Tooltip(f"{field}:Q", title=title, format=digits) for field, title in titles.items()]
    base = alt.Chart(rows(view.with_labels(frame))).encode(x=x, color=colour)
    layers: list[alt.Chart] = []
    if len(view.seeds) > 1 and frame["round"].n_unique() > 1:
        inside = frame.filter(pl.col("method").is_in(banded))
        layers.append(
            alt.Chart(rows(view.with_labels(inside)))
            .mark_area()
            .encode(x, alt.Y("low:Q"), y2=alt.Y2("high:Q"), color=colour)
            .encode(opacity=seen.then(alt.value(0.16)).otherwise(alt.value(0.02)))
        )
    if target is not None:
        level = alt.Chart(rows(pl.DataFrame({"value": [target]})))
        layers.append(level.mark_rule(color=NO_GROUP, strokeDash=DASHED).encode(y=y))
    wide = alt.when(alt.FieldEqualPredicate(field="method", equal=view.label_of(view.baseline)))
    clear = seen.then(alt.value(1)).otherwise(alt.value(0.1))
    layers.append(
        base.mark_line()
        .encode(y=y, strokeDash=dash, order="round:Q", opacity=clear)
        .encode(strokeWidth=wide.then(alt.value(3.5)).otherwise(alt.value(2)))
        .add_params(pick)
    )
    tooltip = [alt.Tooltip("method:N"), alt.Tooltip("round:Q"), *shown]
    layers.append(base.mark_point(filled=True, size=60, opacity=0).encode(y=y, tooltip=tooltip))
    # A method that was evaluated once has no line, but a dot.
    ends = alt.Chart(rows(view.with_labels(frame.group_by("method", maintain_order=True).last())))
    layers.append(ends.mark_point(filled=True, size=60).encode(x, y, colour, opacity=clear, tooltip=tooltip))
    return alt.layer(*layers)


def _height(frame: pl.DataFrame) -> int:
    """Many methods need room for their names, and to be told apart."""
    return HEIGHT + 12 * max(frame["method"].n_unique() - 6, 0)
