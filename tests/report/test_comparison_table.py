"""The summary as people read it: on a terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from coterie.report.comparison.table import note, to_latex, to_markdown, to_rich
from coterie.studies.compare.measures import CELLS
from coterie.studies.compare.spec import Comparison
from coterie.studies.compare.table import summarise
from tests.studies.compare.by_hand import comparison, frames

METHODS = {
    "fedavg": {"method": {"name": "fedavg"}},
    "FeSEM_4 & 50 %": {"method": {"name": "fesem", "clusters": 4}},
    "[λ|#1] {~^}": {"method": {"name": "fedprox"}},
}
"""Labels with everything that means something to Markdown or to LaTeX."""

AVERAGE, FESEM, ODD = METHODS
ACCURACY = {AVERAGE: [0.5, 0.6, 0.7], FESEM: [0.6, 0.65, 0.8], ODD: [0.4, None, 0.5]}


def plan(**more: Any) -> Comparison:
    return Comparison.from_tables({"methods": METHODS, "seeds": 3, "name": "three", "adapted": {}, **more})


def told(plan: Comparison, values: Any = ACCURACY, **columns: Any) -> pl.DataFrame:
    """The summary of cells that send 12.5 MB up and 2,500 MB down; FeSEM reaches the target in seeds 0 and 2."""
    names = [variant.name for variant in plan.methods]
    given = {
        "up_bytes": dict.fromkeys(names, [12_500_000] * 3),
        "down_bytes": dict.fromkeys(names, [2_500_000_000] * 3),
        "worst10": dict.fromkeys(names, [0.25] * 3),
        "ari": {name: [None] * 3 if name == AVERAGE else [0.5] * 3 for name in names},
        "groups": {name: [4, 4, 5] for name in names},
        "rounds_to_target": {AVERAGE: [9, 10, 11], FESEM: [3, None, 6], ODD: [None] * 3},
        "bytes_to_target": {AVERAGE: [10**6] * 3, FESEM: [2 * 10**6, None, 10**6], ODD: [None] * 3},
        "passes": {AVERAGE: [20.0] * 3, FESEM: [39.0] * 3, ODD: [20.0] * 3},
        "passes_to_target": {AVERAGE: [9.0, 10.0, 11.0], FESEM: [22.0, None, 25.0], ODD: [None] * 3},
        **columns,
    }
    return summarise(plan, frames(plan, values, **given))


def printed(found: pl.DataFrame, width: int) -> str:
    where = Console(width=width, file=StringIO(), color_system=None)
    where.print(to_rich(found, width))
    assert isinstance(where.file, StringIO)
    return where.file.getvalue()


def markdown_rows(text: str) -> list[list[str]]:
    """The cells of every table, without their escapes."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in row] for row in cells]


def test_a_row_by_hand() -> None:
    head, _, average, fesem, odd = markdown_rows(to_markdown(told(plan()), plan()))
    assert head == [
        *("method", "seeds", "accuracy, %", "difference", "wins", "rank", "worst 10 %", "ARI", "groups"),
        *("local passes", "MB up", "MB down", "rounds to target", "MB to target", "passes to target"),
    ]
    assert average == [
        *(AVERAGE, "3 of 3", "60.00 ± 10.00", "baseline", "–", "2.0"),
        *("25.00", "–", "4.33", "20", "12.5", "2,500", "10", "1", "10"),
    ]
    # Differences 10, 5 and 10: mean 8.33, standard deviation 2.89, times 4.303 / √3.
    assert fesem == [
        *(FESEM, "3 of 3", "**68.33 ± 10.41**", "+8.33 [1.16, 15.50]", "3 of 3", "1.0"),
        *("25.00", "0.50", "4.33", "39", "12.5", "2,500", "4.5 (2 of 3)", "1.5", "23.5"),
    ]
    # Differences -10 and -20: mean -15, standard deviation 7.07, times 12.706 / √2.
    assert odd == [
        *(ODD, "2 of 3", "45.00 ± 7.07", "−15.00 [−78.53, 48.53]", "0 of 2", "3.0"),
        *("25.00", "0.50", "4.5", "20", "12.5", "2,500", "never", "–", "–"),
    ]


def test_a_row_says_in_how_many_runs_training_diverged() -> None:
    found = told(plan(), diverged={AVERAGE: [True] * 3, FESEM: [False, True, False], ODD: [False] * 3})
    average, fesem, odd = (row[0] for row in markdown_rows(to_markdown(found, plan()))[2:])
    assert average.startswith(AVERAGE)
    assert average != AVERAGE
    assert "1 of 3" in fesem.removeprefix(FESEM)
    assert odd == ODD


def test_a_column_that_says_nothing_is_left_out() -> None:
    values = {**ACCURACY, ODD: [0.4, 0.5, 0.5]}
    found = told(plan(), values, ari=dict.fromkeys(METHODS, [None] * 3))
    head = markdown_rows(to_markdown(found, plan()))[0]
    assert "ARI" not in head
    assert "seeds" not in head
    assert "groups" in head


def test_markdown_has_a_table_a_setting() -> None:
    settings = {"β = 0.2 | *": {"data": {"split": "dirichlet(0.2)"}}, "IID": {"data": {"split": "iid"}}}
    both = plan(settings=settings)
    text = to_markdown(told(both, dict.fromkeys(settings, ACCURACY)), both)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# three",
        "## β = 0.2 \\| \\*",
        "## IID",
    ]
    rows = markdown_rows(text)
    assert len(rows) == 2 * (2 + 3)
    assert {len(row) for row in rows} == {15}
    assert "| +8.33 [1.16, 15.50] |" in text
    assert r"| FeSEM\_4 \& 50 % |" in text
    assert text.endswith(".\n")


def test_latex_holds_no_bare_sign() -> None:
    settings = {"β = 0.2 & 100 %": {"data": {"split": "dirichlet(0.2)"}}, "IID": {"data": {"split": "iid"}}}
    both = plan(settings=settings)
    text = to_latex(told(both, dict.fromkeys(settings, ACCURACY)), both)
    first, *lines = text.splitlines()
    assert first.startswith(r"% \usepackage{booktabs}")
    body = "\n".join(lines)
    assert body.isascii()
    assert not re.search(r"(?<!\\)[%#$_^~]", body)
    assert len(re.findall(r"(?<!\\){", body)) == len(re.findall(r"(?<!\\)}", body))
    rows = [line for line in lines if line.endswith(r"\\")]
    assert len(rows) == 2 * (1 + 3)
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {14}
    assert body.count(r"\begin{tabular}{lrrrrrrrrrrrrrr}") == 2
    assert r"\caption{three: \ensuremath{\beta} = 0.2 \& 100 \%}" in body
    assert (
        r"    FeSEM\_4 \& 50 \% & 3 of 3 & \textbf{68.33 \ensuremath{\pm} 10.41} & +8.33 {[}1.16, 15.50{]} &"
        in body
    )
    assert (
        r"    {[}\ensuremath{\lambda}\ensuremath{|}\#1{]} \{\textasciitilde{}\textasciicircum{}\} & 2 of 3" in body
    )
    assert r"\ensuremath{-}15.00 {[}\ensuremath{-}78.53, 48.53{]}" in body
    assert body.count(r"\textbf{") == 2


@pytest.mark.parametrize("width", [50, 80, 120, 200])
def test_a_narrow_terminal_loses_columns_and_no_number(width: int) -> None:
    found = told(plan())
    text = printed(found, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for always in ("fedavg", ODD, "2 of 3", "60.00 ± 10.00", "68.33 ± 10.41", "45.00 ± 7.07"):
        assert always in text
    assert ("+8.33 [1.16, 15.50]" in text) == (width >= 80)
    # The line below says what is shown, and names what is not.
    head = next(line for line in text.splitlines() if "method" in line)
    flat = " ".join(text.split())
    assert ("MB down" in head) == (width == 200)
    assert ("MB down" in flat.partition("table.md")[2]) == (width < 200)
    assert ("Student's t" in flat) == (width >= 80)
    assert ("Target:" in flat) == ("to target" in text.partition("Accuracy:")[0])


def test_the_settings_have_the_same_columns() -> None:
    long = {"short": {"data": {"split": "iid"}}, "long": {"data": {"split": "dirichlet(0.2)"}}}
    both = plan(settings=long)
    wide = {AVERAGE: [0.5, 0.6, 0.7], FESEM: [0.6, 0.65, 0.8], ODD: [0.45, 0.5, 0.6]}
    found = told(both, {"short": wide, "long": {**wide, ODD: [None] * 3}})
    for width in range(60, 180, 24):
        heads = [line for line in printed(found, width).splitlines() if "method" in line and "┃" in line]
        assert len(heads) == 2
        assert len({tuple(re.split(r"\s*┃\s*", head)) for head in heads}) == 1


def test_markup_in_a_label_is_text() -> None:
    methods = {"[red]x[/red][/b]": {"method": {"name": "fedavg"}}}
    odd = Comparison.from_tables({"methods": methods, "seeds": 1, "settings": {"[b]s": {"run": {"rounds": 2}}}})
    found = summarise(odd, frames(odd, {"[b]s": {"[red]x[/red][/b]": [0.5]}}))
    assert "[red]x[/red][/b]" in printed(found, 100)
    assert "[b]s" in printed(found, 100)


def test_the_best_is_bold_on_a_terminal() -> None:
    where = Console(width=200, file=StringIO(), force_terminal=True, color_system="standard")
    where.print(to_rich(told(plan()), 200))
    assert isinstance(where.file, StringIO)
    body = [line for line in where.file.getvalue().splitlines() if line.startswith("│")]
    assert [re.findall("\x1b\\[1m *([^\x1b]*)\x1b", line) for line in body] == [[], ["68.33 ± 10.41"], []]


def test_what_the_line_says() -> None:
    said = note(told(plan()))
    for part in ("Accuracy: ", "per cent", " ± ", "3 seeds", "to fedavg", "95 %", "Student", "Target: fedavg"):
        assert part in said
    assert "\n" not in said
    assert "Target: 80.00 %" in note(told(plan(target=0.8)))
    assert "Rank" not in note(told(plan()), ["measure"])


def test_one_seed_claims_no_deviation_and_no_interval() -> None:
    one = comparison(["fedavg", "ifca"], seeds=1)
    found = summarise(one, frames(one, {"fedavg": [0.5], "ifca": [0.25]}))
    rows = markdown_rows(to_markdown(found, one))
    assert [row[1:4] for row in rows[2:]] == [["**50.00**", "baseline", "–"], ["25.00", "−25.00", "0 of 1"]]
    said = note(found)
    assert "one seed" in said
    assert "±" not in said
    assert "Student" not in said


@pytest.mark.parametrize(
    ("measure", "title", "average"),
    [
        ("loss", "loss", "0.600 ± 0.100"),
        ("worst10", "worst 10 %", "60.00 ± 10.00"),
        ("macro_f1", "F1, %", "60.00 ± 10.00"),
        ("accuracy", "accuracy over", "60.00 ± 10.00"),
    ],
)
def test_other_measures(measure: str, title: str, average: str) -> None:
    of = plan(measure=measure)
    rows = [variant.name for variant in of.methods]
    ways: Any = {"rounds_to_target": {name: [1, 2, 3] for name in rows}}
    text = to_markdown(summarise(of, frames(of, ACCURACY, **ways)), of)
    head, _, first, *_ = markdown_rows(text)
    assert head[2].startswith(title)
    assert first[2] == average
    assert head.count("worst 10 %") == 1
    assert "per cent" in text if measure != "loss" else "per cent" not in text
    assert ("**0.450 ± 0.071**" in text) == (measure == "loss")  # the least is the best


def test_a_comparison_that_has_not_begun() -> None:
    nothing = pl.DataFrame(schema=CELLS)
    found = summarise(plan(), type(frames(plan(), {}))(nothing, nothing, nothing))
    assert markdown_rows(to_markdown(found, plan()))[2:] == [[name, "0 of 3", "–"] for name in METHODS]
    assert "0 of 3" in printed(found, 80)
    assert "0 of 3" in to_latex(found, plan())


def test_methods_before_and_after_adaptation_stand_side_by_side() -> None:
    both = plan(adapted={"fedavg+FT": AVERAGE})
    after: dict[str, Any] = {
        AVERAGE: [0.7, 0.7, 0.7],
        FESEM: [0.75, 0.7, 0.8],
        ODD: [0.6, 0.6, 0.6],
        "fedavg+FT": [None] * 3,
    }
    found = summarise(both, frames(both, {**ACCURACY, "fedavg+FT": after[AVERAGE]}, adapted_macro_accuracy=after))
    text = to_markdown(found, both)
    head, _, average, adapted, fesem, _ = markdown_rows(text)
    before, later = (i for i, name in enumerate(head) if "adaptation" in name)
    assert later == before + 1
    assert (average[before], average[later]) == ("60.00 ± 10.00", "70.00 ± 0.00")
    assert (adapted[before], adapted[later]) == ("–", "70.00 ± 0.00")  # no number stands under another's name
    assert (fesem[before], fesem[later]) == ("**68.33 ± 10.41**", "**75.00 ± 5.00**")
    # Where FedAvg alone adapts, for its own row, there is no second column.
    alone = {**after, FESEM: [None] * 3, ODD: [None] * 3}
    found = summarise(both, frames(both, {**ACCURACY, "fedavg+FT": after[AVERAGE]}, adapted_macro_accuracy=alone))
    assert "accuracy, %" in markdown_rows(to_markdown(found, both))[0]
