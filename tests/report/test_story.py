import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
import vl_convert

from coterie.report import charts, run_page
from coterie.report.charts import charts_of, draw_run
from coterie.report.charts.other_log import MOST_PLAIN
from coterie.report.charts.registry import LOG_CHARTS, RUN_CHARTS, Chapter, LogChart, RunChart
from coterie.report.drawing.figure import MOST_POINTS, Figure
from coterie.report.drawing.marks import decades, thin_rounds
from coterie.report.drawing.saving import language_version, specification
from coterie.report.numbers import join_words, significant
from coterie.runs.folder.reading import Run, read_runs
from coterie.runs.folder.run_folder import RunFolder

from . import stories
from .drawing import drawn, logging, story, the
from .stories import all_stories
from .synthesis import synthesise
from .test_page import CHROMIUM, Reader, browse

FIGURES = {
    "fedtsdp": {"hopkins", "js", "shared-tensors"},
    "fesem": {"objective", "margin"},
    "fedcps": {"lambda", "tau2", "identity-changes"},
    "layercfl": {"gap1", "gap2", "silhouette", "tree", "update-norm"},
    "dcpfl": {"loss", "radius", "trial", "cut", "dendrogram", "period"},
    "written_by_a_user": {"log-temperature", "log-drift-norm", "log-trust"},
}


@pytest.mark.medium
@pytest.mark.parametrize("method", FIGURES)
def test_each_log_gets_its_own_figures_and_no_other(tmp_path: Path, method: str) -> None:
    told = {
        "fedtsdp": stories.fedtsdp(10),
        "fesem": stories.fesem(10),
        "fedcps": stories.fedcps(10, 8),
        "layercfl": stories.layercfl(10, 8),
        "dcpfl": stories.dcpfl(10, 8),
        "written_by_a_user": stories.written_by_a_user(10),
    }[method]
    folder = synthesise(tmp_path, method, clients=8, rounds=10, story=told, picture=False)
    found = story(read_runs([folder])[0])
    assert {figure.name for figure in found} == FIGURES[method]
    assert all(figure.chart is not None for figure in found)


@pytest.mark.medium
def test_a_run_without_a_log_has_no_story(clustered: RunFolder) -> None:
    assert story(read_runs([clustered])[0]) == []
    assert "Newcomers" not in run_page.build(clustered, []).read_text(encoding="utf-8").split("<script")[0]


def test_a_chart_that_cannot_be_drawn_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a run that is finished fail for its page: the chart says that it is left out, and why."""

    def overflow(run: Run, against: Sequence[Run]) -> Figure:
        raise OverflowError("cannot convert float\ninfinity to integer")

    folder = synthesise(tmp_path, "fesem", clients=4, rounds=3, picture=False)
    run = read_runs([folder])[0]
    whole = [figure.name for figure in draw_run(run)]
    odd = RunChart(Chapter.ACCURACY, overflow, lambda run: True, "odd numbers")
    monkeypatch.setattr(charts, "RUN_CHARTS", [odd, *RUN_CHARTS])
    found = draw_run(run)
    assert [figure.name for figure in found] == ["odd numbers", *whole]
    assert found[0].chart is None
    said = "This chart could not be drawn (OverflowError: cannot convert float infinity to integer)."
    assert found[0].caption == said
    assert said in run_page.build(folder, []).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_mixed_method_gets_all_figures_between_the_accuracy_and_the_traffic(mixed: RunFolder) -> None:
    names = [figure.name for figure in draw_run(read_runs([mixed])[0])]
    assert set(names) >= set().union(*FIGURES.values()) | {"newcomers"}
    assert names[:2] == ["accuracy", "distribution"]
    assert names[-1] == "traffic"
    assert len(names) == len(set(names))
    text = Reader(run_page.build(mixed).read_text(encoding="utf-8")).text
    assert "drift / <norm>" in text
    assert (
        text.index("from the worst to the best")
        < text.index("When the clients look clusterable")
        < text.index("for the bytes")
    )


@pytest.mark.parametrize("told", LOG_CHARTS, ids=lambda told: told.draw.__name__)
def test_a_figure_is_drawn_without_the_names_that_it_only_shows(mixed: RunFolder, told: LogChart) -> None:
    whole = read_runs([mixed])[0]
    for missing in (*((name,) for name in told.shows), told.shows):
        run = read_runs([mixed])[0]
        run.__dict__["log"] = whole.log.filter(~pl.col("name").is_in(missing))
        figure = told.draw(run)
        assert figure.caption.endswith(".")
        assert figure.chart is not None
        json.dumps(specification(figure.chart), allow_nan=False)
    for needed in told.needs:
        run.__dict__["log"] = whole.log.filter(pl.col("name") != needed)
        assert not told.fits(run)


@pytest.mark.slow
@pytest.mark.thinned(6)
@pytest.mark.parametrize("settings", [{"clients": 1, "groups": 1}, {"rounds": 1}, {"rounds": 12, "until": 5}])
def test_one_client_one_round_or_a_run_cut_short(tmp_path: Path, settings: dict[str, int]) -> None:
    clients, rounds = settings.get("clients", 6), settings.get("rounds", 5)
    told = all_stories(rounds, clients)
    sized = {"clients": clients, "groups": 2, "rounds": rounds} | settings
    folder = synthesise(tmp_path, "small", picture=False, story=told, newcomers=1, **sized)  # type: ignore[arg-type]
    text = Reader(run_page.build(folder).read_text(encoding="utf-8")).text
    assert {"hopkins", "shared-tensors", "objective", "lambda", "tree", "cut"} <= set(charts_of(folder))
    assert "nan" not in text.lower().replace("<nan>", "")
    assert "1 rounds" not in text
    # A round that was cut off in the middle of writing is no part of the story either.
    assert folder.log()["round"].max() == settings.get("until", rounds)


def test_a_name_of_ones_own_is_drawn_and_stays_text(mixed: RunFolder) -> None:
    names = ["A b", "a/B", "</script>", "é"]
    run = logging(mixed, *[(r, name, "", r * 1.0) for r in (1, 3) for name in names], (1, "once", "", 2.0))
    found = story(run)
    assert [(f.name, f.title) for f in found] == [
        ("log-a-b", "A b"),
        ("log-a-b-2", "a/B"),
        ("log-script", "</script>"),
        ("log-number", "é"),
    ]
    assert found[0].caption == "What the method logged as A b. Here it ends at 3, logged in rounds 1 to 3."


def test_a_known_name_in_another_form_is_drawn_plainly(mixed: RunFolder) -> None:
    rows = [
        (r, name, of, 1.0) for r in (1, 2) for name, of in (("objective", ""), ("hopkins", "a"), ("js", "mean"))
    ]
    assert [f.name for f in story(logging(mixed, *rows))] == ["log-objective", "log-hopkins", "log-js"]


def test_more_lines_than_an_eye_can_follow_become_a_band(mixed: RunFolder) -> None:
    rows = [(r, "trust", str(i), float(i * r)) for r in (1, 2) for i in range(13)]
    band, line = drawn(the(logging(mixed, *rows), "log-trust"))
    assert [(r["low"], r["high"]) for r in band] == [(0, 12), (0, 24)]
    assert [r["value"] for r in line] == [6, 12]
    assert len(drawn(the(logging(mixed, *[r for r in rows if r[2] != "12"]), "log-trust"))) == 1


def test_a_caption_names_up_to_eight_lines_and_counts_the_rest(mixed: RunFolder) -> None:
    rows = [
        (r, name, f"part {i}", float(i)) for r in (1, 2) for name, n in (("few", 8), ("many", 10)) for i in range(n)
    ]
    few, many = story(logging(mixed, *rows))
    assert "ends at 0 for part 0, 1 for part 1, " in few.caption
    assert "and 7 for part 7, logged" in few.caption
    assert "7 for part 7 and 2 more, logged" in many.caption


def test_firings_and_stops_have_words_of_their_own(mixed: RunFolder) -> None:
    fired = [(r, "fired", "", float(r in (3, 7))) for r in range(2, 9)]
    run = logging(mixed, *fired, (5, "stopped", "", 1.0))
    assert [(f.name, f.title) for f in story(run)] == [
        ("fired", "When groups were looked for"),
        ("stopped", "When the method stopped"),
    ]
    (dots,) = drawn(the(run, "fired"))
    assert [d["round"] for d in dots if d["of"] == "yes"] == [3, 7]
    assert len(dots) == 7
    assert "it did so in 2 of 7 rounds, first in round 3 and last in round 7." in the(run, "fired").caption
    assert the(run, "stopped").caption.endswith("Here it stopped in round 5.")
    going = logging(mixed, *[(r, n, "", 0.0) for r in (1, 2) for n in ("fired", "stopped")])
    assert the(going, "fired").caption.endswith("it did so in 0 of 2 rounds.")
    assert the(going, "stopped").caption.endswith("Here it has not stopped so far.")
    # The Hopkins chart marks the firings itself.
    assert [f.name for f in story(logging(mixed, *fired, (2, "hopkins", "", 0.5)))] == ["hopkins"]


@pytest.mark.medium
def test_names_beyond_the_room_are_listed(mixed: RunFolder) -> None:
    rows = [(r, f"name {i}", "", 1.0) for r in (1, 2) for i in range(MOST_PLAIN + 2)]
    *plain, rest = story(logging(mixed, *rows))
    assert len(plain) == MOST_PLAIN
    assert rest.chart is None
    assert "name 24, name 25" in rest.caption


def test_a_number_logged_twice_in_a_round_counts_once(tmp_path: Path) -> None:
    def twice(number: int) -> stories.Logged:
        yield "cut", "", 1.0
        yield "cut", "", 0.5

    folder = synthesise(tmp_path, "twice", clients=3, groups=1, rounds=3, story=twice, picture=False)
    assert read_runs([folder])[0].logged("cut")["value"].to_list() == [0.5] * 3


@pytest.mark.slow
def test_long_runs_of_many_clients_stay_light(mixed: RunFolder) -> None:
    rounds, clients = 300, 60
    deep = stories.layercfl(rounds, clients, tuple(f"conv{i}" for i in range(16)))
    told = stories.together(all_stories(rounds, clients), deep)
    rows = [(number, *entry) for number in range(1, rounds + 1) for entry in told(number)]
    run = logging(mixed, *rows)
    run.__dict__["rounds"] = pl.DataFrame({"round": range(1, rounds + 1)})
    for figure in story(run):
        data = drawn(figure)
        assert max(map(len, data)) <= 2600, figure.name
        assert len(json.dumps(data)) < 3e5, figure.name
    # Every firing is on the line, also where the line is thinned.
    line, dots = drawn(the(run, "hopkins"))
    at = {r["round"]: r["value"] for r in line if r["of"] == "Hopkins statistic"}
    assert {d["round"]: d["value"] for d in dots}.items() <= at.items()
    assert len(dots) == run.logged("fired")["value"].sum()


def test_thinned_rounds_keep_whole_rounds_and_those_to_keep() -> None:
    frame = pl.DataFrame({"round": [r for r in range(1000) for _ in "ab"], "of": list("ab") * 1000})
    kept = thin_rounds(frame, keep=pl.Series([3, 501]))
    assert {0, 3, 501, 999} <= set(kept["round"])
    assert kept["round"].n_unique() <= MOST_POINTS + 3
    assert (kept.group_by("round").len()["len"] == 2).all()


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.09, 1.2, [0.1, 0.2, 0.5, 1]),
        (1e-5, 1.0, [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1]),
        (1.0, 1e12, [1, 1e2, 1e4, 1e6, 1e8, 1e10, 1e12]),
        (3.0, 4.0, []),
    ],
)
def test_ticks_of_a_logarithmic_axis(low: float, high: float, ticks: list[float]) -> None:
    assert decades(low, high) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("count", "said"), [(0, ""), (1, "0"), (2, "0 and 1"), (3, "0, 1 and 2"), (9, "0, 1, 2, 3, 4, 5 and 3 more")]
)
def test_lists_in_words(count: int, said: str) -> None:
    assert join_words(range(count)) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (800.4, "800"),
        (999.7, "1,000"),
        (12345.6, "12,346"),
        (0.012345, "0.0123"),
        (-1234, "-1,234"),
        (2e7, "2e+07"),
    ],
)
def test_numbers_of_captions_have_no_exponents_below_a_million(value: float, said: str) -> None:
    assert significant(value) == said


@pytest.mark.parametrize("draw", ["value", "merge"])
def test_ticks_are_plain_numbers(mixed: RunFolder, tmp_path: Path, draw: str) -> None:
    run = logging(mixed, *[(r, "radius", "", 100.0 * r) for r in range(4, 9)])
    if draw == "merge":
        merge = [(1, "merge left", "0", 0.0), (1, "merge right", "0", 1.0), (1, "merge height", "0", 900.0)]
        run = logging(mixed, *merge)
    (figure,) = story(run)
    svg = vl_convert.vegalite_to_svg(specification(figure.chart), vl_version=language_version())  # type: ignore[arg-type]
    assert ">800<" in svg
    assert "e+2" not in svg


@pytest.mark.slow
def test_a_story_is_the_same_every_time(mixed: RunFolder) -> None:
    once, again = charts_of(mixed), charts_of(mixed)
    assert {k: specification(c) for k, c in once.items()} == {k: specification(c) for k, c in again.items()}


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine to render the page with")
def test_the_story_renders_without_a_warning(mixed: RunFolder, tmp_path: Path) -> None:
    shown, console = browse(run_page.build(mixed), tmp_path / "profile")
    assert console == []
    assert shown.count('data-drawn="yes"') == len(charts_of(mixed)) + 1
