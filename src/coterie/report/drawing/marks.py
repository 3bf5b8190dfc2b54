"""What the charts of the method's log are made of: lines, bands, dots and rules over the rounds of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10

import altair as alt
import polars as pl

from coterie.report.drawing.colours import NO_GROUP, PALETTE, of_groups
from coterie.report.drawing.figure import MOST_POINTS, Chart, axis_of_rounds, rows, thin
from coterie.report.numbers import significant
from coterie.runs.folder.reading import Run

MOST_LINES = 12
"""A chart has at most so many lines; an eye cannot follow more."""

MOST_NAMED = 8
"""A caption names the ends of at most so many lines, and counts the others."""

PLAIN = ".6~g"
"""Ticks as plain numbers. Without the 6 a tick has as many digits as its step needs, and 800 becomes 8e+2."""

THRESHOLD, MARKED = PALETTE[5], PALETTE[1]
"""Colours of a threshold, and of rounds in which something happened."""

SOLID, DASHED = [1, 0], [6, 4]

SEAM = 0.6
"""Cells overlap by so many pixels, so that no paper shows between them."""

LOGARITHMIC = " The axis is logarithmic."
"""What a caption says of such an axis."""

_POINTS_OF_A_CHART = 2400


def round_axis(run: Run) -> alt.X:
    """Return the axis of all rounds of the run, so that the charts of a page line up."""
    first, last = run.rounds["round"][0], run.rounds["round"][-1]
    return axis_of_rounds("round", first, last)


def value_axis(title: str, log: pl.Series | None = None, *, zero: bool = False, format: str = PLAIN) -> alt.Y:
    """Return the axis of the values; a logarithmic one where `log` has the values that it must show."""
    y = alt.Y("value:Q").title(title)
    if log is not None:
        low, high = extent(log)
        ticks, digits = decades(low, high), PLAIN if low >= 1e-4 and high < 1e6 else ".0e"
        y = y.scale(type="log", nice=False)
        return y.axis(format=digits, values=ticks) if len(ticks) > 1 else y.axis(format=digits)
    return y.scale(zero=zero).axis(format=format)


def count_axis(title: str, counts: pl.Series) -> alt.Y:
    """Return an axis of whole numbers from zero."""
    high = int(max(extent(counts)[1], 1))
    y = alt.Y("value:Q").title(title).scale(domain=[0, high])
    return y.axis(format="d", values=list(range(high + 1))) if high <= 10 else y.axis(format="d", tickMinStep=1)


def decades(low: float, high: float) -> list[float]:
    """Choose the ticks of a logarithmic axis: powers of ten, with their doubles and fives where there are few."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for steps in ((1, 2, 5), (1,)):
        ticks = [step * 10.0**power for power in powers for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) <= 7:
            return inside
    return inside[:: -(-len(inside) // 7)]


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


def colour(looks: Mapping[str, str], *, stroke: bool = True) -> alt.Color:
    """Colour by `of`, with a legend where there is more than one."""
    labels = list(looks)
    scale = alt.Scale(domain=labels, range=list(looks.values()))
    return alt.Color("of:N").scale(scale).legend(legend(labels, stroke=stroke) if len(labels) > 1 else None)


def shapes(field: str, looks: Mapping[str, str]) -> alt.Shape:
    """Give dots a shape by a field, with a legend in grey."""
    scale = alt.Scale(domain=list(looks), range=list(looks.values()))
    named = alt.Legend(orient="top", title=None, symbolFillColor=NO_GROUP, symbolStrokeWidth=0, symbolSize=90)
    return alt.Shape(f"{field}:N").scale(scale).legend(named)


def lines(
    run: Run,
    frame: pl.DataFrame,
    y: alt.Y,
    looks: Mapping[str, str] | None = None,
    *,
    dashed: Sequence[str] = (),
    step: bool = False,
    broken: bool = False,
    keep: pl.Series | None = None,
) -> Chart:
    """Draw one line for each value of `of`.

    Args:
        run: whose rounds the axis shows.
        frame: round, of, value; each `of` ascending by round.
        y: the axis of the values.
        looks: the colour of each `of`, in the order of the legend; without it, the order of the frame.
        dashed: which `of` are drawn with dashes.
        step: values hold until the next one, as of something that is switched.
        broken: nothing joins a round to a later one if there was no value in between.
        keep: rounds that are drawn also where a long run is thinned.
    """
    if looks is None:
        every = frame["of"].unique(maintain_order=True).to_list()
        looks = dict(zip(every, of_groups(range(len(every))), strict=True))
    labels = list(looks)
    if broken:
        gap = (pl.col("round").diff() > 1).fill_null(False)
        frame = frame.with_columns(stretch=gap.cast(pl.Int32).cum_sum().over("of"))
    frame = thin_rounds(frame, max(_POINTS_OF_A_CHART // max(len(labels), 1), 40), keep)
    rounds = frame["round"].n_unique()
    scale = alt.Scale(domain=labels, range=[DASHED if label in dashed else SOLID for label in labels])
    dash = alt.StrokeDash("of:N").scale(scale).legend(legend(labels) if len(labels) > 1 else None)
    base = alt.Chart(rows(frame)).encode(x=round_axis(run), y=y, color=colour(looks))
    named = [alt.Tooltip("of:N", title="of")] if any(labels) else []
    shown = [*named, alt.Tooltip("round:Q"), alt.Tooltip("value:Q", format=".4~g")]
    drawn = base.mark_line(strokeWidth=2, interpolate="step-after" if step else "linear")
    drawn = drawn.encode(detail="stretch:N") if broken else drawn
    solid = [label for label in labels if label not in dashed]
    # Where there is no line to see, in a single round or between two gaps, there is at least a dot.
    points = base.transform_filter(alt.FieldOneOfPredicate("of", solid)) if dashed and rounds > 1 else base
    opacity = 1 if rounds == 1 or broken or (rounds <= 30 and not step) else 0
    return alt.layer(
        drawn.encode(strokeDash=dash) if dashed else drawn,
        points.mark_point(size=30 if rounds <= 30 else 12, opacity=opacity, filled=True).encode(tooltip=shown),
    )


def lines_or_band(run: Run, frame: pl.DataFrame, y: alt.Y) -> tuple[Chart, pl.DataFrame | None]:
    """Draw one line for each `of`; where they are many, their range and median.

    Returns:
        The chart, and the median (round, of, value) where it is drawn.
    """
    if frame["of"].n_unique() <= MOST_LINES:
        return lines(run, frame, y), None
    spread = frame.group_by("round", maintain_order=True).agg(
        pl.col("value").min().alias("low"), pl.col("value").median(), pl.col("value").max().alias("high")
    )
    blue = of_groups([0])[0]
    median = spread.select("round", pl.lit("").alias("of"), "value")
    return alt.layer(band(run, spread, blue), lines(run, median, y, {"": blue})), median


def thin_rounds(frame: pl.DataFrame, most: int = MOST_POINTS, keep: pl.Series | None = None) -> pl.DataFrame:
    """Keep the rows of at most `most` rounds (and one), evenly spread, and of the rounds in `keep`."""
    rounds = thin(frame.select(pl.col("round").unique().sort()), min(most, MOST_POINTS))["round"]
    if keep is not None:
        rounds = rounds.append(keep)
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


def band(run: Run, frame: pl.DataFrame, colour: str, opacity: float = 0.25) -> Chart:
    """Draw the range from `low` to `high` of each round; a single round has a bar. Its axis is the lines'."""
    chart = alt.Chart(rows(thin_rounds(frame)))
    marked = chart.mark_area(opacity=opacity, color=colour)
    if frame.height == 1:
        marked = chart.mark_rule(opacity=opacity, color=colour, strokeWidth=12)
    drawn: Chart = marked.encode(x=round_axis(run), y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    return drawn


def dots(run: Run, frame: pl.DataFrame, y: alt.Y, label: str) -> Chart:
    """Draw rounds in which something happened, as dots at `value` under a legend of their own."""
    scale = alt.Scale(domain=[label], range=[MARKED])
    marked = frame.with_columns(of=pl.lit(label))
    drawn: Chart = (
        alt.Chart(rows(marked))
        .mark_point(size=70 if marked.height <= 40 else 25, filled=True, opacity=1)
        .encode(
            x=round_axis(run),
            y=y,
            fill=alt.Fill("of:N").scale(scale).legend(legend([label], stroke=False)),
            tooltip=[
                alt.Tooltip("of:N", title="what"),
                alt.Tooltip("round:Q"),
                alt.Tooltip("value:Q", format=".4~g"),
            ],
        )
    )
    return drawn


def rules(run: Run, rounds: pl.Series, label: str) -> Chart:
    """Draw rounds in which something happened, as upright lines under a legend of their own."""
    scale = alt.Scale(domain=[label], range=[MARKED])
    frame = thin(pl.DataFrame({"round": rounds, "of": [label] * rounds.len()}))
    drawn: Chart = (
        alt.Chart(rows(frame))
        .mark_rule(strokeWidth=1.5, strokeDash=DASHED)
        .encode(
            x=round_axis(run),
            stroke=alt.Stroke("of:N").scale(scale).legend(legend([label])),
            tooltip=[alt.Tooltip("of:N", title="what"), alt.Tooltip("round:Q")],
        )
    )
    return drawn


def level(y: alt.Y, value: float) -> Chart:
    """Draw a level line across the chart."""
    frame = pl.DataFrame({"value": [value]})
    drawn: Chart = alt.Chart(rows(frame)).mark_rule(color=NO_GROUP, strokeDash=DASHED).encode(y=y)
    return drawn


def threshold_per_round(threshold: pl.DataFrame, at: pl.DataFrame) -> pl.DataFrame:
    """Give every round of `at` the threshold (round, value) that was logged nearest to it."""
    rounds = at.select(pl.col("round").unique().sort())
    return rounds.join_asof(threshold.select("round", "value"), on="round", strategy="nearest")


def describe_course(frame: pl.DataFrame) -> str:
    """Say how a number moves: `goes from 2 in round 1 to 0.5 in round 9`, or `is 2 in round 1`."""
    first, last = frame.row(0, named=True), frame.row(-1, named=True)
    end = f"{significant(last['value'])} in round {last['round']}"
    if first["round"] == last["round"]:
        return f"is {end}"
    return f"goes from {significant(first['value'])} in round {first['round']} to {end}"


def extent(values: pl.Series) -> tuple[float, float]:
    """Return the smallest and the largest of the values."""
    return float(values.to_numpy().min()), float(values.to_numpy().max())


def on_log_scale(values: pl.Series) -> pl.Series | None:
    """Return the values if a logarithmic axis shows them better: all above zero, and far apart. None otherwise."""
    low, high = extent(values)
    return values if low > 0 and high / low > 30 else None
