"""How much the clients share: layers, strengths of pull, identities, and how often layers are exchanged."""

from __future__ import annotations

import altair as alt
import numpy as np
import polars as pl

from coterie.report.charts.registry import Chapter, log_chart
from coterie.report.drawing.colours import of_groups
from coterie.report.drawing.figure import Chart, Figure, axis_of_rounds, rows
from coterie.report.drawing.marks import (
    LOGARITHMIC,
    MOST_NAMED,
    SEAM,
    band,
    count_axis,
    extent,
    lines,
    lines_or_band,
    on_log_scale,
    rules,
    stretches,
    thin_rounds,
    value_axis,
)
from coterie.report.numbers import count_of, join_words, significant
from coterie.runs.folder.reading import Run

BLUE, ORANGE = of_groups([0, 1])


@log_chart(Chapter.SHARING, "shared tensors", shows=("shared layers",))
def draw_shared_tensors(run: Run) -> Figure:
    """Draw how many of the network's tensors are still shared (FedTSDP)."""
    frame = run.logged("shared tensors")
    y = count_axis("shared tensors", frame["value"])
    drops = frame.filter(pl.col("value") < pl.col("value").shift())["round"].to_list()
    first, last = frame.row(0, named=True), frame.row(-1, named=True)
    caption = (
        "The line is the number of the network's tensors, counted from the input, that the server averages in a "
        "round. The rest are each client's own. Regroupings make the shared ones fewer. Here the number "
    )
    if drops:
        caption += (
            f"goes from {first['value']:.0f} in round {first['round']} to {last['value']:.0f} in round "
            f"{last['round']}; round {drops[0]} was the first with fewer."
        )
    else:
        caption += f"is {last['value']:.0f}, to round {last['round']}; none was given up."
    return Figure(
        "shared-tensors", "How many tensors are shared", caption, lines(run, frame, y, {"": BLUE}, step=True)
    )


@log_chart(Chapter.SHARING, "lambda", of=None)
def draw_pull(run: Run) -> Figure:
    """Draw how strongly clients are pulled to their group's model (FedCPS, lambda): few-shot clients and others."""
    few = run.people.select(pl.col("client").cast(pl.String).alias("of"), "few_shot")
    frame = run.logged("lambda").join(few, on="of", how="left", maintain_order="left")
    sort = pl.when(pl.col("few_shot")).then(pl.lit("few-shot clients")).otherwise(pl.lit("other clients"))
    frame = frame.with_columns(sort=sort if frame["few_shot"].any() else pl.lit("clients"))
    several = frame["sort"].n_unique() > 1
    spread = frame.group_by("sort", "round").agg(
        pl.col("value").quantile(0.1, "linear").alias("low"),
        pl.col("value").median().alias("value"),
        pl.col("value").quantile(0.9, "linear").alias("high"),
    )
    spread = spread.sort("sort", "round")
    log = on_log_scale(frame["value"])
    y = value_axis("strength of the pull, λ", log)
    sorts = spread["sort"].unique().sort().to_list()
    looks = dict(zip(sorts, [ORANGE, BLUE] if several else [BLUE], strict=True))
    layers: list[Chart] = [band(run, spread.filter(pl.col("sort") == name), shade) for name, shade in looks.items()]
    layers.append(lines(run, spread.select("round", pl.col("sort").alias("of"), "value"), y, looks))
    ends = {
        name: frame.filter(pl.col("sort") == name).group_by("of", maintain_order=True).agg(pl.col("value").last())
        for name in sorts
    }
    said = " and ".join(
        f"{significant(_median(table['value']))} for {count_of(table.height, name.removesuffix('s'))}"
        for name, table in ends.items()
    )
    caption = (
        "While a client trains, it is pulled to the model of its group with this strength. The line is the median "
        f"of the clients that took part, and the band holds the middle 80%.{LOGARITHMIC * (log is not None)}"
        f" Here the median of the clients' last strengths is {said}."
    )
    return Figure("lambda", "How strongly clients are pulled to their group", caption, alt.layer(*layers))


@log_chart(Chapter.SHARING, "tau2", of=None)
def draw_spread(run: Run) -> Figure:
    """Draw how far the personal models of a cluster's clients are from its model (FedCPS, Eq. 3: tau squared)."""
    numbered = pl.concat_str(pl.lit("cluster "), "of")
    frame = run.logged("tau2").with_columns(of=numbered)
    log = on_log_scale(frame["value"])
    chart, median = lines_or_band(run, frame, value_axis("mean squared distance per weight, τ²", log))
    caption = (
        "This is the mean squared distance, per weight, of the models that a cluster's clients have trained from "
        "the model that the cluster sent them. Each new value counts half, and the average before it the other "
        "half. The larger the distance, the weaker the pull, unless the pull is fixed. The clusters have the "
        f"method's own numbers, not those of the groups.{LOGARITHMIC * (log is not None)} Here "
    )
    if median is None:
        ends = {of: value for _, of, value in frame.iter_rows()}
        caption += (
            f"it ends at {join_words([f'{significant(end)} for {of}' for of, end in ends.items()], MOST_NAMED)}."
        )
    else:
        caption += (
            f"the line is the median of {frame['of'].n_unique():,} clusters, which ends at "
            f"{significant(median['value'][-1])}, and the band their range."
        )
    return Figure("tau2", "How far personal models are from their cluster's", caption, chart)


@log_chart(Chapter.SHARING, "identity changes", shows=("frozen",))
def draw_identity_changes(run: Run) -> Figure:
    """Draw how many clients changed the group they choose, and when the groups were frozen (FedCPS)."""
    frame = run.logged("identity changes")
    frozen = run.logged("frozen").filter(pl.col("value") > 0)["round"].head(1)
    y = count_axis("clients that changed", frame["value"])
    layers: list[Chart] = [lines(run, frame, y, {"": BLUE})]
    total = int(frame["value"].sum())
    late = frame.filter(pl.col("value") > 0)["round"]
    caption = (
        "The line counts the clients of a round that chose another group than the last time. Once nobody does for "
        "several rounds, the groups are frozen. From then on a client is sent the layers of its own group only. "
        "Here there were "
        f"{count_of(total, 'change')}" + (f", the last in round {late[-1]}" if late.len() else "")
    )
    if frozen.len():
        layers.insert(0, rules(run, frozen, "frozen"))
        caption += f"; the groups were frozen in round {frozen[0]}."
    else:
        caption += "; the groups were not frozen."
    return Figure("identity-changes", "Who still changes group", caption, alt.layer(*layers))


@log_chart(Chapter.SHARING, "period", of=None)
def draw_periods(run: Run) -> Figure:
    """Draw how many rounds pass between two exchanges of each layer, a mean over the groups (DC-PFL)."""
    frame = run.logged("period")
    kept = thin_rounds(frame)
    layers = kept["of"].unique(maintain_order=True).to_list()
    bars = stretches(kept, "of", "value").with_columns(
        left=pl.col("start") - 0.5, right=pl.col("stop") - 0.5, until=pl.col("stop") - 1
    )
    last = {of: value for _, of, value in frame.iter_rows()}
    low, high = extent(frame["value"])
    chart = (
        alt.Chart(rows(bars.drop("stop")))
        .mark_rect(strokeWidth=SEAM, stroke=alt.expr("scale('color', datum.value)"))
        .encode(
            x=axis_of_rounds("left", extent(bars["left"])[0], extent(bars["right"])[1]),
            x2=alt.X2("right:Q"),
            y=alt.Y("of:N").title(None).sort(layers).axis(labelLimit=160),
            color=alt.Color("value:Q")
            .title("rounds between two exchanges")
            .scale(scheme="viridis", domain=[min(low, 1.0), max(high, 2.0)])
            .legend(alt.Legend(orient="top", gradientLength=180, titleLimit=300, format=".3~g", tickMinStep=1)),
            tooltip=[
                alt.Tooltip("of:N", title="layer"),
                alt.Tooltip("value:Q", title="rounds between", format=".3~g"),
                alt.Tooltip("start:Q", title="from round"),
                alt.Tooltip("until:Q", title="to round"),
            ],
        )
    )
    rare = [of for of in layers if last[of] > 1]
    caption = (
        "The colour is the number of rounds between two exchanges of a layer, a mean over the groups. Layers in "
        "which the members of a group hardly differ are exchanged less often. "
    )
    caption += (
        "Here, in the end, the rounds between are "
        + join_words([f"{last[of]:.3g} for {of}" for of in rare], MOST_NAMED)
        if rare
        else "Here, in the end, every layer is exchanged in every round"
    )
    return Figure("period", "How often each layer is exchanged", caption + ".", chart)


def _median(values: pl.Series) -> float:
    return float(np.median(values.to_numpy()))
