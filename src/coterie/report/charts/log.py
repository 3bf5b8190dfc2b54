"""What a method logged, over the rounds: one chart for each name, drawn alike for every method."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import polars as pl

from coterie.errors import count_of
from coterie.report.drawing.figure import Chart, Figure, axis_of_rounds, rows, thin
from coterie.report.drawing.marks import (
    MOST_LINES,
    MOST_NAMED,
    THRESHOLD,
    are_far_apart,
    band,
    lines,
    rules,
    value_axis,
)
from coterie.report.numbers import join_words, significant
from coterie.runs.folder.reading import RunResults

MOST_PLAIN = 24
"""A page has at most so many charts of names that nothing is known of; further ones are listed."""


@dataclass(frozen=True)
class About:
    """What a page says of a name in the log beside its numbers."""

    title: str
    meaning: str
    threshold: str = ""
    """The name under which a threshold is logged, which is drawn as a dashed line."""
    event: str = ""
    """The name that is above zero in the rounds that are marked."""


ABOUT = {
    "hopkins": About(
        "When the clients look clusterable",
        "The Hopkins statistic says how strongly the clients' predictions fall into clusters: about 0.5 for no "
        "structure, towards 1 for tight clusters. Above the threshold the server regroups the clients.",
        "hopkins threshold",
        "fired",
    ),
    "js": About(
        "How differently the clients predict",
        "The Jensen-Shannon divergence of what two clients' models predict for one public batch, from 0 to 0.69. "
        "Clients linked by pairs below the threshold form one group of the first stage.",
        "eps1",
    ),
    "similarity": About(
        "How alike the clients predict",
        "The similarity of what two clients' models predict. Clients above the threshold belong together.",
        "similarity threshold",
    ),
    "loss": About(
        "The loss that the method watches",
        "The mean training loss of the clients, of the models as they receive them.",
        event="rapid decrease ended",
    ),
    "radius": About(
        "When the rapid decrease ends",
        "The radius of curvature of the mean training loss: small where the curve bends, large where it runs "
        "straight. Where the loss does not bend upwards there is none.",
        event="rapid decrease ended",
    ),
    "stopped": About(
        "When the method stopped", "At 1 the method has stopped: nothing is trained or sent any more."
    ),
    "objective": About(
        "What each step of the clustering gains",
        "The mean squared distance of the clients' models to the centre of their group: before each client chooses "
        "the nearest centre (E-step), after that, and after each centre moves to the mean of its clients (M-step).",
    ),
    "margin": About(
        "How near clients are to another group",
        "For the client that is closest to changing its group: the distance to the nearest other centre, divided "
        "by that to the centre of its own group. Below 1 it moves.",
    ),
    "trial": About(
        "Trials of a finer grouping",
        "In a trial every client trains the model of its group as it is (now) and that of its group in a finer "
        "grouping. The finer one is taken if its mean loss is lower.",
        event="accepted",
    ),
    "cut": About(
        "Where the dendrogram is cut",
        "The share of its whole height at which the dendrogram is cut. At 1 all clients are one group.",
    ),
    "gap1": About(
        "How well similarity tells the groups apart",
        "The lowest similarity of two clients of one true group minus the highest of two clients of different "
        "groups. Above zero no pair is out of place.",
        event="chosen",
    ),
    "gap2": About(
        "How well distance tells the groups apart",
        "The smallest distance of two clients of different true groups minus the largest of two clients of one "
        "group. Above zero no pair is out of place.",
        event="chosen",
    ),
    "silhouette": About(
        "How clearly each layer groups the clients",
        "The mean silhouette when clients are grouped by the updates of one layer alone: towards 1 for groups that "
        "are far apart, 0 for none. It needs no knowledge of the true groups.",
        event="chosen",
    ),
    "update norm": About(
        "When a leaf comes to rest",
        "The length of the mean update of a leaf's clients. Below its threshold the leaf has come to rest and may "
        "be split.",
        "split threshold",
    ),
    "shared tensors": About(
        "How many tensors are shared",
        "The number of the network's tensors, counted from the input, that the server averages in a round. The "
        "rest are each client's own.",
    ),
    "lambda": About(
        "How strongly clients are pulled to their group",
        "The strength with which a client is pulled to the model of its group while it trains.",
    ),
    "tau2": About(
        "How far personal models are from their cluster's",
        "The mean squared distance, per weight, of the models that a cluster's clients have trained from the "
        "cluster's model. Clusters have the method's own numbers, not those of the groups.",
    ),
    "identity changes": About(
        "Who still changes group",
        "The clients of a round that chose another group than the last time. Once nobody does for several rounds, "
        "the groups are frozen.",
        event="frozen",
    ),
    "period": About(
        "How often each layer is exchanged",
        "The rounds between two exchanges of a layer, a mean over the groups. Layers in which the members of a "
        "group hardly differ are exchanged less often.",
    ),
}
"""Names in the order of the page; any other name has a chart too, without a word on what it is."""

SHOWN_WITH = {
    **{beside: name for name, about in reversed(ABOUT.items()) for beside in (about.threshold, about.event)},
    "shared layers": "shared tensors",
}
"""Names that have no chart of their own where another name is logged, whose chart shows them."""

NOT_DRAWN = ("leaf", "leaf size")
"""Names of a tree, which lines over rounds do not show."""


def find_names(run: RunResults) -> tuple[dict[str, str], list[str]]:
    """Return the names in the log that have a chart, by the name of their figure, and those without room."""
    logged = run.log["name"].unique(maintain_order=True).to_list()
    own = [name for name in logged if name not in NOT_DRAWN and SHOWN_WITH.get(name) not in logged]
    unknown = [name for name in own if name not in ABOUT and run.logged(name)["round"].n_unique() > 1]
    found = {name.replace(" ", "-"): name for name in ABOUT if name in own}
    for name in unknown[:MOST_PLAIN]:
        plain = "log-" + (re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "number")
        free = (own for own in (plain, *(f"{plain}-{i}" for i in range(2, MOST_PLAIN + 2))) if own not in found)
        found[next(free)] = name
    return found, unknown[MOST_PLAIN:]


def draw_logged(run: RunResults, figure: str, name: str) -> Figure:
    """Draw one name in the log: a line for each of its parts, or the median and range of many.

    Args:
        run: whose log it is.
        figure: the name of the figure.
        name: under which the numbers were logged.
    """
    about = ABOUT.get(name, About(name, f"What the method logged as {name}."))
    frame = run.logged(name)
    parts = frame["of"].unique(maintain_order=True).to_list()
    is_logarithmic = are_far_apart(frame["value"])
    x = axis_of_rounds("round", run.rounds["round"][0], run.rounds["round"][-1])  # the same for all, to line up
    y = value_axis(name, is_logarithmic=is_logarithmic)
    layers: list[Chart] = []
    if len(parts) > MOST_LINES:
        spread = frame.group_by("round", maintain_order=True).agg(
            low=pl.col("value").min(), value=pl.col("value").median(), high=pl.col("value").max()
        )
        layers = [band(spread, x)]
        line = spread.select("round", pl.lit("").alias("of"), "value")
        words = f"The line is the median of {len(parts):,}, the band their range. Here the median"
    else:
        line, words = frame, "Here it"
    threshold = run.logged(about.threshold)
    layers += [_draw_threshold(threshold, x, y)] if threshold.height else []
    layers.append(lines(line, x, y))
    happened = run.logged(about.event).filter(pl.col("value") > 0)["round"].unique().sort()
    if happened.len():
        layers.append(rules(happened, x, about.event))
    caption = f"{about.meaning} {words} {_describe_course(line)}{_describe_ends(frame, parts)}"
    caption += f"; the threshold, dashed, is {significant(threshold['value'][-1])}" if threshold.height else ""
    if happened.len():
        caption += f"; {about.event} in {count_of(happened.len(), 'round')}, first in round {happened[0]}"
    elif run.logged(about.event).height:
        caption += f"; {about.event} in no round"
    caption += "."
    caption += " The axis is logarithmic." * is_logarithmic
    return Figure(figure, about.title, caption, alt.layer(*layers))


def _draw_threshold(threshold: pl.DataFrame, x: alt.X, y: alt.Y) -> Chart:
    """Draw a threshold: a dashed line for each part that has one of its own."""
    chart = alt.Chart(rows(thin(threshold))).mark_line(color=THRESHOLD, strokeDash=[3, 3], interpolate="step-after")
    drawn: Chart = chart.encode(x=x, y=y, detail="of:N")
    return drawn


def _describe_course(line: pl.DataFrame) -> str:
    """Say how a number moves: `goes from 2 in round 1 to 0.5 in round 9`; of several, only where they end."""
    if line["of"].n_unique() > 1:
        ends = {of: value for _, of, value in line.iter_rows()}
        return f"ends at {join_words([f'{significant(end)} for {of}' for of, end in ends.items()], MOST_NAMED)}"
    first, last = line.row(0, named=True), line.row(-1, named=True)
    end = f"{significant(last['value'])} in round {last['round']}"
    if first["round"] == last["round"]:
        return f"is {end}"
    return f"goes from {significant(first['value'])} in round {first['round']} to {end}"


def _describe_ends(frame: pl.DataFrame, parts: Sequence[str]) -> str:
    """Of many parts, say which ends highest and which lowest."""
    if len(parts) <= MOST_LINES:
        return ""
    ends = {of: value for _, of, value in frame.iter_rows()}
    high, low = max(parts, key=lambda of: ends[of]), min(parts, key=lambda of: ends[of])
    return f"; highest ends {high} at {significant(ends[high])}, lowest {low} at {significant(ends[low])}"
