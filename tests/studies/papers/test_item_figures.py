"""The page of a reproduced item shows what its paper draws, from the runs, and its claims and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.report.reproduction.figures import draw_item
from coterie.studies.compare.folder import find_finished
from coterie.studies.papers import item as items
from coterie.studies.papers import result
from coterie.studies.papers.item import Drawing, list_items, load_item
from tests.commandline import Terminal

from .test_reproduce_command import coterie as coterie

ITEM = """\
paper = "A Paper"
place = "Figure 1"
title = "Gaps"
says = "Layers differ"
seeds = 2
measure = "accuracy"
shows = ["accuracy", "gap"]
draws = ["log", "pairs", "matrix", "map"]
[experiment]
data = { name = "digits", split = "label-groups(2, 0.8)", clients = 4 }
network = { name = "mlp", hidden = [8] }
run.rounds = 3
[methods.all.method]
name = "layercfl"
layers = "all"
t_min = 1
log_gaps = "every"
[quantities.gap]
log = "gap1"
of = "fc*"
at = "last"
[quantities.correlation]
correlation = "label-kl"
[published.accuracy]
all = 81.5
[[claims]]
text = "It learns"
where = "section 1"
holds = "accuracy['all'] > 1"
[scales.small]
reduces = "nothing"
"""


def data_of(chart: Any) -> list[dict[str, Any]]:
    """The rows that a chart draws, those of several layers once."""
    found = chart.to_dict()
    values = [layer.get("data", {}).get("values", []) for layer in (found, *found.get("layer", []))]
    return [row for rows in (*values, *found.get("datasets", {}).values()) for row in rows]


@pytest.mark.slow
def test_every_kind_of_drawing_is_of_the_runs(coterie: Terminal, tmp_path: Path) -> None:
    for path in (tmp_path / "papers").iterdir():
        path.unlink()
    (tmp_path / "papers/a-fig1.toml").write_text(ITEM, "utf-8")
    done = coterie("reproduce", "a-fig1", "--scale", "small", "--jobs", "1", "--quiet")
    assert done.code == 0, done.err
    item = items.load_item("a-fig1")
    comparison, found = item.comparison("small"), result.read(tmp_path / "reproductions/a-fig1-small/result.json")
    runs = find_finished(comparison.cells(), tmp_path / "reproductions/cells")
    figures = {figure.name: figure for figure in draw_item(item, found, comparison, runs)}
    assert {*figures} == {"log-gap1", "pairs-1", "matrix-1", "map-1"}
    # Each pair of four clients, of both seeds.
    assert len(data_of(figures["pairs-1"].chart)) == 2 * 6
    assert {row["round"] for row in data_of(figures["log-gap1"].chart)} <= {1, 2, 3}
    # The page has them all, with the claims and the numbers.
    page = (tmp_path / "reproductions/a-fig1-small/report.html").read_text("utf-8")
    assert all(f'id="chart-{name}"' in page for name in figures)
    assert "<h2>The paper&#39;s claims</h2>" in page
    assert "81.5" in page
    assert "**" not in page.split("The paper&#39;s claims</h2>")[1].split("</table>")[0]


@pytest.mark.parametrize("name", list_items())
def test_an_item_draws_what_its_quantities_have(name: str) -> None:
    item = load_item(name)
    needs: dict[Drawing, bool] = {
        "log": any(quantity.log is not None for quantity in item.own_quantities.values()),
        "pairs": any(quantity.correlation is not None for quantity in item.own_quantities.values()),
    }
    assert all(needs.get(kind, True) for kind in item.draws)
