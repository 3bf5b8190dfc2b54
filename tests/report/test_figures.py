"""`coterie.draw`: the figures of a page by name, and what a notebook shows of each."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.errors import BadInput
from coterie.report.charts import draw_run
from coterie.report.drawing.figure import SQUARE, WIDTH, Figure
from coterie.runs.folder.reading import read_runs
from coterie.runs.folder.run_folder import RunFolder
from coterie.studies.compare.compare import Compared
from coterie.studies.compare.folder import ComparisonFolder
from coterie.studies.compare.spec import Comparison

from .synthesis import synthesise
from .test_diagnosis_page import whole


def show(figure: Figure) -> tuple[dict[str, Any], dict[str, Any]]:
    """What IPython shows of a value, by kind, and how large."""
    shown, how = pytest.importorskip("IPython.core.formatters").DisplayFormatter().format(figure)
    return shown, how


def test_a_run_is_drawn_as_on_its_page(clustered: RunFolder, together: RunFolder) -> None:
    figures = coterie.draw(clustered, against=[together])
    run, *others = read_runs([clustered, together])
    page = draw_run(run, others)
    assert list(figures) == [figure.name for figure in page]
    assert [figure.caption for figure in figures.values()] == [figure.caption for figure in page]
    assert together.name in str(figures["accuracy"].chart.to_dict())  # type: ignore[union-attr]  # it has one
    assert "'accuracy'" in repr(figures["accuracy"])


@pytest.mark.slow
def test_charts_are_as_their_language_has_it(mixed: RunFolder) -> None:
    """Altair's own check, which is off where pages are made."""
    for figure in draw_run(read_runs([mixed])[0]):
        if figure.chart is not None:
            figure.chart.to_dict(validate=True)


def test_a_diagnosis_is_drawn_as_on_its_page() -> None:
    assert list(coterie.draw(whole())) == ["distances", "options", "gains"]
    assert list(coterie.draw(whole(pay=None))) == ["distances"]


@pytest.mark.medium
@pytest.mark.parametrize(("name", "width"), [("accuracy", WIDTH), ("affinity", SQUARE)])
def test_a_notebook_shows_a_picture_with_its_caption(clustered: RunFolder, name: str, width: int) -> None:
    figure = coterie.draw(clustered)[name]
    shown, how = show(figure)
    png = shown["image/png"]
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert shown["text/plain"] == f"{figure.title}\n\n{figure.caption}"
    size = how["image/png"]
    assert struct.unpack(">II", png[16:24]) == (2 * size["width"], 2 * size["height"])
    assert width < size["width"] < 1.35 * width, "the caption is no wider than the chart"
    without = show(replace(figure, caption=""))[1]["image/png"]
    assert size["height"] > without["height"] + 20, "the caption takes room of its own"


def test_a_notebook_shows_why_there_is_no_chart(together: RunFolder) -> None:
    shown, how = show(coterie.draw(together)["groups"])
    assert list(shown) == ["text/plain"]
    assert coterie.draw(together)["groups"].caption in shown["text/plain"]
    assert how == {}


def test_a_run_without_a_round_is_drawn(tmp_path: Path) -> None:
    assert coterie.draw(synthesise(tmp_path, "new", rounds=0))["accuracy"].caption


def test_what_cannot_be_drawn_is_refused(clustered: RunFolder, tmp_path: Path) -> None:
    comparison = Comparison.from_tables({"name": "mine", "methods": ["fedavg", "fesem"]}, "digits")
    begun = Compared(comparison, ComparisonFolder(tmp_path / "mine"), {}, None, None, "interrupted")
    with pytest.raises(BadInput, match=r"'.*mine'.*finished"):
        coterie.draw(begun)
    with pytest.raises(BadInput, match=r"against .*left out"):
        coterie.draw(begun, against=[clustered])
    with pytest.raises(BadInput, match=r"'runs/first'.*coterie\.run"):
        coterie.draw("runs/first")  # type: ignore[arg-type]  # what a reader may try
