"""One table, written four times."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from coterie.report.comparison.each_client import ClientsByMethod, MethodView
from coterie.report.comparison.page import Published
from coterie.report.drawing.figure import Figure
from coterie.report.each_client import EachClient
from coterie.report.rendering import render_document, render_page
from coterie.report.tables import (
    Markdown,
    Table,
    escape_latex,
    escape_markdown,
    fit,
    to_latex,
    to_markdown,
    to_rich,
)
from coterie.report.why_groups import MeanImage, WhyGroups

from .test_page import Reader

TABLE = Table(["who", "where", "n"], [["a_b", "x | y", "1"], ["<i>", "$", "22"]], texts=2, strong={(1, 2)})


def test_markdown_escapes_texts_alone() -> None:
    assert to_markdown(TABLE).splitlines() == [
        "| who | where | n |",
        "| :--- | :--- | ---: |",
        "| a\\_b | x \\| y | 1 |",
        "| \\<i\\> | \\$ | **22** |",
    ]
    linked = Table(["who"], [[Markdown("[a_b](#a)")]])
    assert to_markdown(linked).splitlines()[-1] == "| [a_b](#a) |"


def test_latex_escapes_everything() -> None:
    text = to_latex(TABLE, "50 %", "n & m")
    assert r"  \caption{50 \%}" in text
    assert r"  \begin{tabular}{llr}" in text
    assert r"    a\_b & x \ensuremath{|} y & 1 \\" in text
    assert r"    \ensuremath{<}i\ensuremath{>} & \$ & \textbf{22} \\" in text
    assert r"{n \& m}" in text


def test_a_narrow_table_drops_the_least_columns_first() -> None:
    assert fit(TABLE, ["where", "n"], None) == TABLE
    wide = Console(width=1000, file=StringIO()).measure(to_rich(TABLE)).maximum
    assert fit(TABLE, ["where", "n"], wide) == TABLE
    less = fit(TABLE, ["where", "n"], wide - 1)
    assert (less.header, less.rows, less.texts) == (["who", "n"], [["a_b", "1"], ["<i>", "22"]], 1)
    assert less.strong == {(1, 1)}
    assert fit(TABLE, ["where", "n"], 1).header == ["who"]
    assert TABLE.without("nowhere") == TABLE


@pytest.mark.parametrize("text", ["a_b", "*x*", "</script><b>", "[l](#x)", "a\nb", "`c`", "$1$ & #"])
def test_what_is_escaped_once_is_not_escaped_again(text: str) -> None:
    once = escape_markdown(text)
    assert escape_markdown(once) == once
    assert "\n" not in once
    assert "\n" not in escape_latex(text)


HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7 * 7 }} {% raw %} ' \" &amp; _a_ | `b`"
)

FIGURE = Figure("hostile", HOSTILE, HOSTILE)


def test_every_text_of_a_run_page_is_escaped() -> None:
    table = Table([HOSTILE] * 2, [[HOSTILE] * 2])
    text = render_page(
        "run.html",
        HOSTILE,
        HOSTILE,
        [FIGURE],
        notes=[HOSTILE],
        tiles=[(HOSTILE,) * 3],
        compared=table,
        each=EachClient(table, 1, [HOSTILE], [HOSTILE], 1),
        not_run=[HOSTILE],
        why=WhyGroups(table, [HOSTILE], [MeanImage(HOSTILE, HOSTILE, 8, 8)], table, [HOSTILE], table, HOSTILE),
        members=[(HOSTILE, HOSTILE)],
        more_groups=1,
        transfers=table,
        newcomers=table,
        about_newcomers=HOSTILE,
        more_transfers=1,
        failures=table,
        failed=1,
        asked=2,
        experiment=HOSTILE,
        experiment_path=HOSTILE,
        environment=table,
        seed=HOSTILE,
    )
    _assert_no_foreign_element(text, 58)


def test_every_text_of_a_comparison_page_is_escaped() -> None:
    table = Table([HOSTILE] * 2, [[HOSTILE] * 2])
    setting = {
        **dict.fromkeys(("name", "headline", "finding"), HOSTILE),
        **{"table": table, "figures": [FIGURE], "gains": table, "gains_below": FIGURE.name, "gains_by_group": True},
        "each": ClientsByMethod(table, [MethodView(HOSTILE, HOSTILE, HOSTILE, [[HOSTILE]])] * 2, [HOSTILE], 1),
    }
    text = render_page(
        "comparison.html",
        HOSTILE,
        HOSTILE,
        [FIGURE],
        finding=HOSTILE,
        notes=[HOSTILE],
        reading=HOSTILE,
        overview=table,
        tuning=table,
        measure=HOSTILE,
        settings=[setting, setting],
        table_note=HOSTILE,
        comparison=HOSTILE,
        seeds=HOSTILE,
        environment=table,
        published=Published([FIGURE], [(HOSTILE, table)]),
    )
    _assert_no_foreign_element(text, 77, 5)  # the texts of a choice wait in a script


def _assert_no_foreign_element(text: str, shown: int, scripts: int = 3) -> None:
    """Nothing hostile becomes an element or runs as a template: it is text, and all of it is there."""
    reader = Reader(text)
    assert HOSTILE not in text
    assert sum(tag == "script" for tag, _ in reader.elements) == scripts
    pictures = [attributes["src"] for tag, attributes in reader.elements if tag == "img"]
    assert set(pictures) <= {HOSTILE}
    assert not any("onerror" in attributes for _, attributes in reader.elements)
    assert reader.text.count(HOSTILE) == shown
    assert "49" not in reader.text.replace(HOSTILE, "")


def test_every_text_of_a_document_is_escaped() -> None:
    table = Table(["a"], [[HOSTILE]])
    left = {"missing": HOSTILE, "command": "x"}
    text = render_document(
        "reproduction.md",
        headlines=table,
        papers=table,
        items=table,
        stale=0,
        results=1,
        versions=HOSTILE,
        alone=False,
        sections=[
            (
                HOSTILE,
                [
                    {
                        **{"id": "a-table1", "heading": HOSTILE, "says": HOSTILE, "command": "x"},
                        "runs": [{"scale": "small", "what": HOSTILE, "stale": True, "changed": HOSTILE, **left}],
                        "claims": table,
                        "remarks": [([("1", HOSTILE)], HOSTILE)],
                        "unjudged": 0,
                        "findings": [("small", HOSTILE)],
                        "tables": [(HOSTILE, table), (HOSTILE, table)],
                        "left_out": 0,
                    }
                ],
            )
        ],
    )
    assert HOSTILE not in text
    assert "<script" not in text.replace("\\<script", "")
    assert text.count(escape_markdown(HOSTILE)) == 4 + 1 + 2 + 3 + 1 + 2 + 1 + 1 + 2
