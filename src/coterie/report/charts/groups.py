"""Who belongs together: groups over rounds, the affinity matrix, and a map of the clients' models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.optimize import linear_sum_assignment

from coterie.errors import count_of
from coterie.report.drawing.colours import of_groups
from coterie.report.drawing.figure import Figure, axis_of_rounds, rows
from coterie.report.drawing.marks import SEAM, stretches
from coterie.report.numbers import significant
from coterie.runs.folder.picture import Picture
from coterie.runs.folder.reading import RunResults

MOST_BARS = 6000
"""The history is drawn with at most so many stretches of equal group."""

MOST_CLIENTS = 2000
"""The history shows at most so many clients; each then stands for those beside it."""

MOST_CELLS = 80
"""The affinity matrix is drawn with at most so many rows and columns."""

Band = tuple[int, int, int]
"""A group and the positions of its clients: `(group, start, stop)`, stop being one past the last."""


def draw_history(run: RunResults) -> Figure:
    """Draw each client's group, round by round."""
    name, title = "groups", "Each client's group over rounds"
    if not run.clustered:
        return Figure(name, title, "This method kept all clients together, so there are no groups to follow.")
    clients, last = keep_group_numbers(run.clients.select("round", "client", "group")), run.last
    order = last.sort(pl.col("group") < 0, "group", "client").select("client").with_row_index("position")
    known, step = clients["group"].unique().to_list(), max(1, -(-last.height // MOST_CLIENTS))
    order = order.gather_every(step)
    clients = clients.join(order.select("client"), on="client", how="semi", maintain_order="left")
    bands = _bands(np.sort(np.where(last["group"] < 0, np.iinfo(np.int32).max, last["group"])))
    every, bars = 1, stretches(clients, "client", "group")
    while bars.height > MOST_BARS and every < clients["round"].n_unique():
        every *= 2
        bars = stretches(clients, "client", "group", every)
    bars = bars.join(order.with_columns(pl.col("position").cast(pl.Int32)), on="client")
    bars = bars.sort("position", "start")  # a join promises no order, and a saved chart is the same every time
    bars = (
        _with_names(run, bars)
        .with_columns(
            bottom=pl.min_horizontal(pl.col("position") + step, last.height),
            left=pl.col("start") - 0.5,
            right=pl.col("stop") - 0.5,
            until=pl.col("stop") - 1,
        )
        .drop("stop")
    )
    first, final = float(bars["left"].to_numpy().min()), float(bars["right"].to_numpy().max())
    chart = (
        alt.Chart(rows(bars))
        .mark_rect(strokeWidth=SEAM, stroke=alt.expr("scale('color', datum.group)"))
        .encode(
            x=axis_of_rounds("left", first, final),
            x2=alt.X2("right:Q"),
            y=alt.Y("position:Q")
            .title("clients, by their last group")
            .scale(domain=[0, last.height], reverse=True, nice=False)
            .axis(_group_axis(bands)),
            y2=alt.Y2("bottom:Q"),
            color=_colour_of(known),
            tooltip=[
                alt.Tooltip("client:N"),
                alt.Tooltip("group:Q"),
                alt.Tooltip("start:Q", title="from round"),
                alt.Tooltip("until:Q", title="to round"),
            ],
        )
    )
    caption = (
        "Each row is a client, each column a round and each colour a group. A row that changes colour is a client "
        "that changed group. Groups are numbered as in the last round, as far back as they can be followed. "
        + _describe_last_change(run)
    )
    if step > 1:
        caption += f" One client in {step} is drawn and stands for its neighbours."
    if every > 1:
        caption += f" There are many changes, so the chart shows every {every}th round only."
    return Figure(name, title, caption, chart)


def keep_group_numbers(clients: pl.DataFrame) -> pl.DataFrame:
    """Renumber groups so that a number stays with most of its clients, from the last round back.

    In the tables a group is numbered by its smallest member, so one client that moves can renumber all of them.
    """
    clients = clients.sort("round", "client")
    rounds = clients["round"].n_unique()
    if not rounds or clients.height % rounds:
        return clients  # nobody, or not the same clients in every round
    groups = clients["group"].to_numpy().reshape(rounds, -1).copy()
    names = int(groups.max(initial=-1)) + 1
    if names > MOST_CLIENTS:
        return clients  # nobody could follow so many, and matching them takes their cube
    for earlier, later in zip(groups[-2::-1], groups[:0:-1], strict=True):
        both = (earlier >= 0) & (later >= 0)
        shared = np.zeros((names, names), np.int64)
        np.add.at(shared, (earlier[both], later[both]), 1)
        _, renamed = linear_sum_assignment(shared, maximize=True)
        earlier[earlier >= 0] = renamed[earlier[earlier >= 0]]
    return clients.with_columns(group=pl.Series(groups.reshape(-1), dtype=clients.schema["group"]))


def draw_affinity(run: RunResults) -> Figure:
    """Draw the matrix that the groups were made from, with the clients ordered by group."""
    name, title = "affinity", "How close the clients are"
    picture = run.picture
    if picture is None:
        return Figure(name, title, "This run kept no picture of a regrouping, so there is no matrix to show.")
    values, bands, order = _order_by_group(picture)
    square = values.shape[0] == values.shape[1] == len(picture.clients)
    if square:
        np.fill_diagonal(values, np.nan)
    known = values[np.isfinite(values)]
    if not known.size:
        return Figure(name, title, "The matrix holds no number for two different clients.")
    down = _cells(bands)
    across = down if square else [(i, i + 1) for i in range(values.shape[1])]
    cells = []
    for top, bottom in down:
        for left, right in across:
            block = values[top:bottom, left:right]
            block = block[np.isfinite(block)]
            if block.size:
                row = f"clients {_ids(order[top:bottom])}"
                column = f"clients {_ids(order[left:right])}" if square else f"group {left}"
                cells.append((top, bottom, left, right, float(block.mean()), row, column))
    frame = pl.DataFrame(cells, ["top", "bottom", "left", "right", "value", "row", "column"], orient="row")
    low, high = np.quantile(known, [0.01, 0.99])
    columns_axis = _group_axis(bands, sizes=False) if square else alt.Axis(format="d", tickMinStep=1)
    chart = (
        alt.Chart(rows(frame))
        .mark_rect(strokeWidth=SEAM, stroke=alt.expr("scale('color', datum.value)"))
        .encode(
            x=alt.X("left:Q")
            .title("clients, by group" if square else "group")
            .scale(domain=[0, values.shape[1]], nice=False)
            .axis(columns_axis),
            x2=alt.X2("right:Q"),
            y=alt.Y("top:Q")
            .title("clients, by group")
            .scale(domain=[0, values.shape[0]], reverse=True, nice=False)
            .axis(_group_axis(bands)),
            y2=alt.Y2("bottom:Q"),
            color=alt.Color("value:Q")
            .title(picture.affinity_name)
            .scale(scheme="viridis", domain=[float(low), float(high)], clamp=True)
            .legend(alt.Legend(orient="top", gradientLength=220, titleLimit=300, format=".3~g")),
            tooltip=[
                alt.Tooltip("row:N"),
                alt.Tooltip("column:N", title="with"),
                alt.Tooltip("value:Q", title=picture.affinity_name, format=".4~g"),
            ],
        )
    )
    with_whom = "two clients" if square else "a client and a group"
    caption = (
        f"Each cell shows, for {with_whom}, the {picture.affinity_name} after round {picture.round}. "
        "Groups that hold together show as blocks of one colour"
        + (" along the diagonal." if square else ".")
        + (_describe_contrast(values, bands) if square else "")
        + _describe_selection(run, picture)
    )
    if len(down) < values.shape[0]:
        caption += f" Neighbouring clients are averaged, {len(order)} of them into {len(down)} rows."
    return Figure(name, title, caption, chart, square=True)


def draw_model_map(run: RunResults) -> Figure:
    """Draw the clients' models in two dimensions, coloured by group."""
    name, title = "map", "A map of the clients' models"
    picture = run.picture
    if picture is None:
        return Figure(name, title, "This run kept no picture of a regrouping, so there is no map to show.")
    if len(picture.clients) < 2:
        return Figure(name, title, "A map needs at least two clients.")
    points = pl.DataFrame(
        {
            "x": picture.coordinates[:, 0],
            "y": picture.coordinates[:, 1],
            "client": picture.clients,
            "group": picture.groups,
        }
    )
    spots = points.filter(pl.col("group") >= 0).group_by("group", maintain_order=True)
    labels = spots.agg(pl.col("x").median(), pl.col("y").max())
    # One scale for both axes: distances on the map mean the same in every direction.
    middle = (picture.coordinates.max(0) + picture.coordinates.min(0)) / 2
    reach = float(np.ptp(picture.coordinates, axis=0).max()) * 0.58 or 1.0

    def axis(column: str, title: str, centre: float) -> dict[str, Any]:
        return {
            "shorthand": f"{column}:Q",
            "title": title,
            "scale": alt.Scale(domain=[centre - reach, centre + reach], nice=False),
            "axis": alt.Axis(labels=False, ticks=False, grid=False),
        }

    x = alt.X(**axis("x", "first principal component", float(middle[0])))
    y = alt.Y(**axis("y", "second principal component", float(middle[1])))
    text = alt.Chart(rows(labels)).encode(x=x, y=y, text=alt.Text("group:N"))
    chart = alt.layer(
        alt.Chart(rows(_with_names(run, points)))
        .mark_circle(size=110 if points.height <= 100 else 40, opacity=0.85)
        .encode(
            x=x,
            y=y,
            color=_colour_of(points["group"].unique().to_list()),
            tooltip=[alt.Tooltip("client:N"), alt.Tooltip("group:Q")],
        ),
        text.mark_text(dy=-14, fontSize=14, fontWeight="bold", stroke="white", strokeWidth=4).properties(
            name="halo"
        ),
        text.mark_text(dy=-14, fontSize=14, fontWeight="bold"),
    )
    caption = (
        "Each dot is a client, placed by the last model that it trained. Dots near each other are similar models. "
        f"Colours and numbers are the groups after round {picture.round}." + _describe_selection(run, picture)
    )
    return Figure(name, title, caption, chart, square=True)


def _with_names(run: RunResults, clients: pl.DataFrame) -> pl.DataFrame:
    """Replace each client by its number and, where the run knows it, its name."""
    found = [_name(run, client) for client in clients["client"]]
    return clients.with_columns(client=pl.Series(found, dtype=pl.String))


def _name(run: RunResults, client: int) -> str:
    name = run.names.get(client, "")
    return str(client) if name in ("", f"client {client}") else f"{client} ({name})"


def _describe_selection(run: RunResults, picture: Picture) -> str:
    """Say how many of the clients the picture holds, where it does not hold all of them."""
    shown, everybody = len(picture.clients), max(len(run.names), run.last.height)
    return f" {shown:,} of {everybody:,} clients are shown." if shown < everybody else ""


def _describe_last_change(run: RunResults) -> str:
    changes = run.rounds.filter((pl.col("moved") > 0) & (pl.col("round") > run.rounds["round"].min()))
    if not changes.height:
        return "Here no client changed group after the first round."
    latest = changes.row(-1, named=True)
    clients = count_of(latest["moved"], "client")
    if latest["round"] == run.rounds["round"].max():
        return f"Here {clients} still changed group in the last round."
    return f"Here {clients} changed group in round {latest['round']}, and nobody later."


def _order_by_group(picture: Picture) -> tuple[npt.NDArray[np.float64], list[Band], list[int]]:
    """Order the matrix by group; return it with its bands, and the clients' ids in that order."""
    groups = np.where(picture.groups < 0, np.iinfo(np.int32).max, picture.groups)
    order = np.lexsort((picture.clients, groups))
    values = picture.affinity.astype(np.float64)[order]
    if values.shape[0] == values.shape[1]:
        values = values[:, order]
    return values, _bands(groups[order]), picture.clients[order].tolist()


def _bands(groups: npt.NDArray[np.integer[Any]]) -> list[Band]:
    """Find where each group lies in sorted groups; no group (the largest number) becomes -1."""
    found, starts, counts = np.unique(groups, return_index=True, return_counts=True)
    none = np.iinfo(np.int32).max
    return [
        (-1 if g == none else int(g), int(s), int(s + c)) for g, s, c in zip(found, starts, counts, strict=True)
    ]


def _cells(bands: Sequence[Band]) -> list[tuple[int, int]]:
    """Cut the bands into rows of the drawn matrix; a row never mixes clients of two groups."""
    step = -(-bands[-1][2] // MOST_CELLS)
    return [(a, min(a + step, stop)) for _, start, stop in bands for a in range(start, stop, step)]


def _group_axis(bands: Sequence[Band], sizes: bool = True) -> alt.Axis:
    """Label the middle of each band with its group, and with its number of clients where there is room."""
    middles = [(start + stop) / 2 for _, start, stop in bands]
    names = [("none" if g < 0 else str(g)) + f" ({stop - start})" * sizes for g, start, stop in bands]
    lookup = ", ".join(f"'{m:g}': '{n}'" for m, n in zip(middles, names, strict=True))
    return alt.Axis(values=middles, labelExpr=f"({{{lookup}}})[datum.value]", grid=False, labelOverlap=True)


def _colour_of(groups: Sequence[int]) -> alt.Color:
    known = sorted(groups)
    return alt.Color("group:N").scale(domain=known, range=of_groups(known)).legend(None)


def _ids(clients: Sequence[int]) -> str:
    return ", ".join(map(str, clients[:8])) + (f" and {len(clients) - 8} more" if len(clients) > 8 else "")


def _describe_contrast(values: npt.NDArray[np.float64], bands: Sequence[Band]) -> str:
    member = np.concatenate([np.full(stop - start, g) for g, start, stop in bands])
    same = (member[:, None] == member[None, :]) & (member >= 0)[:, None]
    other = ~same & (member >= 0)[:, None] & (member >= 0)[None, :]
    finite = np.isfinite(values)
    inside, between = values[same & finite], values[other & finite]
    if not inside.size or not between.size:
        return ""
    within, across = significant(inside.mean()), significant(between.mean())
    return f" Here the mean is {within} within groups and {across} between them."
