"""One HTML file that holds everything it shows and loads nothing: its frame, its sections and its tables."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from coterie.report.charts import language_version, specification
from coterie.report.figures import Figure


def document(title: str, lead: str, parts: Iterable[str], drawn: Iterable[Figure]) -> str:
    """The whole page.

    Args:
        title: its heading, as plain text.
        lead: what it is about, in one sentence of plain text.
        parts: its body as HTML; empty ones are left out.
        drawn: the figures that the body has a place for (`section`).
    """
    return Template(_resource("page.html")).substitute(
        title=escape(title),
        lead=escape(lead),
        style=_resource("page.css"),
        body="\n".join(part for part in parts if part),
        specifications=_inside_script({f.name: _responsive(f) for f in drawn if f.chart is not None}),
        vega=_vega(),
        script=_resource("page.js"),
    )


def section(figure: Figure, level: int = 2) -> str:
    """The place of a figure under a heading of that level, with its caption."""
    title = f"<h{level}>{escape(figure.title)}</h{level}>"
    if figure.chart is None:
        return f"{title}<p class='note'>{escape(figure.caption)}</p>"
    shape = "chart square" if figure.square else "chart"
    size = "" if figure.height is None else f" style='height:{figure.height}px'"
    return (
        f"{title}<figure><div class='{shape}' id='chart-{figure.name}'{size}></div>"
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


def html_table(
    head: Sequence[str], lines: Iterable[Sequence[str]], texts: int = 1, strong: Collection[tuple[int, int]] = ()
) -> str:
    """A table whose first `texts` columns are text, the others numbers; `strong` are the (line, column) in bold."""

    def cell(line: int, column: int, text: str, tag: str) -> str:
        kinds = [kind for kind, is_so in (("text", column < texts), ("strong", (line, column) in strong)) if is_so]
        kind = f" class='{' '.join(kinds)}'" if kinds else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    def cells(line: Sequence[str], tag: str, number: int = -1) -> str:
        return "".join(cell(number, column, text, tag) for column, text in enumerate(line))

    body = "".join(f"<tr>{cells(line, 'td', number)}</tr>" for number, line in enumerate(lines))
    return (
        f"<div class='scroll'><table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Nested values as lines of a table: the keys joined, and the value as text."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key} · ")
        else:
            yield f"{before}{key}", " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _responsive(figure: Figure) -> dict[str, Any]:
    """The specification of a chart that takes the size of its place on the page."""
    assert figure.chart is not None
    spec = specification(figure.chart)
    spec |= {"width": "container", "height": "container", "autosize": {"type": "fit", "contains": "padding"}}
    spec["background"] = None
    return spec


def _inside_script(value: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@cache
def _vega() -> str:
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=language_version())
    return bundle.replace("</script", "<\\/script")


def _resource(name: str) -> str:
    return files("coterie.report").joinpath(name).read_text(encoding="utf-8")
