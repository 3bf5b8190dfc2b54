"""Pages and documents from the templates beside this file; whatever a template is given is escaped."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from coterie.errors import count_of
from coterie.report.drawing.figure import Figure
from coterie.report.drawing.saving import language_version, specification
from coterie.report.numbers import capital
from coterie.report.tables import Markdown, escape_markdown, to_markdown
from coterie.runs.folder.files import write_whole


def render_page(name: str, title: str, lead: str, figures: Sequence[Figure], **values: object) -> str:
    """Render a template that extends `page.html`: one HTML file that holds everything it shows and loads nothing.

    Args:
        name: the template's file.
        title: the page's heading, as plain text.
        lead: what it is about, in one sentence of plain text.
        figures: the figures that the template has a place for.
        values: what else the template shows.
    """
    return _pages().get_template(name).render(title=title, lead=lead, figures=figures, **values)


def render_document(name: str, **values: object) -> str:
    """Render a template of Markdown."""
    return _documents().get_template(name).render(**values).rstrip() + "\n"


@cache
def _pages() -> Environment:
    environment = _environment()
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"specifications": _specifications, "prose": _as_prose, "asdict": asdict}
    environment.globals |= {"vega": _vega, "file": _file}
    return environment


@cache
def _documents() -> Environment:
    environment = _environment(finalize=_as_markdown)
    environment.filters["table"] = to_markdown
    environment.filters["code"] = lambda text: Markdown(f"`{text}`")
    environment.filters["html"] = lambda text: Markdown(html.escape(text, quote=False))
    return environment


def _environment(**options: Any) -> Environment:
    environment = Environment(
        loader=PackageLoader("coterie.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    environment.globals["count_of"] = count_of
    return environment


def _as_markdown(value: object) -> object:
    """Escape what is not Markdown yet. Jinja itself would escape it for HTML."""
    return value if hasattr(value, "__html__") else escape_markdown(str(value))


def _as_prose(sentence: str) -> Markup:
    """Return a sentence for a page: it begins with a capital, unless by a name, and `coterie …` is code."""
    first = re.match(r"[a-z]+(?= (?!=))", sentence)
    begun = capital(sentence) if first and first[0] not in _method_files() else sentence
    return Markup(re.sub(r"`(coterie [^`]+)`", r"<code>\1</code>", str(escape(begun))))


@cache
def _method_files() -> frozenset[str]:
    """Return the names of the files of methods, which are those of methods; their catalogue would load torch."""
    return frozenset(file.name.removesuffix(".py") for file in files("coterie").joinpath("methods").iterdir())


def _specifications(figures: Sequence[Figure]) -> dict[str, Any]:
    """Return the charts in Vega-Lite, by name. Each takes the size of its place on the page."""
    size = {"width": "container", "height": "container", "autosize": {"type": "fit", "contains": "padding"}}
    drawn = {figure.name: figure.chart for figure in figures if figure.chart is not None}
    return {name: {**specification(chart), **size, "background": None} for name, chart in drawn.items()}


@cache
def _vega() -> str:
    """Return the library that draws the charts, as a script that cannot close its script element.

    To bundle it takes two seconds, more than a short run does, so the bundle is kept in the user's cache.
    """
    import vl_convert

    language = language_version()
    kept = _cache_folder() / f"vega-{language}-{version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):  # what is damaged is made anew
        return kept.read_text(encoding="utf-8")
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=language)
    script = bundle.replace("</script", "<\\/script")
    with suppress(OSError):  # a page needs no cache
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, script.encode())
    return script


def _cache_folder() -> Path:
    """Return where Coterie keeps what it can make again, for this user alone."""
    usual = os.path.expanduser("~/.cache")  # noqa: PTH111  # that of Path fails where a user has no home
    return Path(os.environ.get("XDG_CACHE_HOME") or usual) / "coterie"


def _file(name: str) -> str:
    """Return a style sheet or script of the page."""
    return files("coterie.report").joinpath("templates", name).read_text(encoding="utf-8")
