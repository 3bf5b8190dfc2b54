"""Clients who were held out of training: where the method put them, and how well they do."""

from __future__ import annotations

from typing import cast

import altair as alt
import polars as pl

from coterie.report.charts.registry import Chapter, run_chart
from coterie.report.drawing.colours import NO_GROUP, of_groups
from coterie.report.drawing.figure import Figure, rows, thin
from coterie.report.drawing.marks import shapes
from coterie.report.numbers import axis_format, count_of, measured, percent, value_format
from coterie.runs.folder.reading import Run


@run_chart(Chapter.NEWCOMERS, when=lambda run: run.newcomers is not None)
def draw_newcomers(run: Run) -> Figure:
    """Draw each newcomer's first metric with the model it is given and after a local update, coloured by group."""
    metric, adapted = run.metrics.deciding, _name_adaptation(run)
    name, title = "newcomers", f"Newcomers, on arrival and {adapted}"
    everyone = run.newcomers
    assert everyone is not None
    caption = _summarise(run, everyone)
    tested = everyone.filter(pl.col("arrival").is_not_null() | pl.col("adapted").is_not_null())
    if not tested.height:
        return Figure(name, title, f"{caption} No newcomer has test data, so there is nothing to draw.")
    ranked = tested.sort("arrival", "adapted", "client", nulls_last=True).with_row_index("place", offset=1)
    frame = thin(ranked.select("place", "client", "name", "group", "arrival", "adapted"))
    groups = sorted(set(frame["group"].to_list()))
    moments = ["on arrival", adapted]
    x = alt.X("place:Q").title(f"newcomers, by {metric.title} on arrival")
    x = x.scale(domain=[0, ranked.height + 1], nice=False).axis(labels=False, ticks=False, grid=False)
    y = alt.Y("value:Q").title(f"{metric.title} of a newcomer")
    y = y.axis(format=axis_format(metric)).scale(zero=False, padding=8)
    labels = alt.Legend(
        orient="top", title="group", titleOrient="left", symbolType="circle", symbolSize=60, columns=12
    )
    scale = alt.Scale(domain=groups, range=of_groups(groups))
    shade = alt.Color("group:N").scale(scale).legend(labels if len(groups) <= 18 else None)
    points = pl.concat(
        [
            frame.select("place", "client", "name", "group", pl.col(column).alias("value"), moment=pl.lit(moment))
            for column, moment in zip(("arrival", "adapted"), moments, strict=True)
        ]
    ).drop_nulls("value")
    chart = alt.layer(
        alt.Chart(rows(frame.select("place", "arrival", "adapted").drop_nulls()))
        .mark_rule(color=NO_GROUP)
        .encode(x=x, y=alt.Y("arrival:Q"), y2=alt.Y2("adapted:Q")),
        alt.Chart(rows(points))
        .mark_point(filled=True, size=60 if frame.height <= 60 else 25, opacity=1)
        .encode(
            x=x,
            y=y,
            color=shade,
            shape=shapes("moment", dict(zip(moments, ("circle", "triangle-up"), strict=True))),
            tooltip=[
                alt.Tooltip("name:N", title="client"),
                alt.Tooltip("group:Q"),
                alt.Tooltip("moment:N", title="when"),
                alt.Tooltip("value:Q", title=metric.title, format=value_format(metric)),
            ],
        ),
    )
    caption = f"{caption} Each line is a newcomer: the dot is on arrival, the triangle {adapted}."
    if frame.height < ranked.height:
        caption += f" Of the {ranked.height:,} with test data {frame.height} are drawn, evenly spread."
    return Figure(name, title, caption, chart)


def _name_adaptation(run: Run) -> str:
    """Say after what a newcomer is scored the second time: the experiment's adaptation, or one local update."""
    return (
        "after adaptation"
        if run.folder.experiment().get("evaluation", {}).get("adapt")
        else "after one local update"
    )


def _summarise(run: Run, newcomers: pl.DataFrame) -> str:
    """Say how many newcomers there are, and how well they do beside the clients in training."""
    were = "was" if newcomers.height == 1 else "were"
    caption = f"{count_of(newcomers.height, 'client')} {were} held out of training."
    metric = run.metrics.deciding
    means = [
        f"{measured(metric, cast(float, newcomers[column].mean()))} {moment}"
        for column, moment in (("arrival", "on arrival"), ("adapted", _name_adaptation(run)))
        if newcomers[column].count()
    ]
    caption += f" Their mean {metric.title} is {' and '.join(means)}." if means else ""
    trained = run.last.filter(~pl.col("client").is_in(newcomers["client"].implode()))
    if trained[metric.name].count():
        mean = measured(metric, cast(float, trained[metric.name].mean()))
        caption += f" The mean {metric.title} of the clients in training is {mean}."
    right, known = _count_placed_right(run, trained, newcomers)
    if known:
        caption += (
            f" {right} of {known} newcomers ({percent(right / known)}) went to the group that holds most trained "
            "clients of the same planted group."
        )
    return caption


def _count_placed_right(run: Run, trained: pl.DataFrame, newcomers: pl.DataFrame) -> tuple[int, int]:
    """Count the newcomers in the group of most trained clients of their planted group, and those it is known of."""
    planted = run.people.select("client", "planted").drop_nulls()
    counts = (
        trained.filter(pl.col("group") >= 0)
        .join(planted, on="client")
        .group_by("planted", "group")
        .len()
        .sort(["len", "group"], descending=[True, False])
    )
    home = counts.group_by("planted", maintain_order=True).agg(pl.col("group").first().alias("home"))
    pairs = newcomers.drop_nulls("planted").join(home, on="planted")
    return int((pairs["group"] == pairs["home"]).sum()), pairs.height
