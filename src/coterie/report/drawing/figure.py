"""A figure: a chart with its title and caption. All charts of all pages have one size and one look."""

from __future__ import annotations

import struct
import textwrap
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any, TypeAlias

import altair as alt
import polars as pl

Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart
Bundle: TypeAlias = dict[str, Any]

WIDTH, HEIGHT, SQUARE = 640, 300, 420
"""Size of a saved chart in pixels; a square one is `SQUARE` on both sides."""

INK, FAINT = "#20242A", "#D9DDE2"

CAPTION_SIZE, CAPTION_COLUMNS = 11, {WIDTH: 112, SQUARE: 84}
"""Pixels of a caption's letters in a notebook, and how many of them fit into a line by the chart's width."""

MOST_POINTS = 250
"""A line has at most so many points; more cannot be seen and make the page heavy."""


@dataclass(frozen=True, repr=False)
class Figure:
    """A chart with its title and caption. Without a chart, the caption says why.

    A notebook shows it as a picture with both above the chart.
    """

    name: str
    """By which `coterie.draw` has it, and under which `coterie report --charts` saves it."""
    title: str
    """What is drawn, in a few words."""
    caption: str
    """How the chart is to be read, and what is seen here, in sentences."""
    chart: Chart | None = None
    """In Altair; None where there is nothing to draw."""
    square: bool = False
    """Whether the chart is as high as it is wide."""
    height: int | None = None
    """In pixels; None for the height of most charts."""

    def __repr__(self) -> str:
        return f"<Figure {self.name!r}: {self.title}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[Bundle, Bundle]:
        """Return what a notebook shows, by kind, and how large.

        That is a PNG where there is a chart, and the title and the caption as text for where no picture is shown.
        """
        shown: Bundle = {"text/plain": f"{self.title}\n\n{self.caption}"}
        if self.chart is None:
            return shown, {}
        from coterie.report.drawing.saving import PNG_SCALE, render_png

        shown["image/png"] = png = render_png(self._with_caption(self.chart))
        width, height = struct.unpack(">II", png[16:24])
        return shown, {"image/png": {"width": width // PNG_SCALE, "height": height // PNG_SCALE}}

    def _with_caption(self, chart: Chart) -> Chart:
        columns = CAPTION_COLUMNS[SQUARE if self.square else WIDTH]
        title = alt.TitleParams(
            text=self.title,
            subtitle=textwrap.wrap(self.caption, columns),
            anchor="start",
            frame="bounds",
            fontSize=14,
            subtitleFontSize=CAPTION_SIZE,
            color=INK,
            subtitleColor=INK,
            offset=12,
        )
        captioned: Chart = chart.properties(title=title)
        return captioned


def with_style(figure: Figure) -> Figure:
    """Give the figure's chart the size and look of all charts."""
    if figure.chart is None:
        return figure
    width, height = (SQUARE, SQUARE) if figure.square else (WIDTH, figure.height or HEIGHT)
    axis = alt.AxisConfig(
        labelColor=INK,
        titleColor=INK,
        gridColor=FAINT,
        domainColor=FAINT,
        tickColor=FAINT,
        titleFontWeight="normal",
        labelFontSize=12,
        titleFontSize=12,
        labelOverlap=True,
        labelSeparation=6,
    )
    config = alt.Config(
        background="white",
        font="Helvetica, Arial, sans-serif",
        axis=axis,
        legend=alt.LegendConfig(
            labelColor=INK, titleColor=INK, titleFontWeight="normal", labelFontSize=12, titleFontSize=12
        ),
        text=alt.MarkConfig(color=INK),
        view=alt.ViewConfig(stroke=None),
    )
    chart = figure.chart.properties(width=width, height=height, description=figure.caption, config=config)
    return replace(figure, chart=chart)


def rows(frame: pl.DataFrame) -> alt.InlineData:
    """Turn a frame into the data of a chart, rounded to five digits. What is no finite number is missing."""
    floats = [name for name, kind in frame.schema.items() if kind.is_float()]
    finite = pl.when(pl.col(floats).is_finite()).then(pl.col(floats))
    tidy = frame.with_columns(finite.round_sig_figs(5))
    return alt.InlineData(values=tidy.to_dicts())


def thin(frame: pl.DataFrame, most: int = MOST_POINTS) -> pl.DataFrame:
    """Keep at most `most` rows (and one), evenly spread, with the first and the last."""
    if frame.height <= most:
        return frame
    step = -(-frame.height // most)
    kept = set(range(0, frame.height, step)) | {frame.height - 1}
    return frame[sorted(kept)]


def axis_of_rounds(field: str, low: float, high: float) -> alt.X:
    """Return the axis of rounds from `low` to `high`, with ticks at whole rounds."""
    x = alt.X(f"{field}:Q").title("round").scale(domain=[low, high], nice=False)
    if high - low < 12:
        return x.axis(format="d", values=list(range(ceil(low), floor(high) + 1)), grid=False)
    return x.axis(format="d", tickMinStep=1, grid=False)
