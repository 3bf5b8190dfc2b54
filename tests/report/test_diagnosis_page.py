"""The page of a diagnosis: it holds every answer, whatever names clients have, and loads nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import altair as alt
import numpy as np
import pytest

from coterie.advice.diagnose.advice import Suggestion
from coterie.advice.diagnose.diagnosis import Diagnosis
from coterie.advice.diagnose.pay import Pay, weigh
from coterie.advice.diagnose.signals import Signal
from coterie.grouping.halves import PairingTest
from coterie.report.diagnosis_page import MOST_BARS, draw_distances, draw_gains, draw_options, make_page
from tests.advice.diagnose.test_diagnose import some
from tests.advice.diagnose.test_pay import moments

from .test_page import assert_loads_nothing

SUGGESTED = (Suggestion("halves", {"method.alpha": 0.05}, "finds <these> groups", 12.3, 4_000_000, 2_000_000),)


def pay(clients: int = 5) -> Pay:
    scores = [[0.5, 0.5, 0.5, 0.4, 0.9 - 0.01 * (i % 20), 0.8] for i in range(clients)]
    names = np.array([*"abcde", *(f"c{i}" for i in range(clients))][:clients], dtype=object)
    found = weigh(moments(scores), "accuracy", names, np.arange(clients) % 3)
    assert found is not None
    return found


def whole(**changes: object) -> Diagnosis:
    apart = np.round(1 - np.eye(5), 1).tolist()
    changed = some(pay=pay(), distances=tuple(tuple(row) for row in apart), notes=("a note.",))
    return replace(changed, **changes)  # type: ignore[arg-type]  # they are its fields


def data_of(chart: Any) -> list[dict[str, Any]]:
    """The rows that a chart draws."""
    rows: list[dict[str, Any]] = chart.data.to_dict()["values"]
    return rows


def layer_of(chart: Any, number: int) -> list[dict[str, Any]]:
    """The rows of one layer, or of the whole where the layers share them."""
    layer = chart.layer[number]
    return data_of(chart if layer.data is alt.Undefined else layer)


def page_of(diagnosis: Diagnosis) -> str:
    return make_page(diagnosis, SUGGESTED, "digits", '[data]\nname = "digits"')


def test_every_answer_is_on_the_page() -> None:
    page = page_of(whole())
    assert_loads_nothing(page)
    assert "Yes (p &lt; 0.002)" in page
    assert "</b> 5 clients" in page
    for word in ("&lt;these&gt;", "12 s", "6.00 MB", "method.alpha = 0.05"):
        assert word in page
    assert 'id="chart-gains"' in page
    assert 'id="chart-options"' in page
    assert 'id="chart-distances"' in page
    assert "[data]\nname = &#34;digits&#34;" in page
    assert "A note." in page


def test_where_nothing_was_learnt_no_groups_are_shown() -> None:
    one = whole(pay=None)
    unlearnt = replace(one, unlearnt="nothing was learnt", structure=replace(one.structure, p=0.9))
    for page, shown in ((page_of(one), True), (page_of(unlearnt), False)):
        assert ("The groups" in page) == ("chart-distances" in page) == ("The clients" in page) == shown


def test_names_of_clients_are_text() -> None:
    hostile = "<script>alert(1)</script>"
    one = whole()
    member = replace(one.memberships[0], client=hostile)
    page = page_of(replace(one, memberships=(member, *one.memberships[1:]), turned_round=(hostile,)))
    assert "<script>alert" not in page
    assert_loads_nothing(page)


def test_without_gains_groups_or_distances_it_says_less() -> None:
    page = page_of(whole(pay=None, distances=(), all_differ=True))
    assert_loads_nothing(page)
    assert 'id="chart-' not in page
    assert "<h2>The groups</h2>" not in page


def test_charts_show_clients_by_group_and_by_gain() -> None:
    found = draw_distances(whole()).chart
    assert found is not None
    rows = data_of(found)
    assert len(rows) == 25
    assert [row["row"] for row in rows[::5]] == list("abcde")
    gains = draw_gains(pay()).chart
    assert gains is not None
    drawn = layer_of(gains, 1)
    assert [row["gain"] for row in drawn] == pytest.approx([40, 39, 38, 37, 36])
    options = draw_options(pay()).chart
    assert options is not None
    assert [row["chosen"] for row in layer_of(options, 0)].count("chosen") == 1


def test_of_many_clients_those_at_both_ends_are_drawn() -> None:
    figure = draw_gains(pay(100))
    assert figure.chart is not None
    assert len(layer_of(figure.chart, 1)) == MOST_BARS
    assert "40 clients" in figure.caption


def test_all_signals_are_in_one_table() -> None:
    page = page_of(whole(signals=(Signal("losses", 5, 30, PairingTest(0.3, 0.41, 0.42)),)))
    assert page.index("directions") < page.index("losses")
    assert "p = 0.3" in page
