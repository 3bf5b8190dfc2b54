"""The charts of a comparison: accuracy over rounds, its price in bytes and in passes, and the groups found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import polars as pl
from altair.utils.schemapi import debug_mode

from coterie.report.comparison.client_gains import draw_gains
from coterie.report.comparison.view import View, value, views
from coterie.report.drawing.colours import NO_GROUP
from coterie.report.drawing.figure import HEIGHT, Chart, Figure, axis_of_rounds, rows, with_style
from coterie.report.drawing.marks import DASHED, PLAIN, thin_rounds
from coterie.report.numbers import axis_format, capital, decimals, join_words, significant, value_format, volume
from coterie.runs.folder.reading import MEGABYTE

if TYPE_CHECKING:
    from coterie.studies.compare.measures import Frames
    from coterie.studies.compare.spec import Comparison

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
        *([draw_agreement(view)] if has_true_groups(view) else []),
    ]
    return [with_style(figure) for figure in drawn]


def charts_of(comparison: Comparison, frames: Frames, summary: pl.DataFrame) -> dict[str, Chart]:
    """The charts of a comparison by name; with several settings, the names end in the setting's number."""
    drawn = (figure for view in views(comparison, frames, summary) for figure in draw_setting(view))
    return {figure.name: figure.chart for figure in drawn if figure.chart is not None}


def draw_curves(view: View) -> Figure:
    """The measure over rounds: the mean over seeds with the range of the seeds, and the target."""
    name, title = f"{view.metrics.deciding.name}{view.mark}", f"{capital(view.axis)}, over rounds"
    frame = _over_seeds(view, view.drawn_measure)
    if not frame.height:
        return Figure(name, title, "No round was evaluated, so there is nothing to draw.")
    methods = [method for method in view.methods if method in set(frame["method"])]
    ends = {method: frame.filter(pl.col("method") == method)["value"][-1] for method in methods}
    caption = "Each line is the mean over the seeds"
    caption += "" if len(view.seeds) == 1 else ", and the band is their range"
    if len(view.seeds) > 1 and len(methods) > MOST_BANDS:
        caption += ". Bands are drawn for the best method and the baseline alone"
    best = _best_end(view, ends)
    caption += f". Here {view.label_of(best)} ends at {value(view.drawn, ends[best])}"
    if view.baseline in ends and best != view.baseline:
        caption += f", {view.label_of(view.baseline)} at {value(view.drawn, ends[view.baseline])}"
    target = view.cells["target"].drop_nulls().mean() if view.drawn_measure == view.measure else None
    if isinstance(target, float):
        caption += f". The dashed line is the target, {value(view.drawn, target)}{_describe_target(view)}"
    chart = _draw_lines(view, frame, methods, _tooltips("mean", value_format(view.drawn)), target, view.axis)
    return Figure(name, title, f"{caption}.", chart, height=_height(methods))


def draw_effort(view: View) -> Figure:
    """The measure against the passes that clients have made over their own samples, the mean over seeds."""
    name, title = f"passes{view.mark}", f"{capital(view.axis)}, for the local passes"
    frame = _over_seeds(view, view.drawn_measure).drop_nulls("passes")
    if not frame.height or not frame["passes"].max():
        why = "No client trained" if frame.height else "The runs counted no local passes, or evaluated no round"
        return Figure(name, title, f"{why}, so there is no work to draw.")
    methods = [method for method in view.methods if method in set(frame["method"])]
    ends = {method: frame.filter(pl.col("method") == method)["passes"][-1] for method in methods}
    caption = (
        "A local pass is a client's training on as many samples as it has; the axis counts them from the first "
        "round on, warm-ups included, on average over the clients. Each line is the mean over the seeds. At the "
        f"end: {join_words([f'{view.label_of(method)} {significant(ends[method])}' for method in methods], 15)}."
    )
    x = alt.X("passes:Q").title("local passes").scale(zero=True).axis(format=PLAIN)
    shown = [*_tooltips("mean", value_format(view.drawn)), alt.Tooltip("passes:Q", title="passes", format=",.2f")]
    chart = _draw_lines(view, frame, methods, shown, None, view.axis, x)
    return Figure(name, title, caption, chart, height=_height(methods))


def draw_agreement(view: View) -> Figure:
    """The adjusted Rand index over rounds, of the methods that make groups."""
    name, title = f"groups{view.mark}", "Agreement with the true groups, over rounds"
    grouping = view.curves.filter(pl.col("groups") > 1)["method"].unique().to_list()
    methods = [method for method in view.methods if method in grouping]
    frame = _over_seeds(view, "ari").filter(pl.col("method").is_in(methods))
    if not frame.height:
        return Figure(
            name, title, "No method made two groups or more, so there are none to compare with the true ones."
        )
    counts = sorted(set(view.clients.group_by("seed").agg(pl.col("true_group").n_unique())["true_group"]))
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    said = []
    for method in methods:
        row = view.row(method)
        if row["ari_mean"] is not None:
            said.append(f"{method} at {decimals(row['ari_mean'])} with {_mean(row['groups_mean'])} groups")
    caption = (
        "The adjusted Rand index is 1 where the groups are exactly the true ones, and about 0 by "
        f"chance. There {'is' if number == '1' else 'are'} {number} true group{'s' * (number != '1')} here."
    )
    caption += f" At the end, on average over the seeds: {'; '.join(said)}." if said else ""
    rest = [method for method in view.methods if method not in methods]
    caption += f" Without groups, and left out: {join_words(rest, 15)}." if rest else ""
    chart = _draw_lines(view, frame, methods, _tooltips("ARI, mean", ".2f"), None, "adjusted Rand index")
    return Figure(name, title, caption, chart, height=_height(methods))


def draw_cost(view: View) -> Figure:
    """The measure at the end against all bytes sent, the way there, and the methods that no other one beats."""
    name, title = f"cost{view.mark}", f"{capital(view.axis)}, for the bytes sent"
    sent = (pl.col("up_bytes") + pl.col("down_bytes")) / MEGABYTE
    ends = view.cells.select("method", "seed", pl.col(view.drawn_measure).alias("value"), sent.alias("megabytes"))
    ends = ends.drop_nulls("value")
    if not ends.height or not ends["megabytes"].sum():
        why = "Nothing was sent between server and clients" if ends.height else "No round was evaluated"
        return Figure(name, title, f"{why}, so there is no cost to draw.")
    points = ends.group_by("method", maintain_order=True).agg(pl.col("value", "megabytes").mean())
    frontier = pareto(points, least=view.drawn.less_is_better)
    methods = [method for method in view.methods if method in set(points["method"])]
    way = _over_seeds(view, view.drawn_measure).select("method", "round", "value", "megabytes")
    colour, dash = view.colours_and_dashes(methods)
    pick = _pick("cost")
    x = alt.X("megabytes:Q").title("megabytes sent in all, up and down").scale(zero=True).axis(format=PLAIN)
    y = alt.Y("value:Q").title(view.axis).axis(format=axis_format(view.drawn)).scale(zero=False)
    shown = [
        alt.Tooltip("method:N"),
        alt.Tooltip("megabytes:Q", title="MB", format=",.2f"),
        alt.Tooltip("value:Q", title=view.axis, format=value_format(view.drawn)),
    ]
    visible = alt.when(pick)
    chart = alt.layer(
        alt.Chart(rows(view.with_labels(way)))
        .mark_line(strokeWidth=1.5)
        .encode(
            x, y, colour, dash, order="round:Q", opacity=visible.then(alt.value(0.45)).otherwise(alt.value(0.05))
        )
        .add_params(pick),
        alt.Chart(rows(frontier))
        .mark_line(color=NO_GROUP, strokeWidth=5, opacity=0.45)
        .encode(x, y, order="megabytes:Q"),
        alt.Chart(rows(view.with_labels(ends)))
        .mark_point(filled=True, size=28)
        .encode(
            x,
            y,
            colour,
            opacity=visible.then(alt.value(0.4)).otherwise(alt.value(0.05)),
            tooltip=[*shown, "seed:Q"],
        ),
        alt.Chart(rows(view.with_labels(points)))
        .mark_point(filled=True, size=120)
        .encode(x, y, colour, opacity=visible.then(alt.value(1)).otherwise(alt.value(0.15)), tooltip=shown),
        alt.Chart(rows(frontier)).mark_text(align="left", dx=9, dy=-9, fontSize=12).encode(x, y, text="method:N"),
    )
    said = "; ".join(
        f"{row['method']} with {value(view.drawn, row['value'])} for {volume(row['megabytes'] * MEGABYTE)}"
        for row in frontier.iter_rows(named=True)
    )
    caption = (
        "A large dot is a method at the end of its runs, a mean over the seeds. Small dots are single seeds, and a "
        f"thin line is the way there. Further {'down' if view.drawn.less_is_better else 'up'} and left is better. "
        "The broad line joins the methods that no "
        f"other method beats in both: {said}."
    )
    return Figure(name, title, caption, chart, height=_height(methods))


def pareto(points: pl.DataFrame, *, least: bool = False) -> pl.DataFrame:
    """The rows (value, megabytes) that no other row beats in one and equals or beats in the other, by megabytes.

    Args:
        points: one row a method.
        least: whether less of the value is better.
    """
    kept, reached = [], None
    for row in points.sort(["megabytes", "value"], descending=[False, not least]).iter_rows(named=True):
        height = -row["value"] if least else row["value"]
        if reached is None or height > reached:
            kept.append(row)
            reached = height
    return pl.DataFrame(kept, schema=points.schema)


def has_true_groups(view: View) -> bool:
    """Whether the setting has true groups."""
    return view.clients["true_group"].drop_nulls().n_unique() > 1


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


def _tooltips(value: str, form: str) -> list[alt.Tooltip]:
    """What a point of a line says: whose it is, when, and its value with the range of the seeds."""
    titles = {"value:Q": value, "low:Q": "lowest seed", "high:Q": "highest seed"}
    numbers = [alt.Tooltip(field, title=title, format=form) for field, title in titles.items()]
    return [alt.Tooltip("method:N"), alt.Tooltip("round:Q"), *numbers]


def _draw_lines(
    view: View,
    frame: pl.DataFrame,
    methods: list[str],
    shown: list[alt.Tooltip],
    target: object,
    named: str,
    along: alt.X | None = None,
) -> Chart:
    """A line for each method along the rounds or another axis, bands over the seeds, and the target as a level."""
    banded = methods if len(methods) <= MOST_BANDS else [m for m in methods if m in (view.best, view.baseline)]
    colour, dash = view.colours_and_dashes(methods)
    pick = _pick("lines" if along is None else "efforts")
    number = frame["round"].to_numpy()
    x = axis_of_rounds("round", int(number.min()), int(number.max())) if along is None else along
    y = (
        alt.Y("value:Q")
        .title(named)
        .scale(zero=False)
        .axis(format=axis_format(view.drawn) if named == view.axis else PLAIN)
    )
    base = alt.Chart(rows(view.with_labels(frame))).encode(x=x, color=colour)
    seen = alt.when(pick)
    single = frame["round"].n_unique() == 1
    layers: list[alt.Chart] = []
    if len(view.seeds) > 1 and not single:
        layers.append(
            alt.Chart(rows(view.with_labels(frame.filter(pl.col("method").is_in(banded)))))
            .mark_area()
            .encode(
                x=x,
                y=alt.Y("low:Q"),
                y2=alt.Y2("high:Q"),
                color=colour,
                opacity=seen.then(alt.value(0.16)).otherwise(alt.value(0.02)),
            )
        )
    if target is not None:
        level = alt.Chart(rows(pl.DataFrame({"value": [target]})))
        layers.append(level.mark_rule(color=NO_GROUP, strokeDash=DASHED).encode(y=y))
    wide = (
        alt.when(alt.FieldEqualPredicate(field="method", equal=view.label_of(view.baseline)))
        .then(alt.value(3.5))
        .otherwise(alt.value(2))
    )
    layers.append(
        base.mark_line()
        .encode(y=y, strokeDash=dash, strokeWidth=wide, opacity=seen.then(alt.value(1)).otherwise(alt.value(0.1)))
        .add_params(pick)
    )
    few = frame["round"].n_unique() <= 30
    hidden = seen.then(alt.value(1 if single else 0)).otherwise(alt.value(0))
    layers.append(base.mark_point(filled=True, size=60 if few else 25).encode(y=y, opacity=hidden, tooltip=shown))
    return alt.layer(*layers)


def _height(methods: list[str]) -> int:
    """Many methods need room for their names, and to be told apart."""
    return HEIGHT + 12 * max(len(methods) - 6, 0)


def _pick(name: str) -> alt.Parameter:
    """A click on a name of the legend brings its method out."""
    return alt.selection_point(name=name, fields=["method"], bind="legend")


def _best_end(view: View, ends: dict[str, float]) -> str:
    """The method that ends best, of those drawn."""
    if view.best in ends:
        return view.best
    return (min if view.drawn.less_is_better else max)(ends, key=lambda method: ends[method])


def _describe_target(view: View) -> str:
    met = view.summary.filter(pl.col("reached") > 0)["method"].to_list()
    others = [method for method in met if method != view.baseline]
    if len(view.every) == 1:
        return ""
    return (
        f", reached in at least one seed by {join_words(others)}" if others else ", which no other method reaches"
    )


def _mean(number: float | None) -> str:
    return "–" if number is None else f"{number:.3g}"
