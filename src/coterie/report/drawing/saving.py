"""Charts as files: SVG and PNG for a paper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import altair as alt

from coterie.errors import escape_lines
from coterie.report.drawing.figure import Chart, Figure
from coterie.runs.folder.files import write_whole

PNG_SCALE = 2
"""Pixels of a PNG for each pixel of a chart, across and down."""


def save_figures(figures: Iterable[Figure], directory: Path | str) -> list[Path]:
    """Write the charts of figures, as `save_charts` does; one without a chart is left out."""
    return save_charts({figure.name: figure.chart for figure in figures if figure.chart is not None}, directory)


def save_charts(charts: Mapping[str, Chart], directory: Path | str) -> list[Path]:
    """Write charts to `directory` as SVG and as PNG (at twice the size), under their names; return the files."""
    import vl_convert

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, chart in charts.items():
        svg, png = directory / f"{name}.svg", directory / f"{name}.png"
        text = vl_convert.vegalite_to_svg(specification(chart), vl_version=language_version())
        write_whole(svg, _own_ids(text, name).encode())
        write_whole(png, render_png(chart))
        written += [svg, png]
    return written


def render_png(chart: Chart) -> bytes:
    """Return the chart as a PNG, `PNG_SCALE` times as large, for screens and prints of a fine grain."""
    import vl_convert

    png: bytes = vl_convert.vegalite_to_png(specification(chart), vl_version=language_version(), scale=PNG_SCALE)
    return png


def specification(chart: Chart) -> dict[str, Any]:
    """Return the chart in Vega-Lite, without the address of its schema; names of others are escaped."""
    spec: dict[str, Any] = _escaped(chart.to_dict(validate=False))  # the tests check every chart
    spec.pop("$schema", None)
    return spec


def _escaped(value: Any) -> Any:
    """Return a value in which all that does not print, and that no drawing may hold, is written as in a literal."""
    if isinstance(value, str):
        return escape_lines(value)
    if isinstance(value, Mapping):
        return {key: _escaped(inner) for key, inner in value.items()}
    return [_escaped(inner) for inner in value] if isinstance(value, list) else value


def language_version() -> str:
    """Return the version of Vega-Lite that the charts are written in, as `major.minor`."""
    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])


def _own_ids(svg: str, name: str) -> str:
    """Number the gradients and clips of a drawing from 0, under its name.

    The renderer counts on from one drawing to the next. So equal charts would differ, and two of them in one
    document would share ids.
    """
    known: dict[str, str] = {}

    def own(match: re.Match[str]) -> str:
        return match[1] + known.setdefault(match[2], f"{name}-{len(known)}")

    return re.sub(r'(\bid="|url\(#)((?:gradient_|clip)\d+)', own, svg)
