"""What a method logged: the chart that any number has."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from coterie.report import charts, run_page
from coterie.report.charts import draw_run
from coterie.report.charts.log import ABOUT, MOST_PLAIN
from coterie.report.drawing.figure import Figure
from coterie.report.drawing.saving import specification
from coterie.runs.folder.reading import RunResults, read_runs
from coterie.runs.folder.run_folder import RunFolder

from .drawing import charts_of, drawn, logging, story, the
from .stories import Logged, everything
from .synthesis import synthesise
from .test_page import Reader

NAMES = {"hopkins", "objective", "lambda", "log-temperature", "log-drift-norm", "log-trust"}


@pytest.mark.medium
def test_a_page_has_the_figures_of_a_log_after_those_of_every_run(mixed: RunFolder) -> None:
    figures = draw_run(read_runs([mixed])[0])
    names = [figure.name for figure in figures]
    assert set(names[5:]) == NAMES
    assert names[:5] == ["accuracy", "distribution", "groups", "affinity", "map"]
    assert len(names) == len(set(names))
    for figure in figures[5:]:
        assert figure.chart is not None, figure
        assert figure.caption.endswith(".")
    assert "drift / <norm>" in Reader(run_page.build(mixed).read_text("utf-8")).text


@pytest.mark.parametrize("name", ABOUT)
def test_a_name_is_drawn_without_what_stands_beside_it(mixed: RunFolder, name: str) -> None:
    alone = logging(mixed, *[(number, name, "", 1.0) for number in (1, 2)])
    (figure,) = story(alone)
    assert (figure.name, figure.title) == (name.replace(" ", "-"), ABOUT[name].title)
    assert figure.caption.endswith("1 in round 1 to 1 in round 2.")


def test_a_number_has_its_threshold_and_the_rounds_in_which_something_happened(mixed: RunFolder) -> None:
    values = [0.5, 0.7, 0.6, 0.8]
    rows = [(r, "hopkins", "", v) for r, v in enumerate(values, 1)]
    rows += [(r, "fired", "", float(v > 0.65)) for r, v in enumerate(values, 1)]
    figure = the(
        logging(mixed, *rows, (1, "hopkins threshold", "", 0.65), (4, "hopkins threshold", "", 0.65)), "hopkins"
    )
    threshold, line, rules = drawn(figure)
    assert [(r["round"], r["value"]) for r in line] == list(enumerate(values, 1))
    assert [r["value"] for r in threshold] == [0.65, 0.65]
    assert [r["round"] for r in rules] == [2, 4]
    assert re.search(r"0\.5 \D+ 1 \D+ 0\.8 \D+ 4; \D+ 0\.65; \D+ 2 rounds\D+ 2\.$", figure.caption)
    never = [(r, name, "", value) for r in (1, 2) for name, value in (("hopkins", 0.5), ("fired", 0.0))]
    assert the(logging(mixed, *never), "hopkins").caption.endswith("no round.")


def test_more_lines_than_an_eye_can_follow_become_a_band(mixed: RunFolder) -> None:
    rows = [(r, "trust", f"c{i}", float(i * r)) for r in (1, 2) for i in range(13)]
    figure = the(logging(mixed, *rows), "log-trust")
    band, line = drawn(figure)
    assert [(r["low"], r["high"]) for r in band] == [(0, 12), (0, 24)]
    assert [r["value"] for r in line] == [6, 12]
    assert re.search(r" 6 \D+ 1 \D+ 12 \D+ 2; \D+ c12 \D+ 24, \D+ c0 \D+ 0\.$", figure.caption)
    few = the(logging(mixed, *[row for row in rows if row[2] != "c12"]), "log-trust")
    assert len(drawn(few)) == 1
    assert "12 for c6" in few.caption
    assert few.caption.endswith("14 for c7 and 4 more.")


@pytest.mark.medium
def test_long_runs_of_many_clients_stay_light(mixed: RunFolder) -> None:
    rounds = 300
    told = everything(rounds, 60)
    names = [(r, f"own {i}", str(of), float(r)) for r in range(1, rounds + 1) for i in range(30) for of in range(3)]
    run = logging(mixed, *[(r, *entry) for r in range(1, rounds + 1) for entry in told(r)], *names)
    run.__dict__["rounds"] = pl.DataFrame({"round": range(1, rounds + 1)})
    figures = story(run)
    assert len(figures) == 3 + MOST_PLAIN + 1
    assert re.search(r" own 21, .* and own 29\.", figures[-1].caption)
    for figure in figures[:-1]:
        data = drawn(figure)
        assert max(map(len, data)) <= 2600, figure.name
        assert len(json.dumps(data)) < 3e5, figure.name


def test_numbers_that_are_far_apart_have_a_logarithmic_axis(mixed: RunFolder) -> None:
    for least, is_log in ((0.001, True), (0.5, False), (-1.0, False)):
        run = logging(mixed, (1, "cut", "", least), (2, "cut", "", 1.0))
        figure = the(run, "cut")
        assert figure.chart is not None
        assert ('"type": "log"' in json.dumps(specification(figure.chart))) == is_log
        assert ("logarithmic" in figure.caption) == is_log


def test_a_name_of_ones_own_is_drawn_and_stays_text(mixed: RunFolder) -> None:
    names = ["A b", "a/B", "</script>", "é"]
    run = logging(mixed, *[(r, name, "", r * 1.0) for r in (1, 3) for name in names], (1, "once", "", 2.0))
    assert [(f.name, f.title) for f in story(run)] == [
        ("log-a-b", "A b"),
        ("log-a-b-2", "a/B"),
        ("log-script", "</script>"),
        ("log-number", "é"),
    ]


def test_a_number_logged_twice_in_a_round_counts_once(tmp_path: Path) -> None:
    def twice(number: int) -> Logged:
        yield "cut", "", 1.0
        yield "cut", "", 0.5

    folder = synthesise(tmp_path, "twice", clients=3, groups=1, rounds=3, story=twice, picture=False)
    assert read_runs([folder])[0].logged("cut")["value"].to_list() == [0.5] * 3


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"clients": 1, "groups": 1}, {"rounds": 1}, {"rounds": 12, "until": 5}])
def test_one_client_one_round_or_a_run_cut_short(tmp_path: Path, settings: dict[str, int]) -> None:
    clients, rounds = settings.get("clients", 6), settings.get("rounds", 5)
    told = everything(rounds, clients)
    sized = {"clients": clients, "groups": 2, "rounds": rounds} | settings
    folder = synthesise(tmp_path, "small", picture=False, story=told, newcomers=1, **sized)  # type: ignore[arg-type]
    text = Reader(run_page.build(folder).read_text(encoding="utf-8")).text
    assert {"hopkins", "objective", "lambda"} <= set(charts_of(folder))
    assert "nan" not in text.lower().replace("<nan>", "")
    assert "1 rounds" not in text
    # A round that was cut off in the middle of writing is no part of the story either.
    assert folder.log()["round"].max() == settings.get("until", rounds)


@pytest.mark.slow
def test_a_chart_that_cannot_be_drawn_costs_no_other(mixed: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a run that is finished fail for its page: the chart says that it is left out, and why."""

    def overflow(run: RunResults, against: Sequence[RunResults]) -> Figure:
        raise OverflowError("cannot convert float\ninfinity to integer")

    whole = draw_run(read_runs([mixed])[0])
    monkeypatch.setattr(charts, "draw_distribution", overflow)
    found = draw_run(read_runs([mixed])[0])
    assert [figure.name for figure in found] == [figure.name for figure in whole]
    assert found[1].chart is None
    assert "OverflowError: cannot convert float infinity to integer" in found[1].caption
