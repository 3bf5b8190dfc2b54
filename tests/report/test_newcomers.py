from pathlib import Path

import polars as pl
import pytest

from coterie.report import run_page
from coterie.report.charts import charts_of
from coterie.report.charts.newcomers import draw_newcomers
from coterie.runs.folder.reading import Run, read_runs
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import NEWCOMERS

from .drawing import drawn
from .synthesis import synthesise
from .test_page import Reader

Row = tuple[int, str, int | None, int, int, float | None, float | None]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return synthesise(tmp_path, "late", clients=8, groups=2, planted=2, rounds=3, newcomers=5)


def joined_by(folder: RunFolder, *rows: Row) -> Run:
    folder.write_newcomers(pl.DataFrame(rows, NEWCOMERS, orient="row"))
    return read_runs([folder])[0]


@pytest.mark.medium
def test_the_caption_says_how_well_they_do(folder: RunFolder) -> None:
    run = joined_by(
        folder,
        (20, "a", 0, 0, 10, 0.5, 0.75),
        (21, "b", 1, 0, 10, 0.25, None),
        (22, "c", 0, 0, 0, None, None),
        (23, "d", None, 1, 10, 0.75, 0.65),
    )
    figure = draw_newcomers(run)
    mean = run.last["accuracy"].to_numpy().mean()
    assert figure.caption.startswith(
        "4 clients were held out of training. Their mean accuracy is 50.0% on arrival and 70.0% after one local "
        f"update. The mean accuracy of the clients in training is {mean:.1%}. 2 of 3 newcomers (66.7%) went to the "
        "group"
    )
    spans, dots = drawn(figure)
    assert [(s["arrival"], s["adapted"]) for s in spans] == [(0.5, 0.75), (0.75, 0.65)]
    assert [(d["place"], d["name"]) for d in dots if d["moment"] == "on arrival"] == [(1, "b"), (2, "a"), (3, "d")]
    text = Reader(run_page.build(folder).read_text(encoding="utf-8")).text
    assert text.index("Newcomers") < text.index("Accuracy for the bytes sent")


def test_home_is_the_group_of_most_trained_clients(folder: RunFolder) -> None:
    """Planted group 0 is mostly in group 1, whatever the numbers, and newcomers do not vote."""
    run = joined_by(
        folder, *[(i, f"client {i}", i % 2, 0, 9, 0.5, 0.5) for i in range(2)], (20, "x", 0, 1, 9, 0.5, 0.5)
    )
    groups = [0, 0, 1, 1, 1, 0, 1, 0]
    run.__dict__["last"] = run.last.with_columns(group=pl.Series(groups, dtype=pl.Int32))
    assert "1 of 3 newcomers (33.3%)" not in draw_newcomers(run).caption
    assert "2 of 3 newcomers (66.7%) went to the group" in draw_newcomers(run).caption


def test_untested_newcomers_have_no_chart(folder: RunFolder) -> None:
    figure = draw_newcomers(joined_by(folder, (20, "a", None, -1, 0, None, float("nan"))))
    assert figure.chart is None
    assert figure.caption == (
        "1 client was held out of training. The mean accuracy of the clients in training is "
        f"{read_runs([folder])[0].last['accuracy'].to_numpy().mean():.1%}. "
        "No newcomer has test data, so there is nothing to draw."
    )


def test_many_newcomers_are_thinned(folder: RunFolder) -> None:
    run = joined_by(folder, *[(100 + i, f"n{i}", None, i % 2, 9, i / 2000, 0.5) for i in range(2000)])
    figure = draw_newcomers(run)
    assert len(drawn(figure)[0]) <= 251
    assert "Of the 2,000 with test data 251 are drawn, evenly spread." in figure.caption
    assert "went to the group" not in figure.caption


@pytest.mark.medium
def test_no_newcomers_no_section(folder: RunFolder) -> None:
    assert "newcomers" in charts_of(folder)
    folder.write_status("running", 2, 3)
    folder.forget_after(2)
    assert "newcomers" not in charts_of(folder)
