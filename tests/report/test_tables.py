"""One table, written four times."""

from __future__ import annotations

import re
from importlib.resources import files
from io import StringIO

import pytest
from rich.console import Console

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


def test_a_page_escapes_all_but_what_it_is_made_of() -> None:
    """Jinja escapes whatever a template does not call safe; that is never what somebody else has written."""
    safe = {
        (path.name, line.strip())
        for path in files("coterie.report").joinpath("templates").iterdir()
        if path.name.endswith((".html", ".md"))
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"\|\s*safe\b|autoescape", line)
    }
    page = ['{{ file("page.css") | safe }}', '{{ file("notices.txt") | safe }}*/', '{{ file("page.js") | safe }}']
    made = {("page.html", line) for line in [*page, "{{ vega() | safe }}</script>"]}
    # The name of an item is that of its file.
    assert safe == made | {("reproduction.md", "### {{ item.id | safe }}"), ("result.md", "# {{ item.id | safe }}")}
