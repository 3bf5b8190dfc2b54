import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

import coterie
from coterie.errors import BadInput
from coterie.report.comparison import client_gains
from coterie.report.comparison.charts import draw_cost, draw_effort
from coterie.report.comparison.client_gains import are_same_people, gains_table, labels_of, pair_clients
from coterie.report.comparison.findings import finding, headline, overall
from coterie.report.comparison.page import build
from coterie.report.comparison.view import View, views
from coterie.report.drawing.saving import specification
from coterie.runs.folder.run_folder import RunFolder
from coterie.studies.compare.compare import Compared
from coterie.studies.compare.measures import Frames
from coterie.studies.compare.spec import Comparison
from coterie.studies.compare.table import summarise

from .test_page import Reader, assert_loads_nothing

pytestmark = pytest.mark.medium  # Its runs take a few seconds.

SETTINGS = {"turned": {"data": {"split": "rotated(4)"}}, "β = 0.3": {"data": {"split": "dirichlet(0.3)"}}}
METHODS = {
    "FedAvg": {"method": {"name": "fedavg"}},
    "FeSEM of four groups": {"method": {"name": "fesem", "clusters": 4}},
    "Everyone alone": {"method": {"name": "local-only"}},
}
TABLES = {
    "seeds": 3,
    "baseline": "FedAvg",
    "experiment": {"data": {"name": "digits", "clients": 8}, "run": {"rounds": 4}},
    "methods": METHODS,
    "adapted": {},
    "settings": SETTINGS,
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    return coterie.compare({**TABLES, "name": "digits"}, folder=tmp_path_factory.mktemp("comparison"), jobs=1)


@pytest.fixture(scope="module")
def folder(compared: Compared) -> Path:
    return compared.folder.path


@pytest.fixture(scope="module")
def comparison(compared: Compared) -> Comparison:
    return compared.comparison


@pytest.fixture(scope="module")
def frames(compared: Compared) -> Frames:
    """What the real runs of every cell measured."""
    assert compared.frames is not None
    return compared.frames


@pytest.fixture(scope="module")
def written(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def only(frames: Frames, condition: pl.Expr) -> Frames:
    return Frames(frames.cells.filter(condition), frames.curves.filter(condition), frames.clients.filter(condition))


def view(comparison: Comparison, frames: Frames, setting: str = "turned") -> View:
    return next(v for v in views(comparison, frames, summarise(comparison, frames)) if v.setting == setting)


@pytest.mark.slow
def test_the_page_loads_nothing(written: str) -> None:
    specifications = assert_loads_nothing(written)
    reader = Reader(written)
    places = {attributes["id"] for _, attributes in reader.elements if "id" in attributes} - {"specifications"}
    headings = {place for place in places if (place or "").startswith("about-")}
    assert headings >= {f"about-{name}" for name in specifications}
    captions = {place for place in places if (place or "").startswith("says-")}
    assert captions >= {f"says-{name}" for name in specifications}
    assert places - headings - captions == {f"chart-{name}" for name in specifications}


def test_a_comparison_is_drawn_as_on_its_page(written: str, compared: Compared) -> None:
    figures = coterie.draw(compared)
    assert list(figures) == [
        *("accuracy-1", "clients-1", "cost-1", "passes-1", "groups-1"),
        *("accuracy-2", "clients-2", "cost-2", "passes-2"),  # nothing is planted there
    ]
    assert {f"chart-{name}" for name in figures} == set(re.findall(r'id="(chart-[^"]+)"', written))
    assert all(figure.caption.split(". ")[0] in Reader(written).text for figure in figures.values())
    for figure in figures.values():
        assert figure.chart is None or figure.chart.to_dict(validate=True)


def test_lines_end_at_what_was_sent_and_how_much_was_trained(comparison: Comparison, frames: Frames) -> None:
    here = view(comparison, frames)
    for figure, spent in ((draw_cost(here), "megabytes"), (draw_effort(here), "passes")):
        assert figure.chart is not None
        spec = specification(figure.chart)
        drawn = [row for data in spec["datasets"].values() for row in data if row.get("round") == 4]
        for method, name in (("FedAvg", "FedAvg (baseline)"), ("FeSEM of four groups", "FeSEM of four groups")):
            cells = here.cells.filter(pl.col("method") == method)
            total = {
                "megabytes": (cells["up_bytes"] + cells["down_bytes"]).to_numpy().mean() / 1e6,
                "passes": cells["passes"].to_numpy().mean(),
            }
            (last,) = {(row[spent], row["value"]) for row in drawn if row["method"] == name}
            scored = cells["macro_accuracy"].to_numpy().mean()
            assert last == (pytest.approx(total[spent], rel=1e-4), pytest.approx(scored, rel=1e-4))


def test_the_finding_is_that_of_the_runs(comparison: Comparison, frames: Frames, written: str) -> None:
    cells = frames.cells.filter(pl.col("setting") == "turned")
    values = {m: cells.filter(pl.col("method") == m).sort("seed")["macro_accuracy"].to_numpy() for m in METHODS}
    best = max(values, key=lambda method: values[method].mean())
    assert best != "FedAvg"
    apart = values[best] - values["FedAvg"]
    low, high = stats.t.interval(0.95, 2, apart.mean(), stats.sem(apart))
    said = headline(view(comparison, frames))
    shown = [f"{values[best].mean():.2%}", f"{values['FedAvg'].mean():.2%}", "FedAvg"]
    shown += [f"{100 * number:+.2f}" for number in (apart.mean(), low, high)]
    assert re.search(".*".join(map(re.escape, [best, *shown, "3 seeds"])), said)
    assert ("beyond chance" in said) == (low > 0 or high < 0)
    text = Reader(written).text
    assert f"turned : {said}" in text
    assert "18 of 18" in text


def test_bytes_and_losers_are_said(comparison: Comparison, frames: Frames) -> None:
    without = only(frames, pl.col("method") != "Everyone alone")
    words = " ".join(finding(view(comparison, without)))
    sent = (
        without.cells.filter(pl.col("setting") == "turned")
        .group_by("method")
        .agg((pl.col("up_bytes") + pl.col("down_bytes")).mean())
    )
    volumes = dict(sent.iter_rows())
    assert volumes["FeSEM of four groups"] == volumes["FedAvg"]
    assert f"{volumes['FedAvg'] / 1e6:.2f} MB" in words
    gained, lost = counts_by_hand(without, "FeSEM of four groups")
    assert re.search(rf"Of 24 clients\D* {gained} \D*{lost} ", words)
    local = " ".join(finding(view(comparison, only(frames, pl.col("method") != "FeSEM of four groups"))))
    assert "sends 0 B" in local


def counts_by_hand(frames: Frames, method: str) -> tuple[int, int]:
    rows = frames.clients.filter(pl.col("setting") == "turned").to_dicts()
    at = {(row["method"], row["seed"], row["client"]): row["accuracy"] for row in rows}
    gains = [value - at["FedAvg", seed, client] for (m, seed, client), value in at.items() if m == method]
    return sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)


def test_gains_are_counted_client_by_client(comparison: Comparison, frames: Frames) -> None:
    here = view(comparison, frames)
    found = pair_clients(here)
    assert found.height == 2 * 3 * 8
    assert set(found["method"]) == {"FeSEM of four groups", "Everyone alone"}
    assert labels_of(found) == ["group 0", "group 1", "group 2", "group 3"]
    assert {name: (int(gain), int(lose)) for name, gain, lose, *_ in gains_table(here).rows} == {
        method: counts_by_hand(frames, method) for method in ("FeSEM of four groups", "Everyone alone")
    }


def test_clients_that_are_the_same_people_are_averaged(comparison: Comparison, frames: Frames) -> None:
    drawn = view(comparison, frames)
    assert not are_same_people(drawn)  # a split cuts other clients in every seed
    named = replace(frames, clients=frames.clients.with_columns(name=pl.format("writer {}", "client")))
    same = view(comparison, named)
    assert are_same_people(same)
    apart, averaged = pair_clients(drawn), pair_clients(same)
    assert averaged.height == 2 * 8
    assert averaged["seeds"].to_list() == [3] * 16
    by_hand = apart.group_by("method", "client").agg(pl.col("gain").mean().alias("by_hand"))
    both = averaged.join(by_hand, on=["method", "client"])
    assert np.allclose(both["gain"], both["by_hand"])
    shifted = pl.when(pl.col("seed") == 1).then((pl.col("true_group") + 1) % 4).otherwise("true_group")
    other = replace(named, clients=named.clients.with_columns(true_group=shifted))
    assert not are_same_people(view(comparison, other))


def test_groups_without_lasting_numbers_are_told_by_their_size(comparison: Comparison, frames: Frames) -> None:
    found = pair_clients(view(comparison, frames, "β = 0.3"))
    fesem = found.filter(pl.col("method") == "FeSEM of four groups")
    assert labels_of(fesem)[0] == "largest group"
    for _, run in fesem.group_by("seed"):
        counts = dict(run.group_by("label").len().iter_rows())
        order = [counts[label] for label in client_gains.LARGEST if label in counts]
        assert order == sorted(order, reverse=True)
        groups = frames.clients.filter(
            (pl.col("setting") == "β = 0.3")
            & (pl.col("method") == "FeSEM of four groups")
            & (pl.col("seed") == run["seed"][0])
        )["group"]
        assert sorted(counts.values()) == sorted(groups.value_counts()["count"].to_list())


def test_missing_runs_and_failures_are_named(comparison: Comparison, frames: Frames, folder: Path) -> None:
    gone = (pl.col("setting") == "turned") & (pl.col("method") == "Everyone alone") & (pl.col("seed") == 1)
    gone |= (pl.col("setting") == "β = 0.3") & (pl.col("method") == "FedAvg")
    left = only(frames, ~gone)
    page = build(
        folder, comparison, left, summarise(comparison, left), ["Everyone alone, seed 1 failed: no room left."]
    )
    text = Reader(page.read_text(encoding="utf-8")).text
    for word in ("14 of 18", "no room left", "4 runs", "turned, Everyone alone, seed 1"):
        assert word in text
    for seed in range(3):
        assert f"β = 0.3, FedAvg, seed {seed}" in text
    assert pair_clients(view(comparison, left)).filter(pl.col("method") == "Everyone alone").height == 2 * 8


def test_a_comparison_without_a_finished_run_has_a_page(
    comparison: Comparison, frames: Frames, folder: Path
) -> None:
    none = only(frames, pl.lit(False))
    text = Reader(build(folder, comparison, none, summarise(comparison, none), []).read_text(encoding="utf-8")).text
    assert "18 runs" in text


def test_one_seed_says_nothing_about_chance(comparison: Comparison, frames: Frames) -> None:
    single = view(replace(comparison, seeds=(0,)), only(frames, pl.col("seed") == 0))
    assert "one seed" in headline(single)
    assert "beyond chance" not in " ".join(finding(single))


def test_over_settings_ranks_are_averaged(comparison: Comparison, frames: Frames) -> None:
    whole = summarise(comparison, frames)
    ranks = dict(whole.group_by("method").agg(pl.col("rank").mean()).iter_rows())
    leader = min(ranks, key=lambda method: ranks[method])
    said = overall(views(comparison, frames, whole))
    last = said.rpartition(leader)[2]
    assert f"{ranks[leader]:.1f}" in last


def test_what_users_wrote_stays_text(comparison: Comparison, frames: Frames, folder: Path) -> None:
    nasty = "</script><script>document.title = 'taken'</script><i>&amp;"
    names = pl.col("method").replace({"Everyone alone": nasty})
    cells, curves, clients = (f.with_columns(names) for f in (frames.cells, frames.curves, frames.clients))
    changed = Frames(cells, curves, clients)
    methods = tuple(replace(m, name=nasty) if m.name == "Everyone alone" else m for m in comparison.methods)
    other = replace(comparison, methods=methods, name=nasty)
    page = build(folder, other, changed, summarise(other, changed), [nasty]).read_text(encoding="utf-8")
    assert nasty not in page
    reader = Reader(page)
    assert not any(tag == "i" for tag, _ in reader.elements)
    assert sum(tag == "script" for tag, _ in reader.elements) == 3 + len(SETTINGS)
    assert reader.text.count(nasty) >= 5


def test_how_it_was_made_is_said(written: str, comparison: Comparison, frames: Frames, folder: Path) -> None:
    text = Reader(written).text
    assert " ".join(comparison.to_toml().split()) in text
    packages = RunFolder(folder / "cells" / frames.cells["key"][0]).environment()["packages"]
    assert f"packages · torch {packages['torch']}" in text


def test_a_folder_that_cannot_be_written_to_is_refused(
    comparison: Comparison, frames: Frames, folder: Path
) -> None:
    with pytest.raises(BadInput, match=r"report\.html"):
        build(folder / "nowhere", comparison, frames, summarise(comparison, frames), [])
