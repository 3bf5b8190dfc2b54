"""The dendrogram of the clients' models (DC-PFL), drawn by SciPy from the merges in the log."""

from __future__ import annotations

import json

import altair as alt
import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.cluster.hierarchy import dendrogram, fcluster, is_valid_linkage

from coterie.errors import count_of
from coterie.report.drawing.colours import NO_GROUP, of_groups
from coterie.report.drawing.figure import Figure, rows
from coterie.report.drawing.marks import DASHED, PLAIN, THRESHOLD
from coterie.report.numbers import significant
from coterie.runs.folder.reading import RunResults

MOST_TIPS = 120
"""A dendrogram has at most so many tips; beyond, the lowest merges are drawn as one tip."""

MOST_NAMES = 40
"""Up to so many tips have room for their client's number."""


def draw_dendrogram(run: RunResults) -> Figure:
    """Draw the clients' dendrogram, its branches coloured by true or by final group, and the last cut."""
    name, title = "dendrogram", "The dendrogram of the clients' models"
    linkage = _read_linkage(run)
    if linkage is None:
        return Figure(name, title, "The merges in the log are incomplete, so there is no tree to draw.")
    n = len(linkage) + 1
    logged = {of: int(value) for _, of, value in run.logged("dendrogram client").iter_rows()}
    clients = [logged.get(str(leaf), leaf) for leaf in range(n)]
    true_groups = dict(run.federation.drop_nulls("true_group").select("client", "true_group").iter_rows())
    kind = "true" if true_groups.keys() >= set(clients) else "final"
    known = true_groups if kind == "true" else dict(run.last.select("client", "group").iter_rows())
    members = [{known.get(client, -1)} for client in clients]
    for left, right in linkage[:, :2].astype(int):
        members.append(members[left] | members[right])
    shades = dict(zip(groups := sorted(set().union(*members)), of_groups(groups), strict=True))
    drawn = dendrogram(
        linkage,
        MOST_TIPS,
        "lastp" if n > MOST_TIPS else None,
        no_plot=True,
        leaf_label_func=lambda node: str(clients[node]) if node < n else f"{int(linkage[node - n, 3])} clients",
        link_color_func=lambda node: shades[min(members[node])] if len(members[node]) == 1 else NO_GROUP,
    )
    joints = [
        {"joint": joint, "order": order, "x": x, "value": height, "colour": colour}
        for joint, (across, up, colour) in enumerate(
            zip(drawn["icoord"], drawn["dcoord"], drawn["color_list"], strict=True)
        )
        for order, (x, height) in enumerate(zip(across, up, strict=True))
    ]
    tips = [
        {"x": 10.0 * place + 5, "value": 0.0, "clients": label, "group": group, "colour": shades[group]}
        for place, (node, label) in enumerate(zip(drawn["leaves"] or [], drawn["ivl"], strict=True))
        for group in [min(members[node])]
    ]
    x = alt.X("x:Q").title("clients").scale(domain=[0, 10 * len(tips)], nice=False)
    names = {f"{tip['x']:g}": tip["clients"] for tip in tips}
    named = {"values": [tip["x"] for tip in tips], "labelExpr": f"({json.dumps(names)})[datum.value]"}
    x = x.axis(ticks=False, grid=False, **(named if len(tips) <= MOST_NAMES else {"labels": False}))
    y = alt.Y("value:Q").title("distance at which two groups merge").scale(zero=True).axis(format=PLAIN)
    colour = alt.Color("colour:N").scale(None)
    shown = [alt.Tooltip("clients:N"), alt.Tooltip("group:N", title=f"{kind} group")]
    layers: list[alt.Chart] = [
        alt.Chart(rows(pl.DataFrame(joints)))
        .mark_line(strokeWidth=1.5)
        .encode(x=x, y=y, detail="joint:N", order="order:Q", color=colour),
        alt.Chart(rows(pl.DataFrame(tips)))
        .mark_circle(size=45, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=shown),
    ]
    caption = (
        "Every tip is a client. Two branches join at the distance of their clients' models, a mean over all pairs. "
        f"Colours are the {kind} groups. A branch of several groups is grey. Here {count_of(n, 'client')} join at "
        f"{significant(linkage[-1, 2])}"
    )
    cuts = run.logged("cut")["value"]
    if cuts.len():
        at = float(cuts[-1]) * float(linkage[-1, 2])
        layers.append(
            alt.Chart(rows(pl.DataFrame({"value": [at]}))).mark_rule(color=THRESHOLD, strokeDash=DASHED).encode(y=y)
        )
        parts = len(set(fcluster(linkage, at + 1e-12, "distance")))
        caption += f"; the last cut, dashed, at {cuts[-1]:.2g} of that makes {count_of(parts, 'group')} of them"
    if len(tips) < n:
        caption += f"; {len(tips)} tips stand for all clients"
    return Figure(name, title, caption + ".", alt.layer(*layers))


def _read_linkage(run: RunResults) -> npt.NDArray[np.float64] | None:
    """Read the last dendrogram from the log, `[n - 1, 4]` as SciPy has it; None where a merge is missing."""
    columns = [run.logged(f"merge {name}") for name in ("left", "right", "height")]
    latest = max((column["round"][-1] for column in columns if column.height), default=0)
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
