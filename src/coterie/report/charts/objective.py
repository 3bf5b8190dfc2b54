"""The objective of the clustering, step by step (FeSEM)."""

from __future__ import annotations

from itertools import pairwise

import altair as alt
import polars as pl

from coterie.report.charts.registry import Chapter, log_chart
from coterie.report.drawing.colours import NO_GROUP, of_groups
from coterie.report.drawing.figure import Figure, axis_of_rounds, rows
from coterie.report.drawing.marks import (
    LOGARITHMIC,
    colour,
    describe_course,
    extent,
    level,
    lines,
    on_log_scale,
    thin_rounds,
    value_axis,
)
from coterie.report.numbers import count_of, significant
from coterie.runs.folder.reading import Run

STEPS = {"before E": 0.0, "after E": 1 / 3, "after M": 2 / 3}
"""The two steps of a round of FeSEM, and where in the round the objective is drawn."""

ROUNDING = 1e-6
"""A rise of the objective by this share of it is rounding."""


@log_chart(Chapter.GROUPING, "objective", of=tuple(STEPS))
def draw_objective(run: Run) -> Figure:
    """Draw the clustering objective before and after each step of a round (FeSEM, Eq. 6): a staircase down."""
    frame = run.logged("objective")
    wide = frame.pivot("of", index="round", values="value", maintain_order=True)
    kept = thin_rounds(frame, 120).with_columns(
        at=pl.col("round") + pl.col("of").replace_strict(STEPS, return_dtype=pl.Float64)
    )
    log = on_log_scale(frame["value"])
    y = value_axis("mean squared distance to the centre", log)
    first, last = run.rounds["round"][0], run.rounds["round"][-1]
    x = axis_of_rounds("at", first, last + STEPS["after M"]).title("round, and the steps in it")
    base = alt.Chart(rows(kept.sort("at"))).encode(x=x, y=y)
    many = kept.height > 90
    chart = alt.layer(
        base.mark_line(color=NO_GROUP, strokeWidth=1),
        base.mark_point(filled=True, size=18 if many else 45, opacity=1).encode(
            color=colour(dict(zip(STEPS, of_groups(range(3)), strict=True)), stroke=False),
            tooltip=[
                alt.Tooltip("of:N", title="step"),
                alt.Tooltip("round:Q"),
                alt.Tooltip("value:Q", format=".5~g"),
            ],
        ),
    )
    both = [step for step in STEPS if step in wide.columns]
    steps = [(wide[before], wide[after]) for before, after in pairwise(both)]
    rises = pl.concat(
        [(after - before).filter(after > before * (1 + ROUNDING)).drop_nulls() for before, after in steps]
        or [pl.Series(dtype=pl.Float64)]
    )
    caption = (
        "This is the mean squared distance of the clients' models to the centre of their group. It is taken before "
        "each client chooses the nearest centre (E-step), after that, and after each centre moves to the mean of "
        "its clients (M-step). Within a round both steps can only lower it. Between rounds, training moves the "
        "models."
        f"{LOGARITHMIC * (log is not None)} Here it {describe_course(frame)}, and "
    )
    caption += (
        f"a step raised it {count_of(rises.len(), 'time')}, by {extent(rises)[1]:.2g} at most."
        if rises.len()
        else "no step of any round raised it."
    )
    return Figure("objective", "What each step of the clustering gains", caption, chart)


@log_chart(Chapter.GROUPING, "margin")
def draw_margin(run: Run) -> Figure:
    """Draw how near any client came to another group in each E-step (FeSEM; docs/methods/fesem.md, D3)."""
    frame = run.logged("margin")
    log = on_log_scale(frame["value"])
    y = value_axis("distance to another centre over own", log)
    least = frame.filter(pl.col("value") == pl.col("value").min()).row(0, named=True)
    caption = (
        "For the client that is nearest to a change of group: how many times as far as the centre of its own group "
        "the next one is. Below 1, at the dashed line, it moves. A client starts each round at its own centre, so "
        "a value far above 1 says that groups no longer change, not that they are right."
        f"{LOGARITHMIC * (log is not None)} Here it {describe_course(frame)}; the least is "
        f"{significant(least['value'])} in round {least['round']}."
    )
    chart = alt.layer(level(y, 1.0), lines(run, frame, y, {"": of_groups([0])[0]}))
    return Figure("margin", "How near clients are to another group", caption, chart)
