"""A table as one value, and how it is written on a page, in Markdown, in LaTeX and on a terminal.

Pages render a table with the macro of `templates/macros.html`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

SIGNS = (
    "α alpha β beta γ gamma δ delta ε varepsilon ζ zeta η eta θ theta ι iota κ kappa λ lambda μ mu ν nu ξ xi π pi "
    "ρ rho ς varsigma σ sigma τ tau υ upsilon φ varphi χ chi ψ psi ω omega ϑ vartheta ϕ phi ϵ epsilon Γ Gamma "
    "Δ Delta Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma Υ Upsilon Φ Phi Ψ Psi Ω Omega µ mu ± pm × times · cdot ≤ leq ≥ geq "
    "≠ neq ≈ approx → rightarrow ∞ infty ∈ in"
)
"""Characters that LaTeX sets in mathematics alone, each with its command."""

LATEX = {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"},
    **{mark: rf"\{mark}" for mark in "&%$#_{}"},
    # A row that begins with one of these would be read as an option of the line break before it.
    **{mark: f"{{{mark}}}" for mark in "[]*"},
    **{mark: rf"\ensuremath{{{mark}}}" for mark in "<>|"},
    **dict(zip(SIGNS.split()[::2], (rf"\ensuremath{{\{name}}}" for name in SIGNS.split()[1::2]), strict=True)),
    "−": r"\ensuremath{-}",
}
"""What stands in LaTeX for a character that means something there or that its standard fonts lack."""

MARKDOWN = {mark: f"\\{mark}" for mark in "\\`*_[]<>|~$#&"}
"""What stands in Markdown for a character that means something there."""


class Markdown(str):
    """Text that is Markdown already, so that nothing escapes it again."""

    def __html__(self) -> str:
        """Tell a template that the text is safe as it is."""
        return self


@dataclass(frozen=True)
class Table:
    """A header and rows of cells. A cell is plain text; only in Markdown it may be `Markdown`."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    """How many columns, from the left, hold text. The others hold numbers, which stand to the right."""
    strong: Collection[tuple[int, int]] = ()
    """The cells in bold, as (row, column)."""

    def __bool__(self) -> bool:
        """Say whether there is a row."""
        return bool(self.rows)

    def without(self, title: str) -> Table:
        """Return the table without the column of that title; all of it where there is none."""
        if title not in self.header:
            return self
        gone = self.header.index(title)
        cut = [[text for i, text in enumerate(row) if i != gone] for row in (self.header, *self.rows)]
        strong = {(row, column - (column > gone)) for row, column in self.strong if column != gone}
        return replace(self, header=cut[0], rows=cut[1:], texts=self.texts - (gone < self.texts), strong=strong)


def capitalise(table: Table) -> Table:
    """Return the table with a capital at the beginning of each title."""
    return replace(table, header=[title[:1].upper() + title[1:] for title in table.header])


def to_markdown(table: Table) -> Markdown:
    """Write the table in Markdown; texts are escaped, titles and numbers stand as they are."""
    rule = [":---" if column < table.texts else "---:" for column in range(len(table.header))]
    rows = [
        [text if column >= table.texts else escape_markdown(text) for column, text in enumerate(row)]
        for row in table.rows
    ]
    shown = list(_with_strong(table, rows, "**{}**"))
    return Markdown("\n".join(f"| {' | '.join(row)} |" for row in (table.header, rule, *shown)))


def to_latex(table: Table, caption: str, note: str) -> str:
    """Write the table as a LaTeX float with a caption above and a note below; it needs the package `booktabs`."""
    rows = [[escape_latex(text) for text in row] for row in table.rows]
    lines = [
        r"\begin{table}",
        r"  \centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"  \caption{{{escape_latex(caption)}}}",
        rf"  \begin{{tabular}}{{{'l' * table.texts}{'r' * (len(table.header) - table.texts)}}}",
        r"    \toprule",
        rf"    {' & '.join(map(escape_latex, table.header))} \\",
        r"    \midrule",
        *(rf"    {' & '.join(row)} \\" for row in _with_strong(table, rows, r"\textbf{{{}}}")),
        r"    \bottomrule",
        r"  \end{tabular}",
        rf"  \par\smallskip\parbox{{\linewidth}}{{{escape_latex(note)}}}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def to_rich(table: Table) -> RichTable:
    """Lay the table out for a terminal. A long text goes on in the next line; a number is never broken."""
    drawn = RichTable()
    for column, title in enumerate(table.header):
        text = column < table.texts
        drawn.add_column(title, justify="left" if text else "right", no_wrap=not text, overflow="fold")
    for number, row in enumerate(table.rows):
        drawn.add_row(*(Text(cell, style=_style(table, number, column)) for column, cell in enumerate(row)))
    return drawn


def fit(table: Table, least: Sequence[str], width: int | None) -> Table:
    """Drop columns, in the order of the titles in `least`, until the table is at most `width` characters wide."""
    for title in dict.fromkeys(least):
        if width is None or Console(width=10_000).measure(to_rich(table)).maximum <= width:
            break
        table = table.without(title)
    return table


def escape_markdown(text: str) -> Markdown:
    """Return the text on one line, with what means something in Markdown escaped; `Markdown` stays as it is."""
    return text if isinstance(text, Markdown) else Markdown(_replace(text, MARKDOWN))


def escape_latex(text: str) -> str:
    """Return the text on one line, with what means something in LaTeX or is missing there replaced."""
    return _replace(text, LATEX)


def flatten(values: Mapping[str, Any], joint: str = " · ", before: str = "") -> Iterator[tuple[str, str]]:
    """Turn nested values into rows of a table: the keys joined, and the value as text."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, joint, f"{before}{key}{joint}")
        else:
            yield f"{before}{key}", "; ".join(map(str, value)) if isinstance(value, list) else str(value)


def _replace(text: str, marks: Mapping[str, str]) -> str:
    return "".join(marks.get(character, character) for character in " ".join(text.split()))


def _style(table: Table, row: int, column: int) -> str:
    return "bold" if (row, column) in table.strong else ""


def _with_strong(table: Table, rows: Sequence[Sequence[str]], bold: str) -> Iterator[list[str]]:
    for number, row in enumerate(rows):
        yield [bold.format(text) if _style(table, number, column) else text for column, text in enumerate(row)]
