"""What the charts of the method's log are made of: lines, bands, dots and rules over the rounds of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

from coterie.report.drawing.colours import NO_GROUP, PALETTE, of_groups
from coterie.report.drawing.figure import MOST_POINTS, Chart, rows, thin

MOST_LINES = 12
"""A chart has at most so many lines; an eye cannot follow more."""

MOST_NAMED = 8
"""A caption names the ends of at most so many lines, and counts the others."""

PLAIN = ".6~g"
"""Ticks as plain numbers. Without the 6 a tick has as many digits as its step needs, and 800 becomes 8e+2."""

THRESHOLD = PALETTE[5]
"""The colour of a threshold."""

DASHED = [6, 4]

DASHES = ([1, 0], [6, 3], [2, 3], [9, 3, 2, 3])
"""The dashes of lines that are told apart by them."""

SEAM = 0.6
"""Cells overlap by so many pixels, so that no paper shows between them."""

_POINTS_OF_A_CHART = 2400


def value_axis(title: str, *, is_logarithmic: bool = False) -> alt.Y:
    """Return the axis of the values."""
    y = alt.Y("value:Q").title(title)
    if is_logarithmic:
        return y.scale(type="log", nice=False).axis(format=PLAIN, tickCount=5)
    return y.scale(zero=False).axis(format=PLAIN)


def legend(labels: Sequence[str], *, stroke: bool = True) -> alt.Legend | None:
    """Return a legend above the chart that names each line or dot; None where they have no names."""
    if not any(labels):
        return None
    limit = 220 if len(labels) <= 4 else 110
    widest = 36 + min(limit, 7 * max(map(len, labels)))
    return alt.Legend(
        orient="top",
        title=None,
        columns=max(600 // widest, 1),
        labelLimit=limit,
        symbolType="stroke" if stroke else "circle",
        symbolSize=250 if stroke else 90,
        symbolStrokeWidth=2 if stroke else 0,
        symbolOpacity=1,
    )


def line_looks(
    field: str, labels: Sequence[str], colours: Sequence[str], dashes: Sequence[int]
) -> tuple[alt.Color, alt.StrokeDash]:
    """Return colours and dashes of lines by a field, with one legend for both where there is more than one line.

    Args:
        field: that has the labels.
        labels: of the lines.
        colours: of each.
        dashes: the number of each one's dash.
    """
    named = legend(labels) if len(labels) > 1 else None
    colour = alt.Scale(domain=labels, range=colours)
    dash = alt.Scale(domain=labels, range=[DASHES[number % len(DASHES)] for number in dashes])
    return (
        alt.Color(f"{field}:N").scale(colour).legend(named),
        alt.StrokeDash(f"{field}:N").scale(dash).legend(named),
    )


def colour(looks: Mapping[str, str], *, stroke: bool = True) -> alt.Color:
    """Colour by `of`, with a legend where there is more than one."""
    labels = list(looks)
    scale = alt.Scale(domain=labels, range=list(looks.values()))
    return alt.Color("of:N").scale(scale).legend(legend(labels, stroke=stroke) if len(labels) > 1 else None)


def lines(frame: pl.DataFrame, x: alt.X, y: alt.Y) -> Chart:
    """Draw one line for each value of `of`.

    Args:
        frame: round, of, value; each `of` ascending by round.
        x: the axis of the rounds.
        y: the axis of the values.
    """
    labels = frame["of"].unique(maintain_order=True).to_list()
    looks = dict(zip(labels, of_groups(range(len(labels))), strict=True))
    frame = thin_rounds(frame, max(_POINTS_OF_A_CHART // max(len(labels), 1), 40))
    rounds = frame["round"].n_unique()
    base = alt.Chart(rows(frame)).encode(x=x, y=y, color=colour(looks))
    named = [alt.Tooltip("of:N", title="of")] if any(labels) else []
    # Where there is no line to see, in a single round, there is at least a dot.
    return alt.layer(
        base.mark_line(strokeWidth=2),
        base.mark_point(size=30, opacity=1 if rounds <= 30 else 0, filled=True).encode(
            tooltip=[*named, alt.Tooltip("round:Q"), alt.Tooltip("value:Q", format=".4~g")]
        ),
    )


def thin_rounds(frame: pl.DataFrame, most: int = MOST_POINTS) -> pl.DataFrame:
    """Keep the rows of at most `most` rounds (and one), evenly spread."""
    rounds = thin(frame.select(pl.col("round").unique().sort()), min(most, MOST_POINTS))["round"]
    return frame.filter(pl.col("round").is_in(rounds.implode()))


def stretches(frame: pl.DataFrame, who: str, what: str, every: int = 1) -> pl.DataFrame:
    """Join rounds in which `who` had the same `what`: who, what, start, and stop (one past the last).

    Only every `every`-th of the frame's rounds is looked at.
    """
    rounds = frame["round"].unique().sort()
    end = int(rounds[-1]) + 1
    kept = frame.filter(pl.col("round").is_in(rounds.gather_every(every).implode())).sort(who, "round")
    changed = (pl.col(what) != pl.col(what).shift()).fill_null(True).over(who)
    starts = kept.filter(changed)
    stop = pl.col("round").shift(-1).over(who).fill_null(end)
    return starts.select(who, what, pl.col("round").alias("start"), stop.alias("stop"))


def band(frame: pl.DataFrame, x: alt.X) -> Chart:
    """Draw the range from `low` to `high` of each round; a single round has a bar. Its axis is the lines'."""
    chart = alt.Chart(rows(thin_rounds(frame)))
    marked = chart.mark_area(opacity=0.25, color=PALETTE[0])
    if frame.height == 1:
        marked = chart.mark_rule(opacity=0.25, color=PALETTE[0], strokeWidth=12)
    drawn: Chart = marked.encode(x=x, y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    return drawn


def rules(rounds: pl.Series, x: alt.X, label: str) -> Chart:
    """Draw rounds in which something happened, as upright lines under a legend of their own."""
    scale = alt.Scale(domain=[label], range=[NO_GROUP])
    frame = thin(pl.DataFrame({"round": rounds, "of": [label] * rounds.len()}))
    drawn: Chart = (
        alt.Chart(rows(frame))
        .mark_rule(strokeWidth=1.5, strokeDash=DASHED)
        .encode(
            x=x,
            stroke=alt.Stroke("of:N").scale(scale).legend(legend([label])),
            tooltip=[alt.Tooltip("of:N", title="what"), alt.Tooltip("round:Q")],
        )
    )
    return drawn


def are_far_apart(values: pl.Series) -> bool:
    """Say whether a logarithmic axis shows values better: all are above zero, and far apart."""
    low, high = values.to_numpy().min(), values.to_numpy().max()
    return bool(low > 0 and high / low > 30)
