"""The tree of splits: which leaf came out of which, and when a leaf came to rest (LayerCFL, CFL)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import altair as alt
import numpy as np
import polars as pl

from coterie.report.drawing.colours import NO_GROUP, of_groups
from coterie.report.drawing.figure import Figure, axis_of_rounds, rows
from coterie.report.numbers import count_of, join_words
from coterie.runs.folder.reading import Run

THICKNESS = 0.35
"""The share of a leaf's height that its bar takes; the rest separates it from the next."""


@dataclass
class Leaf:
    """A leaf of the tree of splits from its birth to the round in which its children begin."""

    name: str
    birth: int
    end: float
    parent: Leaf | None = None
    clients: int = 1
    children: list[Leaf] = field(default_factory=list)
    middle: float = 0.0


def draw_tree(run: Run) -> Figure:
    """Draw the tree of splits (LayerCFL, CFL): a bar for each leaf from its birth to its split."""
    last = int(run.rounds["round"][-1])
    leaves = _leaves(run, last)
    ends = [leaf for leaf in _walk([x for x in leaves if x.parent is None]) if not leaf.children]
    _place(leaves, ends)
    names = list(dict.fromkeys(leaf.name for leaf in leaves))
    total = sum(leaf.clients for leaf in ends)
    bars = pl.DataFrame(
        {
            "leaf": [x.name for x in leaves],
            "left": [x.birth - 0.5 for x in leaves],
            "right": [x.end - 0.5 for x in leaves],
            "top": [x.middle - THICKNESS * x.clients / 2 for x in leaves],
            "bottom": [x.middle + THICKNESS * x.clients / 2 for x in leaves],
            "clients": [x.clients for x in leaves],
            "until": [max(int(x.end) - 1, x.birth) for x in leaves],
            "from": [x.birth for x in leaves],
        }
    )
    joints = pl.DataFrame(
        [
            (x.end - 0.5, min(c.middle for c in x.children), max(c.middle for c in x.children))
            for x in leaves
            if x.children
        ],
        {"left": pl.Float64, "top": pl.Float64, "bottom": pl.Float64},
        orient="row",
    )
    first = int(run.rounds["round"][0])
    x = axis_of_rounds("left", first - 0.5, last + 0.5)
    labels = {f"{leaf.middle:g}": f"{leaf.name} ({leaf.clients})" for leaf in ends}
    height = max(leaf.middle + leaf.clients / 2 for leaf in ends)
    y = (
        alt.Y("top:Q")
        .title("leaf (clients)")
        .scale(domain=[0, height], reverse=True, nice=False)
        .axis(
            values=[float(middle) for middle in labels],
            labelExpr=f"({json.dumps(labels)})[datum.value]",
            orient="right",
            grid=False,
            domain=False,
            ticks=False,
        )
    )
    scale = alt.Scale(domain=names, range=of_groups(range(len(names))))
    chart = alt.layer(
        alt.Chart(rows(joints)).mark_rule(color=NO_GROUP, strokeWidth=2).encode(x=x, y=y, y2=alt.Y2("bottom:Q")),
        alt.Chart(rows(bars))
        .mark_rect(strokeWidth=0.8, stroke=alt.expr("scale('color', datum.leaf)"))
        .encode(
            x=x,
            x2=alt.X2("right:Q"),
            y=y,
            y2=alt.Y2("bottom:Q"),
            color=alt.Color("leaf:N").scale(scale).legend(None),
            tooltip=[
                alt.Tooltip("leaf:N"),
                alt.Tooltip("clients:Q"),
                alt.Tooltip("from:Q", title="from round"),
                alt.Tooltip("until:Q", title="to round"),
            ],
        ),
    )
    splits = sorted(int(leaf.end) for leaf in leaves if leaf.children)
    sized = bool(run.logged("leaf size").height)
    caption = "Each bar is a group of clients, from the round in which it came to be to the round of its split"
    caption += ". A bar is as thick as it has clients" if sized else ""
    caption += f". Here {count_of(total, 'client') if sized else 'the clients'} end in "
    caption += "one leaf" if len(ends) == 1 else f"{len(ends):,} leaves"
    if splits:
        caption += f", after {count_of(len(splits), 'split')} in round{'s' * (len(set(splits)) > 1)} "
        caption += join_words(dict.fromkeys(splits))
    else:
        caption += "; there was no split"
    caption += "."
    return Figure("tree", "The tree of splits", caption, chart)


def _leaves(run: Run, last: int) -> list[Leaf]:
    """Read the leaves in the order of their birth, with their children; a number that comes again is a new leaf."""
    born = run.logged("leaf")
    sizes: dict[str, list[tuple[int, float]]] = {}
    for number, of, value in run.logged("leaf size").iter_rows():
        sizes.setdefault(of, []).append((number, value))
    leaves: list[Leaf] = []
    alive: dict[str, Leaf] = {}
    for number, cohort in born.group_by("round", maintain_order=True):
        before = dict(alive)
        for _, name, parent in cohort.iter_rows():
            birth = int(str(number[0]))
            above = before.get(f"{parent:.0f}", alive.get(f"{parent:.0f}"))
            leaf = Leaf(name, birth, last + 1, above)
            if above is not None:
                above.children.append(leaf)
                above.end = min(above.end, birth)
            leaves.append(leaf)
            alive[name] = leaf
    for leaf in leaves:
        known = [size for number, size in sizes.get(leaf.name, []) if leaf.birth <= number < leaf.end]
        leaf.clients = max(int(known[-1]), 1) if known else 1
    return leaves


def _walk(roots: list[Leaf]) -> list[Leaf]:
    """List every leaf below the roots, a parent before its children, siblings together."""
    stack, found = roots[::-1], []
    while stack:
        leaf = stack.pop()
        found.append(leaf)
        stack.extend(leaf.children[::-1])
    return found


def _place(leaves: list[Leaf], ends: list[Leaf]) -> None:
    """Give every leaf its middle on the axis: the last ones one above the other, parents amid their children."""
    edge = 0.0
    for leaf in ends:
        leaf.middle = edge + leaf.clients / 2
        edge += leaf.clients
    for leaf in reversed(leaves):  # children are born after their parents
        if leaf.children:
            leaf.middle = float(np.mean([child.middle for child in leaf.children]))
