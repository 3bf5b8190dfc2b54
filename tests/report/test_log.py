"""What a method logged: the chart that any number has, and the dendrogram."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.cluster.hierarchy import dendrogram as scipy_dendrogram
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage

from coterie.report import charts, run_page
from coterie.report.charts import charts_of, draw_run
from coterie.report.charts.dendrogram import MOST_TIPS
from coterie.report.charts.log import ABOUT
from coterie.report.drawing.colours import NO_GROUP
from coterie.report.drawing.figure import Figure
from coterie.report.drawing.saving import specification
from coterie.runs.folder.reading import RunResults, read_runs
from coterie.runs.folder.run_folder import RunFolder

from . import stories
from .drawing import drawn, logging, story, the
from .stories import all_stories
from .synthesis import synthesise
from .test_page import Reader

CLIENTS = 12

FIGURES = {
    "fedtsdp": {"hopkins", "js", "shared-tensors"},
    "fesem": {"objective", "margin"},
    "fedcps": {"lambda", "tau2", "identity-changes"},
    "layercfl": {"gap1", "gap2", "silhouette", "update-norm"},
    "dcpfl": {"loss", "radius", "trial", "cut", "dendrogram", "period"},
    "written_by_a_user": {"log-temperature", "log-drift-norm", "log-trust"},
}


@pytest.mark.slow
def test_a_page_has_the_figures_of_every_log_between_the_accuracy_and_the_traffic(mixed: RunFolder) -> None:
    figures = draw_run(read_runs([mixed])[0])
    names = [figure.name for figure in figures]
    assert set(names[5:-1]) == set().union(*FIGURES.values())
    assert (names[0], names[-1]) == ("accuracy", "traffic")
    assert len(names) == len(set(names))
    for figure in figures[5:-1]:
        assert figure.chart is not None, figure
        assert figure.caption.endswith(".")
        assert len(json.dumps(specification(figure.chart), allow_nan=False)) < 1e5
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
    threshold, line, dots = drawn(figure)
    assert [(r["round"], r["value"]) for r in line] == list(enumerate(values, 1))
    assert [r["value"] for r in threshold] == [0.65, 0.65]
    assert [(r["round"], r["value"]) for r in dots] == [(2, 0.7), (4, 0.8)]
    assert re.search(r"0\.5 \D+ 1 \D+ 0\.8 \D+ 4; \D+ 0\.65; \D+ 2 rounds\D+ 2\.$", figure.caption)
    never = [(r, name, "", value) for r in (1, 2) for name, value in (("hopkins", 0.5), ("fired", 0.0))]
    assert the(logging(mixed, *never), "hopkins").caption.endswith("no round.")


def test_quantiles_are_a_line_between_two_bands(mixed: RunFolder) -> None:
    quantiles = {"min": 0.01, "q1": 0.1, "median": 0.2, "q3": 0.3, "max": 0.5}
    rows = [(r, "js", of, v * r) for r in (1, 2) for of, v in quantiles.items()]
    outer, inner, line = drawn(the(logging(mixed, *rows), "js"))
    assert [(r["low"], r["high"]) for r in outer] == [(0.01, 0.5), (0.02, 1.0)]
    assert [(r["low"], r["high"]) for r in inner] == [(0.1, 0.3), (0.2, 0.6)]
    assert [r["value"] for r in line] == [0.2, 0.4]


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
    run = logging(mixed, *[(number, *entry) for number in range(1, rounds + 1) for entry in told(number)])
    run.__dict__["rounds"] = pl.DataFrame({"round": range(1, rounds + 1)})
    for figure in story(run):
        data = drawn(figure)
        assert max(map(len, data)) <= 2600, figure.name
        assert len(json.dumps(data)) < 3e5, figure.name


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"clients": 1, "groups": 1}, {"rounds": 1}, {"rounds": 12, "until": 5}])
def test_one_client_one_round_or_a_run_cut_short(tmp_path: Path, settings: dict[str, int]) -> None:
    clients, rounds = settings.get("clients", 6), settings.get("rounds", 5)
    told = all_stories(rounds, clients)
    sized = {"clients": clients, "groups": 2, "rounds": rounds} | settings
    folder = synthesise(tmp_path, "small", picture=False, story=told, newcomers=1, **sized)  # type: ignore[arg-type]
    text = Reader(run_page.build(folder).read_text(encoding="utf-8")).text
    assert {"hopkins", "shared-tensors", "objective", "lambda", "cut"} <= set(charts_of(folder))
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


# ---- the dendrogram


def merges(z: np.ndarray, number: int = 5) -> list[tuple[int, str, str, float]]:
    names = ("merge left", "merge right", "merge height")
    return [(number, name, str(i), float(row[k])) for i, row in enumerate(z) for k, name in enumerate(names)]


def joints_of(figure: Figure) -> list[list[dict[str, Any]]]:
    """The four corners of each merge."""
    corners = drawn(figure)[0]
    return [corners[i : i + 4] for i in range(0, len(corners), 4)]


def test_the_dendrogram_is_scipys(mixed: RunFolder) -> None:
    models = np.random.default_rng(3).normal(size=(CLIENTS, 4)) + 9 * (np.arange(CLIENTS) % 4)[:, None]
    z = linkage(models, "average")
    tips = [(5, "dendrogram client", str(leaf), float(CLIENTS - 1 - leaf)) for leaf in range(CLIENTS)]
    figure = the(logging(mixed, *merges(z), *tips, (5, "cut", "", 1.0), (9, "cut", "", 0.4)), "dendrogram")
    _, spots, rule = drawn(figure)
    known = scipy_dendrogram(z, no_plot=True)
    assert [s["clients"] for s in spots] == [str(CLIENTS - 1 - leaf) for leaf in leaves_list(z)]
    planted = dict(read_runs([mixed])[0].federation.select("client", "true_group").iter_rows())
    assert [s["group"] for s in spots] == [planted[CLIENTS - 1 - leaf] for leaf in leaves_list(z)]
    joints = joints_of(figure)
    assert [[c["x"] for c in joint] for joint in joints] == known["icoord"]
    assert [[c["value"] for c in joint] for joint in joints] == [
        pytest.approx(up, rel=1e-4) for up in known["dcoord"]
    ]
    within = [joint[1]["value"] for joint in joints if joint[0]["colour"] != NO_GROUP]
    between = [joint[1]["value"] for joint in joints if joint[0]["colour"] == NO_GROUP]
    assert (len(within), len(between)) == (CLIENTS - 4, 3)
    assert max(within) < 9 < min(between)
    assert rule == [{"value": pytest.approx(0.4 * z[-1, 2], rel=1e-4)}]
    groups = len(set(fcluster(z, 0.4 * z[-1, 2], "distance")))
    assert groups > 1
    assert re.search(rf" 0\.4 \D+ {groups} groups", figure.caption)


def test_an_incomplete_dendrogram_is_said(mixed: RunFolder) -> None:
    z = linkage(np.arange(CLIENTS)[:, None] ** 1.5, "average")
    circular = z.copy()
    circular[2, 0] = CLIENTS + 7
    for rows in (merges(z)[3:], merges(z)[:-1], [*merges(z), (5, "merge left", "x", 1.0)], merges(circular)):
        figure = the(logging(mixed, *rows), "dendrogram")
        assert figure.chart is None
        assert "incomplete" in figure.caption


def test_only_the_highest_merges_of_many_clients_are_drawn(mixed: RunFolder) -> None:
    n = 300
    figure = the(
        logging(mixed, *merges(linkage(np.cumsum(np.arange(n, dtype=float))[:, None], "single"))), "dendrogram"
    )
    spots = drawn(figure)[1]
    assert len(spots) == MOST_TIPS
    assert len(joints_of(figure)) == MOST_TIPS - 1
    assert sum(int(s["clients"].split()[0]) for s in spots if "clients" in s["clients"]) == n - MOST_TIPS + 1
    assert f"{MOST_TIPS} tips" in figure.caption


# ---- how numbers are written
