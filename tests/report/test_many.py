"""Thousands of clients and of groups do not become thousands of marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.report.charts import draw_run
from coterie.report.charts.groups import MOST_CLIENTS
from coterie.report.drawing.figure import Figure
from coterie.report.run_page import MOST_GROUPS, build
from coterie.runs.folder.reading import read_runs

from .synthesis import synthesise


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "groups"), [(MOST_CLIENTS + 1, 4), (MOST_CLIENTS + 1, MOST_CLIENTS + 1)])
def test_a_page_of_many_clients_stays_small(tmp_path: Path, clients: int, groups: int) -> None:
    folder = synthesise(tmp_path, "many", clients=clients, groups=groups, rounds=2, picture=False, failing=False)
    (run,) = read_runs([folder])
    history = next(figure for figure in draw_run(run) if figure.name == "groups")
    bars = _bars(history)
    assert len({bar["client"] for bar in bars}) == clients // 2 + 1
    assert "One client in 2 is drawn" in history.caption
    for number in (1, 2):  # the bars of a round still fill the height, without a gap
        ends = sorted((bar["position"], bar["bottom"]) for bar in bars if bar["start"] <= number <= bar["until"])
        assert [ends[0][0], *(bottom for _, bottom in ends)] == [*(top for top, _ in ends), clients]
    page = build(folder)
    assert page.stat().st_size < 4e6
    text = page.read_text("utf-8")
    assert (f"and {groups - MOST_GROUPS:,} more groups" in text) == (groups > MOST_GROUPS)
    assert text.count("<dt>Group ") == min(groups, MOST_GROUPS)


def test_few_clients_are_all_drawn(tmp_path: Path) -> None:
    (run,) = read_runs([synthesise(tmp_path, "few", clients=50, rounds=2, picture=False)])
    history = next(figure for figure in draw_run(run) if figure.name == "groups")
    assert len({bar["client"] for bar in _bars(history)}) == 50
    assert "is drawn" not in history.caption


def _bars(figure: Figure) -> list[dict[str, Any]]:
    assert figure.chart is not None
    drawn = figure.chart.to_dict()
    found: list[dict[str, Any]] = drawn["datasets"][drawn["data"]["name"]]
    return found
