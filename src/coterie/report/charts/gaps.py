"""How well each layer's updates tell the groups apart: gaps of similarity and of distance (LayerCFL)."""

from __future__ import annotations

import altair as alt
import polars as pl

from coterie.report.charts.registry import Chapter, log_chart
from coterie.report.drawing.colours import NO_GROUP, of_groups
from coterie.report.drawing.figure import Chart, Figure, rows
from coterie.report.drawing.marks import (
    MOST_LINES,
    MOST_NAMED,
    colour,
    level,
    lines,
    round_axis,
    thin_rounds,
    value_axis,
)
from coterie.report.numbers import join_words, significant
from coterie.runs.folder.reading import Run


@log_chart(Chapter.GROUPING, "gap1", shows=("chosen",), of=None)
def draw_similarity_gap(run: Run) -> Figure:
    """Draw Gap1 of each signal (LayerCFL): how much clients of one planted group are more similar than others."""
    return _draw_gaps(
        run,
        "gap1",
        "How well similarity tells the groups apart",
        "gap of similarity",
        "The gap is the lowest similarity of two clients of one planted group minus the highest of two clients of "
        f"different groups, {_describe_signal(run, 'gap1')}. Above zero no pair is out of place.",
    )


@log_chart(Chapter.GROUPING, "gap2", shows=("chosen",), of=None)
def draw_distance_gap(run: Run) -> Figure:
    """Draw Gap2 of each signal (LayerCFL): how much clients of different planted groups are farther apart."""
    return _draw_gaps(
        run,
        "gap2",
        "How well distance tells the groups apart",
        "gap of distance",
        "The gap is the smallest distance of two clients of different planted groups minus the largest of two "
        f"clients of one group, {_describe_signal(run, 'gap2')}. Above zero no pair is out of place.",
    )


@log_chart(Chapter.GROUPING, "silhouette", shows=("chosen",), of=None)
def draw_silhouette(run: Run) -> Figure:
    """Draw the mean silhouette of each layer's own grouping (docs/methods/layercfl.md, D2)."""
    return _draw_gaps(
        run,
        "silhouette",
        "How clearly each layer groups the clients",
        "mean silhouette",
        "For each layer the clients are grouped by the similarity of its updates alone, into as many groups as "
        "suit it best. A client's silhouette compares how far it is from the nearest other group and from its own: "
        "1 is far and near, 0 is between the two. It needs no knowledge of the true groups.",
    )


SIGNALS = {
    "signal": "in the signal by which the method groups them",
    "predictions": "in what their models predict",
    "relation": "in the relation between them that the method learns",
}
"""In words, the signals of a method that has but one. Any other signal is a layer, or several."""


def _describe_signal(run: Run, name: str) -> str:
    every = run.logged(name)["of"].unique().to_list()
    return SIGNALS.get(every[0] if len(every) == 1 else "", "for each signal (a layer, or all of them)")


def _draw_gaps(run: Run, name: str, title: str, axis: str, meaning: str) -> Figure:
    frame = run.logged(name)
    used = run.logged("chosen")
    chosen = used.filter((pl.col("round") == pl.col("round").max()) & (pl.col("value") > 0))["of"].to_list()
    every = frame["of"].unique(maintain_order=True).to_list()
    ends = {of: value for _, of, value in frame.iter_rows()}
    # Where there are too many layers to tell apart, those in use, all together and the best have colours.
    ranked = sorted(every, key=lambda of: (of not in chosen, of != "all", -ends[of]))
    coloured = [of for of in every if of in ranked[:MOST_LINES]]
    y = value_axis(axis)
    layers: list[Chart] = [level(y, 0.0)]
    rest = thin_rounds(frame.filter(~pl.col("of").is_in(coloured)), 60)
    if rest.height:
        pale = alt.Chart(rows(rest)).mark_line(color=NO_GROUP, strokeWidth=1, opacity=0.5)
        layers.append(pale.encode(x=round_axis(run), y=y, detail="of:N", tooltip=[alt.Tooltip("of:N", title="of")]))
    looks = dict(zip(coloured, of_groups(range(len(coloured))), strict=True))
    layers.append(lines(run, frame.filter(pl.col("of").is_in(coloured)), y, looks))
    thick = thin_rounds(frame.filter(pl.col("of").is_in([of for of in chosen if of in coloured])), 120)
    if thick.height:
        bold = alt.Chart(rows(thick)).mark_line(strokeWidth=4.5)
        layers.append(bold.encode(x=round_axis(run), y=y, color=colour(looks)))
    named = every if len(every) <= MOST_NAMED else ranked
    only = every[0] in SIGNALS and len(every) == 1
    said = [significant(ends[of]) + f" for {of}" * (not only) for of in named]
    caption = f"{meaning} Here it ends at {join_words(said, MOST_NAMED)}{_describe_choice(run, frame, chosen)}"
    if rest.height:
        caption += f". Of {len(every)} layers, {len(coloured)} are coloured and the others grey"
    return Figure(name, title, caption + ".", alt.layer(*layers))


def _describe_choice(run: Run, frame: pl.DataFrame, chosen: list[str]) -> str:
    """Describe the layers in use, and lines that end where the layers were chosen."""
    if not chosen:
        return ""
    made = run.logged("chosen").filter(pl.col("of").is_in(chosen) & (pl.col("value") > 0))["round"][0]
    # Silhouettes are of a choice that was to be made; only there is `all` what is left when no layer will do.
    if chosen == ["all"] and run.logged("silhouette").height:
        said = (
            f". In round {made} the method fell back on all layers together, as no layer scored above 0.25. A "
            "layer's score is its mean silhouette times how alike its groups of different rounds are. The line of "
            "all layers is bold as the fall-back, not as the best line"
        )
    else:
        said = f"; the method uses {join_words(chosen)}, drawn bold"
    lasts = frame.group_by("of").agg(pl.col("round").max())["round"]
    cut_short = int((lasts < made).sum())
    if cut_short:
        which = "The lines end" if cut_short == lasts.len() else "The other lines end"
        said += f". {which} where the choice was made, in round {made}"
    return said
