"""The first metric over rounds and over clients: the charts that compare a run with others."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from coterie.report.drawing.colours import NO_GROUP, of_groups
from coterie.report.drawing.figure import Figure, axis_of_rounds, rows, thin
from coterie.report.drawing.marks import line_looks
from coterie.report.numbers import axis_format, capital, measured, value_format
from coterie.runs.folder.metrics import ADAPTED
from coterie.runs.folder.reading import MEGABYTE, RunResults


def draw_accuracy(run: RunResults, against: Sequence[RunResults]) -> Figure:
    """Draw the first metric's mean over the clients, round by round, with the range of the middle 80% of them."""
    metric = run.metrics.deciding
    name, title = metric.name, f"{capital(metric.title)} over rounds"
    runs = [r for r in _alike(run, against) if _line(r).height]
    if run not in runs:
        missing = "evaluated" if run.rounds.height else "finished"
        return Figure(name, title, f"No round is {missing} yet, so there is nothing to draw.")
    band = run.clients.group_by("round", maintain_order=True).agg(
        pl.col(metric.name).quantile(0.1, "linear").alias("low"),
        pl.col(metric.name).quantile(0.9, "linear").alias("high"),
    )
    reached = pl.concat([_line(r) for r in runs])["round"].to_numpy()
    x = axis_of_rounds("round", int(reached.min()), int(reached.max()))
    y = alt.Y(f"{metric.name}:Q").title(f"{metric.title} of a client")
    chart = alt.layer(
        alt.Chart(rows(thin(band)))
        .mark_area(opacity=0.3, color=of_groups([0])[0])
        .encode(x=x, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        *_draw_lines(runs, x, y),
    )
    caption = (
        f"The line is the mean {metric.title} over the clients. Each client is tested on its own held-out data. "
        f"The shaded band holds the middle 80% of the clients.{' Lower is better.' * metric.less_is_better}"
    )
    end, ends = run.summary, run.last[metric.name].drop_nulls()
    if ends.len():
        low, high = ends.quantile(0.1, "linear"), ends.quantile(0.9, "linear")
        caption += (
            f" Here the mean ends at {measured(metric, end[run.metrics.headline])} and the band at "
            f"{measured(metric, low)} to {measured(metric, high)}. "
            f"The best mean was {measured(metric, end[run.metrics.best])}, in round {end['best_round']}."
        )
    adapted = f"{ADAPTED}{run.metrics.headline}"
    if end.get(adapted) is not None:
        caption += (
            " The dashed grey line is the mean after each client has adapted a copy of its model to its own data; "
            f"it ends at {measured(metric, end[adapted])}."
        )
        after = run.rounds.select("round", pl.col(adapted).fill_nan(None).alias("adapted"))
        chart += (
            alt.Chart(rows(thin(after.drop_nulls())))
            .mark_line(strokeWidth=2, strokeDash=[4, 3], color=NO_GROUP)
            .encode(x=x, y=alt.Y("adapted:Q"))
        )
    return Figure(name, title, caption, chart)


def draw_distribution(run: RunResults, against: Sequence[RunResults]) -> Figure:
    """Draw the share of the clients that stay at or below a value of the first metric."""
    metric = run.metrics.deciding
    ends = ("best", "worst") if metric.less_is_better else ("worst", "best")
    name, title = "distribution", f"{capital(metric.title)} of the clients, from the {ends[0]} to the {ends[1]}"
    values = run.last[metric.name].drop_nulls()
    if values.len() < 2:
        return Figure(name, title, "A distribution needs at least two clients with test data.")
    runs = [r for r in _alike(run, against) if r.last[metric.name].drop_nulls().len()]
    colour, dash = _looks(runs)
    x = alt.X(f"{metric.name}:Q").title(f"{metric.title} of a client, last round")
    chart = (
        alt.Chart(rows(pl.concat([_steps(r) for r in runs])))
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=x.axis(format=axis_format(metric)).scale(zero=False),
            y=alt.Y("share:Q").title("clients at or below").axis(format=".0%").scale(domain=[0, 1]),
            color=colour,
            strokeDash=dash,
            order=alt.Order("share:Q"),
            tooltip=[alt.Tooltip("run:N")],
        )
    )
    caption = (
        f"Each line climbs from the {ends[0]} client (bottom) to the {ends[1]} (top). A line further "
        f"{'left' if metric.less_is_better else 'right'} is better. A steeper line is fairer."
    )
    low, high = values.to_numpy().min(), values.to_numpy().max()
    caption += f" Here the clients lie between {measured(metric, low)} and {measured(metric, high)}."
    return Figure(name, title, caption, chart)


def _draw_lines(runs: Sequence[RunResults], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Draw the mean of each run's first metric: a line through its rounds, and what it says of each."""
    metric, frame = runs[0].metrics.deciding, pl.concat([_line(run) for run in runs])
    y = y.axis(format=axis_format(metric)).scale(zero=False)
    colour, dash = _looks(runs)
    base = alt.Chart(rows(frame)).encode(x=x, y=y, color=colour)
    shown = [
        alt.Tooltip("run:N"),
        alt.Tooltip("round:Q"),
        alt.Tooltip("megabytes:Q", title="MB", format=",.2f"),
        alt.Tooltip(f"{metric.name}:Q", title=f"mean {metric.title}", format=value_format(metric)),
    ]
    few = frame.height <= 30 * len(runs)
    return [
        base.mark_line(strokeWidth=2).encode(strokeDash=dash, order=alt.Order("round:Q")),
        base.mark_point(size=36, opacity=1 if few else 0, filled=True).encode(tooltip=shown),
    ]


def _alike(run: RunResults, against: Sequence[RunResults]) -> list[RunResults]:
    """Return the run and, of the others, those whose first metric is the same: no axis is for both otherwise."""
    return [run, *(other for other in against if other.metrics.deciding == run.metrics.deciding)]


def _line(run: RunResults) -> pl.DataFrame:
    name = run.metrics.deciding.name
    sent = (pl.col("up_bytes") + pl.col("down_bytes")).cum_sum() / MEGABYTE
    return thin(
        run.rounds.select(
            "round", pl.col(run.metrics.headline).alias(name), sent.alias("megabytes"), run=pl.lit(run.label)
        ).drop_nulls(name)  # a round without an evaluation would break the line
    )


def _steps(run: RunResults) -> pl.DataFrame:
    name = run.metrics.deciding.name
    ends = run.last.select(name).drop_nulls().sort(name).with_row_index("rank", offset=1)
    steps = ends.select(name, (pl.col("rank") / ends.height).alias("share"), run=pl.lit(run.label))
    floor = steps.head(1).with_columns(share=pl.lit(0.0))
    return pl.concat([floor, thin(steps)])


def _looks(runs: Sequence[RunResults]) -> tuple[alt.Color, alt.StrokeDash]:
    labels = [run.label for run in runs]
    return line_looks("run", labels, of_groups(range(len(labels))), range(len(labels)))
