"""When the server looks for groups: clusterability, divergence of predictions, and the course of the loss."""

from __future__ import annotations

import altair as alt
import polars as pl

from coterie.report.charts.registry import Chapter, log_chart
from coterie.report.drawing.colours import NO_GROUP, of_groups
from coterie.report.drawing.figure import Chart, Figure, rows, thin
from coterie.report.drawing.marks import (
    LOGARITHMIC,
    MARKED,
    THRESHOLD,
    band,
    describe_course,
    dots,
    extent,
    lines,
    on_log_scale,
    round_axis,
    rules,
    thin_rounds,
    threshold_per_round,
    value_axis,
)
from coterie.report.numbers import count_of, join_words, significant
from coterie.runs.folder.reading import Run

BLUE = of_groups([0])[0]


@log_chart(Chapter.TRIGGERS, "hopkins", shows=("hopkins threshold", "fired"))
def draw_hopkins(run: Run) -> Figure:
    """Draw the Hopkins statistic of the clients' predictions (FedTSDP, Eq. 6), its threshold and its firings."""
    statistic, threshold = run.logged("hopkins"), run.logged("hopkins threshold")
    frame = statistic.with_columns(of=pl.lit("Hopkins statistic"))
    looks = {"Hopkins statistic": BLUE}
    caption = (
        "The Hopkins statistic says how strongly the clients' predictions fall into clusters: about 0.5 for no "
        "structure, towards 1 for tight clusters."
    )
    if threshold.height:
        level = threshold_per_round(threshold, statistic).select("round", pl.lit("threshold").alias("of"), "value")
        frame = pl.concat([frame, level])
        looks["threshold"] = THRESHOLD
        caption += " Above the dashed threshold the server regroups the clients."
    y = value_axis("Hopkins statistic", format=".2f")
    fired = run.logged("fired").filter(pl.col("value") > 0)
    marked = thin(statistic.join(fired.select("round"), on="round", maintain_order="left"))
    layers = [lines(run, frame, y, looks, dashed=["threshold"], keep=marked["round"])]
    if marked.height:
        layers.append(dots(run, marked, y, "regrouped"))
    low, high = extent(statistic["value"])
    caption += f" Here it {f'lies between {low:.2f} and' if low < high else 'is'} {high:.2f}"
    if run.logged("fired").height:
        at = f", first in round {fired['round'][0]}" if fired.height else ""
        caption += f" and the server regrouped in {fired.height:,} of {count_of(statistic.height, 'round')}{at}"
    return Figure("hopkins", "When the clients look clusterable", caption + ".", alt.layer(*layers))


@log_chart(Chapter.TRIGGERS, "fired")
def draw_searches(run: Run) -> Figure:
    """Draw in which rounds a mixed method's trigger called for new groups."""
    frame = run.logged("fired")
    fired = frame.filter(pl.col("value") > 0)["round"]
    caption = (
        "The dots at yes are the rounds in which the method's trigger called for new groups. The groups change "
        "only if others are found and accepted. "
    )
    caption += f"Here it did so in {fired.len():,} of {count_of(frame.height, 'round')}"
    caption += f", first in round {fired[0]} and last in round {fired[-1]}." if fired.len() > 1 else ""
    caption += f", in round {fired[0]}." if fired.len() == 1 else "." * (not fired.len())
    return Figure("fired", "When groups were looked for", caption, _draw_yes_or_no(run, frame, "looked for groups"))


def _draw_yes_or_no(run: Run, frame: pl.DataFrame, title: str) -> Chart:
    """Draw a dot at yes or at no in every round that was logged; where rounds are thinned, the yes are kept."""
    shown = thin_rounds(frame, keep=thin(frame.filter(pl.col("value") > 0))["round"])
    shown = shown.with_columns(of=pl.when(pl.col("value") > 0).then(pl.lit("yes")).otherwise(pl.lit("no")))
    drawn: Chart = (
        alt.Chart(rows(shown))
        .mark_point(size=70 if shown.height <= 60 else 20, filled=True, opacity=1)
        .encode(
            x=round_axis(run),
            y=alt.Y("of:N").title(title).scale(domain=["yes", "no"]).axis(grid=True),
            color=alt.Color("of:N").scale(domain=["yes", "no"], range=[MARKED, NO_GROUP]).legend(None),
            tooltip=[alt.Tooltip("round:Q"), alt.Tooltip("of:N", title=title)],
        )
    )
    return drawn


@log_chart(Chapter.TRIGGERS, "js", shows=("eps1",), of=("min", "q1", "median", "q3", "max"))
def draw_divergence(run: Run) -> Figure:
    """Draw the Jensen-Shannon divergence of predictions, as quantiles over pairs of clients, and its threshold."""
    wide = run.logged("js").pivot("of", index="round", values="value", maintain_order=True)
    threshold = run.logged("eps1")
    layers: list[Chart] = [
        band(run, wide.select("round", pl.col(a).alias("low"), pl.col(b).alias("high")).drop_nulls(), BLUE, opacity)
        for a, b, opacity in (("min", "max", 0.15), ("q1", "q3", 0.3))
        if {a, b} <= set(wide.columns)
    ]
    line = run.logged("js").filter(pl.col("of") == "median")
    if not layers:
        line = run.logged("js")
    frame = line.with_columns(of=pl.col("of").replace("median", "median pair"))
    looks = dict.fromkeys(frame["of"].unique(maintain_order=True).to_list(), BLUE)
    caption = (
        "The Jensen-Shannon divergence says how differently two clients' models predict the same public batch. It "
        "lies between 0 and 0.69. The line is the median pair. The dark band holds the middle half of the pairs, "
        "and the light band all."
    )
    if threshold.height:
        level = threshold_per_round(threshold, run.logged("js")).select(
            "round", pl.lit("threshold").alias("of"), "value"
        )
        frame = pl.concat([frame, level])
        looks["threshold"] = THRESHOLD
        caption += " Clients linked by pairs below the dashed threshold form one group of the first stage."
    layers.append(
        lines(run, frame, value_axis("divergence of two clients", zero=True), looks, dashed=["threshold"])
    )
    end = wide.row(-1, named=True)
    said = [f"the {words} is {significant(end[key])}" for key, words in _SAID.items() if end.get(key) is not None]
    caption += (
        f" Here, in round {end['round']}, {', '.join(said)}" if said else f" Here it ends in round {end['round']}"
    )
    if threshold.height:
        caption += f"; the threshold is {significant(threshold['value'][-1])}"
    return Figure("js", "How differently the clients predict", caption + ".", alt.layer(*layers))


_SAID = {"min": "smallest", "median": "median", "max": "largest"}


@log_chart(Chapter.TRIGGERS, "loss", shows=("rdp end",))
def draw_loss(run: Run) -> Figure:
    """Draw the mean training loss that a method watches (DC-PFL), with the ends of its rapid decrease."""
    frame = run.logged("loss")
    ends = _ends_of_decrease(run)
    decides = any(run.logged(name).height for name in ("rdp end", "radius", "trial", "fired"))
    title = "mean training loss as received" if decides else "mean training loss"
    layers: list[Chart] = [lines(run, frame, value_axis(title), {"": BLUE})]
    if ends.len():
        layers.insert(0, rules(run, ends, DECREASE_ENDED))
    caption = "The training loss that the method watches is a mean over the clients"
    if decides:
        caption += (
            ", of the models as they receive them, before they train. Its shape decides when groups are sought."
        )
    else:
        caption += "."
    if run.logged("trial").height:
        caption += (
            " The losses of a trial are those after a round of training both its models. They are not on this line."
        )
    caption += f" Here it {describe_course(frame)}"
    caption += f"; {_describe_ends(ends)}." if ends.len() or run.logged("radius").height else "."
    return Figure("loss", "The loss that the method watches", caption, alt.layer(*layers))


@log_chart(Chapter.TRIGGERS, "radius", shows=("rdp end",))
def draw_radius(run: Run) -> Figure:
    """Draw the radius of curvature of the mean training loss (DC-PFL), with the ends of its rapid decrease."""
    frame = run.logged("radius")
    log = on_log_scale(frame["value"])
    y = value_axis("radius of curvature", log)
    ends = _ends_of_decrease(run)
    layers: list[Chart] = [lines(run, frame, y, {"": BLUE}, broken=True)]
    if ends.len():
        layers.insert(0, rules(run, ends, DECREASE_ENDED))
    low = frame.filter(pl.col("value") == pl.col("value").min()).row(0, named=True)
    caption = (
        "The radius of curvature of the mean training loss is small where the curve bends, and large where it runs "
        "straight. The rapid decrease ends at the first round whose radius stays below that of each of the next "
        "t_obv rounds. So its end is found only after these, and then a finer grouping is tried. A round in "
        "which the loss does not bend upwards has an infinite radius and no dot."
        f"{LOGARITHMIC * (log is not None)} Here the smallest radius is {significant(low['value'])} in round "
        f"{low['round']}; {_describe_ends(ends)}."
    )
    return Figure("radius", "When the rapid decrease ends", caption, alt.layer(*layers))


@log_chart(Chapter.TRIGGERS, "stopped")
def draw_stop(run: Run) -> Figure:
    """Draw from which round on a method exchanges nothing any more."""
    frame = run.logged("stopped")
    since = frame.filter(pl.col("value") > 0)["round"]
    caption = "Once the method has stopped, nothing is trained or sent any more. "
    caption += f"Here it stopped in round {since[0]}." if since.len() else "Here it has not stopped so far."
    return Figure("stopped", "When the method stopped", caption, _draw_yes_or_no(run, frame, "stopped"))


DECREASE_ENDED = "end of the rapid decrease"


def _ends_of_decrease(run: Run) -> pl.Series:
    return run.logged("rdp end").filter(pl.col("value") > 0)["round"]


def _describe_ends(ends: pl.Series) -> str:
    if not ends.len():
        return "the rapid decrease has not ended so far"
    return f"the rapid decrease was found to have ended in round{'s' * (ends.len() > 1)} {join_words(ends)}"
