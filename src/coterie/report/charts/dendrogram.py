"""The dendrogram of the clients' models (DC-PFL), drawn from the merges in the log."""

from __future__ import annotations

import json
from collections import Counter

import altair as alt
import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.cluster.hierarchy import is_valid_linkage, leaves_list

from coterie.report.charts.registry import Chapter, log_chart
from coterie.report.drawing.colours import NO_GROUP, of_groups
from coterie.report.drawing.figure import Figure, rows
from coterie.report.drawing.marks import (
    DASHED,
    PLAIN,
    THRESHOLD,
    colour,
    legend,
    lines,
    round_axis,
    shapes,
    thin_rounds,
    value_axis,
)
from coterie.report.numbers import count_of, join_words, significant
from coterie.runs.folder.reading import Run

TITLE = "The dendrogram of the clients' models"

MOST_TIPS = 120
"""A dendrogram has at most so many tips; beyond, the lowest merges are drawn as one tip."""

MOST_NAMES = 40
"""Up to so many tips have room for their client's number."""


@log_chart(Chapter.GROUPING, "trial", shows=("accepted",), of=("now", "finer"))
def draw_trials(run: Run) -> Figure:
    """Draw the mean losses of the two branches of each trial, and which was taken (DC-PFL)."""
    verdict = run.logged("accepted").select("round", pl.col("value").alias("accepted"))
    frame = run.logged("trial").join(verdict, on="round", how="left", maintain_order="left")
    frame = thin_rounds(frame, 120).with_columns(
        of=pl.col("of").replace({"now": "grouping as it is", "finer": "finer grouping"}),
        verdict=pl.when(pl.col("accepted") > 0)
        .then(pl.lit("finer taken"))
        .when(pl.col("accepted").is_null())
        .then(pl.lit("not decided"))
        .otherwise(pl.lit("finer refused")),
    )
    y = value_axis("mean loss after training both").scale(zero=False, padding=10)
    looks = dict(zip(["grouping as it is", "finer grouping"], of_groups([0, 1]), strict=True))
    forms = {"finer taken": "triangle-down", "finer refused": "cross", "not decided": "circle"}
    forms = {name: form for name, form in forms.items() if name in frame["verdict"].to_list()}
    span = frame.group_by("round", maintain_order=True).agg(
        pl.col("value").min().alias("low"), pl.col("value").max().alias("high")
    )
    chart = alt.layer(
        alt.Chart(rows(span))
        .mark_rule(color=NO_GROUP)
        .encode(x=round_axis(run), y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        alt.Chart(rows(frame))
        .mark_point(filled=True, size=90, opacity=1)
        .encode(
            x=round_axis(run),
            y=y,
            color=colour(looks, stroke=False),
            shape=shapes("verdict", forms),
            tooltip=[
                alt.Tooltip("of:N", title="branch"),
                alt.Tooltip("round:Q"),
                alt.Tooltip("value:Q", title="loss", format=".4~g"),
                alt.Tooltip("verdict:N"),
            ],
        ),
    )
    took = verdict.filter(pl.col("accepted") > 0)
    number = run.logged("trial")["round"].n_unique()
    caption = (
        "In a trial round every client trains two models: that of its group as it is, and that of its group in a "
        "finer grouping. The finer grouping is taken if its mean loss is lower. Losses are those after this round "
        "of training both."
    )
    caption += " The loss that the method watches is of models as received." if run.logged("loss").height else ""
    caption += f" Here {count_of(number, 'trial')}, {took.height} of them accepted"
    caption += f", in round{'s' * (took.height > 1)} {join_words(took['round'])}." if took.height else "."
    return Figure("trial", "Trials of a finer grouping", caption, chart)


@log_chart(Chapter.GROUPING, "cut")
def draw_cut(run: Run) -> Figure:
    """Draw where the dendrogram is cut, as a share of its height (DC-PFL, relative cut)."""
    frame = run.logged("cut")
    changed = frame.filter(pl.col("value") != pl.col("value").shift())
    y = value_axis("relative height of the cut", format=".1f").scale(domain=[0, 1])
    caption = (
        "The dendrogram is cut at this share of its whole height. At 1 all clients are one group. The lower the "
        f"cut, the more groups there are. Here it starts at {frame['value'][0]:.2g}"
    )
    moves = [f"{value:.2g} in round {number}" for number, _, value in changed.iter_rows()]
    caption += f" and is moved to {join_words(moves)}." if moves else " and never moves."
    return Figure(
        "cut", "Where the dendrogram is cut", caption, lines(run, frame, y, {"": of_groups([0])[0]}, step=True)
    )


@log_chart(
    Chapter.GROUPING, "merge left", "merge right", "merge height", shows=("dendrogram client", "cut"), of=None
)
def draw_dendrogram(run: Run) -> Figure:
    """Draw the clients' dendrogram (DC-PFL), its tips coloured by planted or by final group, and the last cut."""
    linkage = _linkage(run)
    if linkage is None:
        return Figure("dendrogram", TITLE, "The merges in the log are incomplete, so there is no tree to draw.")
    n = len(linkage) + 1
    clients = _tips(run, n)
    planted = dict(run.people.drop_nulls("planted").select("client", "planted").iter_rows())
    final = dict(run.last.select("client", "group").iter_rows())
    known = planted if all(client in planted for client in clients) else final
    member = [known.get(client, -1) for client in clients]
    kind = "planted group" if known is planted else "final group"

    # Below the MOST_TIPS - 1 highest merges everything is one tip.
    first = n + max(0, n - MOST_TIPS)
    members: list[list[int]] = [[leaf] for leaf in range(n)]
    for left, right in linkage[:, :2].astype(int):
        members.append(members[left] + members[right])
    inner = [node for merge in range(first - n, n - 1) for node in linkage[merge, :2].astype(int)]
    tips = {node for node in inner if node < first}
    position = {leaf: place for place, leaf in enumerate(leaves_list(linkage).tolist())}
    ordered = sorted(tips, key=lambda node: position[members[node][0]])
    x = {node: place + 0.5 for place, node in enumerate(ordered)}
    height = dict.fromkeys(ordered, 0.0)
    shade = {node: _common_group(member, members[node]) for node in range(2 * n - 1)}
    segments = []
    for merge in range(first - n, n - 1):
        left, right = (int(node) for node in linkage[merge, :2])
        node, top = n + merge, float(linkage[merge, 2])
        x[node], height[node] = (x[left] + x[right]) / 2, top
        segments += [(x[side], height[side], x[side], top, shade[node]) for side in (left, right)]
        segments.append((x[left], top, x[right], top, shade[node]))
    frame = pl.DataFrame(segments, ["x", "value", "x2", "value2", "group"], orient="row")
    spots = pl.DataFrame(
        {
            "x": [x[node] for node in ordered],
            "value": [0.0] * len(ordered),
            "group": [Counter(member[leaf] for leaf in members[node]).most_common(1)[0][0] for node in ordered],
            "clients": [_label_of(clients, members[node]) for node in ordered],
        }
    )
    return _draw_tree(run, linkage, frame, spots, kind, len(set(member)))


def _draw_tree(
    run: Run, linkage: npt.NDArray[np.float64], frame: pl.DataFrame, spots: pl.DataFrame, kind: str, groups: int
) -> Figure:
    total = float(linkage[-1, 2])
    known = sorted({*frame["group"].to_list(), *spots["group"].to_list()} - {-1})
    scale = alt.Scale(domain=[-1, *known], range=of_groups([-1, *known]))
    labels = alt.Legend(
        orient="top", title=kind, titleOrient="left", values=known, symbolType="circle", symbolSize=60, columns=12
    )
    shade = alt.Color("group:N").scale(scale).legend(labels if 1 < len(known) <= 18 else None)
    x = alt.X("x:Q").title("clients").scale(domain=[0, spots.height], nice=False)
    if spots.height <= MOST_NAMES:
        names = ", ".join(f"'{x:g}': {json.dumps(text)}" for x, text in spots.select("x", "clients").iter_rows())
        x = x.axis(values=spots["x"].to_list(), labelExpr=f"({{{names}}})[datum.value]", grid=False)
    else:
        x = x.axis(labels=False, ticks=False, grid=False)
    y = alt.Y("value:Q").title("distance at which two groups merge").scale(zero=True).axis(format=PLAIN)
    layers: list[alt.Chart] = [
        alt.Chart(rows(frame))
        .mark_rule(strokeWidth=1.5)
        .encode(x=x, y=y, x2=alt.X2("x2:Q"), y2=alt.Y2("value2:Q"), color=shade),
        alt.Chart(rows(spots))
        .mark_circle(size=45, opacity=1)
        .encode(x=x, y=y, color=shade, tooltip=[alt.Tooltip("clients:N"), alt.Tooltip("group:N", title=kind)]),
    ]
    caption = (
        "Every tip is a client. Two branches join at the distance of their clients' models, a mean over all pairs. "
        f"Colours are the {kind}s. A branch of several groups is grey."
    )
    clients = count_of(len(linkage) + 1, "client") + f" of {groups} {kind}s" * (groups > 1)
    cuts = run.logged("cut")["value"]
    if cuts.len():
        at = float(cuts[-1]) * total
        parts = len(linkage) + 1 - int((linkage[:, 2] <= at + 1e-12).sum())
        frame = pl.DataFrame({"value": [at], "of": ["last cut"]})
        line = alt.Scale(domain=["last cut"], range=[THRESHOLD])
        layers.append(
            alt.Chart(rows(frame))
            .mark_rule(strokeDash=DASHED, strokeWidth=1.5)
            .encode(y=y, stroke=alt.Stroke("of:N").scale(line).legend(legend(["last cut"])))
        )
        split = f"divides {clients} into {parts} groups" if parts > 1 else f"leaves {clients} in one group"
        caption += f" Here the last cut, at {cuts[-1]:.2g} of the height of {significant(total)}, {split}."
    else:
        caption += f" Here {clients} join at {significant(total)}."
    if spots.height < len(linkage) + 1:
        caption += f" The lowest merges are not drawn, so {spots.height} tips stand for all clients."
    return Figure("dendrogram", TITLE, caption, alt.layer(*layers))


def _linkage(run: Run) -> npt.NDArray[np.float64] | None:
    """Read the last dendrogram from the log, `[n - 1, 4]` as SciPy has it; None where a merge is missing."""
    columns = [run.logged(f"merge {name}") for name in ("left", "right", "height")]
    latest = max(column["round"][-1] for column in columns)
    values = [{of: value for number, of, value in column.iter_rows() if number == latest} for column in columns]
    merges = [str(merge) for merge in range(len(values[0]))]
    if not merges or any(set(value) != set(merges) for value in values):
        return None
    linkage = np.array([[value[merge] for value in values] + [0] for merge in merges])
    n, count = len(linkage) + 1, np.ones(2 * len(linkage) + 1)
    for merge, (left, right) in enumerate(linkage[:, :2].astype(int)):
        if not (0 <= left < n + merge and 0 <= right < n + merge):
            return None
        count[n + merge] = linkage[merge, 3] = count[left] + count[right]
    return linkage if is_valid_linkage(linkage) else None


def _tips(run: Run, n: int) -> list[int]:
    """Read the client of each of the `n` leaves of the dendrogram; without one, take the leaf's number."""
    logged = {of: int(value) for _, of, value in run.logged("dendrogram client").iter_rows()}
    return [logged.get(str(leaf), leaf) for leaf in range(n)]


def _common_group(member: list[int], leaves: list[int]) -> int:
    found = {member[leaf] for leaf in leaves}
    return found.pop() if len(found) == 1 else -1


def _label_of(clients: list[int], leaves: list[int]) -> str:
    if len(leaves) == 1:
        return str(clients[leaves[0]])
    return f"{len(leaves)} clients, {min(clients[leaf] for leaf in leaves)} among them"
