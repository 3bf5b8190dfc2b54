import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

from coterie.report.charts import draw_run, groups
from coterie.report.charts.accuracy import draw_distribution
from coterie.report.drawing import colours
from coterie.report.drawing.figure import MOST_POINTS, thin
from coterie.report.drawing.saving import save_figures, specification
from coterie.runs.folder.picture import Picture
from coterie.runs.folder.reading import RunResults, method_name, read_runs
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import CLIENTS

from .synthesis import synthesise


def values(chart: Any) -> list[dict[str, Any]]:
    spec = specification(chart)
    found: list[dict[str, Any]] = spec["datasets"][spec["data"]["name"]]
    return found


def of_clients(*rows: tuple[int, int, int, float]) -> pl.DataFrame:
    """Clients' tables from `(round, client, group, accuracy)`."""
    rest = dict.fromkeys(CLIENTS, 0) | {"took_part": True, "train_loss": None}
    named = [rest | {"round": r, "client": c, "group": g, "accuracy": a} for r, c, g, a in rows]
    return pl.DataFrame(named, schema=CLIENTS)


@pytest.mark.slow
def test_saved_charts_are_pictures_and_the_same_every_time(clustered: RunFolder, tmp_path: Path) -> None:
    figures = draw_run(read_runs([clustered])[0])
    once, again = (save_figures(figures, tmp_path / name) for name in ("new/figures", "again"))
    assert {p.stem for p in once} == {figure.name for figure in figures}
    assert len(once) == 10
    assert [p.read_bytes() for p in once] == [p.read_bytes() for p in again]
    for path in once:
        if path.suffix == ".png":
            assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        else:
            root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
            assert root.tag.endswith("svg")
            assert len(list(root.iter())) > 30
    matrix = (tmp_path / "again" / "affinity.svg").read_text(encoding="utf-8")
    assert 'id="affinity-0"' in matrix
    assert "url(#affinity-0)" in matrix


def test_history_joins_equal_rounds(tmp_path: Path) -> None:
    table = of_clients(*[(r, 5, int(r > 2), 0.5) for r in (1, 2, 3, 4)], *[(r, 7, 0, 0.5) for r in (1, 2, 3, 4)])
    run = read_runs([synthesise(tmp_path, "tiny", clients=2, groups=2, rounds=4, picture=False)])[0]
    run.__dict__["clients"] = table
    bars = [
        (b["client"], b["group"], b["start"], b["until"], b["position"])
        for b in values(groups.draw_history(run).chart)
    ]
    assert sorted(bars) == [("5", 0, 1, 2, 1), ("5", 1, 3, 4, 1), ("7", 0, 1, 4, 0)]


def test_large_history_and_matrix_are_thinned(clustered: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run = read_runs([clustered])[0]
    for limit, value in (("MOST_BARS", 30), ("MOST_CELLS", 10)):
        monkeypatch.setattr(groups, limit, value)
    history, matrix = groups.draw_history(run), groups.draw_affinity(run)
    assert len(values(history.chart)) <= 30
    assert re.search(r"\d+th ", history.caption)
    assert len(values(matrix.chart)) <= 12**2
    assert re.search(r" 20 \D+ \d+ rows", matrix.caption)
    monkeypatch.setattr(groups, "MOST_CLIENTS", 10)
    few = groups.draw_history(run)
    bars = values(few.chart)
    assert len({bar["client"] for bar in bars}) == 10
    assert " 2 " in few.caption
    at = sorted((bar["position"], bar["bottom"]) for bar in bars if bar["until"] == 15)
    # The bars of a round still fill the height, without a gap.
    assert [at[0][0], *(bottom for _, bottom in at)] == [*(top for top, _ in at), 20]


def picture_of(affinity: np.ndarray, member: list[int], clients: list[int]) -> Picture:
    flat = np.array([[10.0 * g, 0.1 * i] for i, g in enumerate(member)], np.float32)
    return Picture(affinity, "distance", np.array(member), flat, np.array(clients), 3)


def test_affinity_is_ordered_by_group_and_averaged_by_hand(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    affinity = np.array([[0, 8, 2], [8, 0, 9], [2, 9, 0]], np.float32)
    folder.write_picture(picture_of(affinity, [0, 1, 0], [11, 12, 13]))
    figure = groups.draw_affinity(RunResults(folder, "run"))
    cells = {(c["top"], c["left"]): (c["value"], c["row"], c["column"]) for c in values(figure.chart)}
    assert set(cells) == {(i, j) for i in range(3) for j in range(3) if i != j}
    assert cells[0, 1] == (2, "clients 11", "clients 13")
    assert cells[2, 1] == (9, "clients 12", "clients 13")
    assert re.search(r" 2 \D+ 8\.5 ", figure.caption)


def test_affinity_to_groups_keeps_its_columns(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    folder.write_picture(picture_of(np.array([[1, 5], [5, 1], [1, 5]]), [0, 1, 0], [0, 1, 2]))
    cells = values(groups.draw_affinity(RunResults(folder, "run")).chart)
    assert [c["value"] for c in cells if c["column"] == "group 0"] == [1, 1, 5]


def test_distribution_climbs_by_clients(tmp_path: Path) -> None:
    mine, other = (RunResults(RunFolder(tmp_path), name) for name in ("mine", "other"))
    mine.__dict__["clients"] = of_clients((1, 0, 0, 0.1), (2, 0, 0, 0.5), (2, 1, 0, 0.6), (2, 2, 0, 0.7))
    other.__dict__["clients"] = of_clients((1, 0, 0, 0.4), (1, 1, 0, 0.6), (1, 2, 0, 0.9), (1, 3, 0, 0.0))
    figure = draw_distribution(mine, [other])
    steps = [(s["accuracy"], s["share"]) for s in values(figure.chart) if s["run"] == "mine"]
    assert steps == [
        (0.5, 0.0),
        (0.5, pytest.approx(1 / 3, abs=1e-4)),
        (0.6, pytest.approx(2 / 3, abs=1e-4)),
        (0.7, 1),
    ]


@pytest.mark.parametrize("height", [1, MOST_POINTS, MOST_POINTS + 1, 999, 5000])
def test_thinning_keeps_both_ends(height: int) -> None:
    kept = thin(pl.DataFrame({"x": range(height)}))["x"].to_list()
    assert (kept[0], kept[-1]) == (0, height - 1)
    assert len(kept) <= MOST_POINTS + 1
    assert kept == sorted(set(kept))


def test_runs_of_one_name_get_their_own_labels(tmp_path: Path) -> None:
    folders = [RunFolder(tmp_path / side / "run") for side in ("a", "b", "c")]
    assert [run.label for run in read_runs(folders)] == ["run", "run (2)", "run (3)"]


def test_method_names() -> None:
    assert method_name({"method": "ifca"}) == "ifca"
    assert method_name({"method": {"name": "fesem", "clusters": 4}}) == "fesem"
    assert method_name({}) == "unknown"


def test_eighteen_groups_have_their_own_colours() -> None:
    found = colours.of_groups(range(18))
    assert len(set(found)) == 18
    assert colours.of_groups([-1]) == [colours.NO_GROUP]
    assert colours.of_groups([18]) == found[:1]


@pytest.mark.slow
def test_importing_the_report_loads_no_torch_and_no_runtime() -> None:
    script = (
        "import sys, coterie.report.run_page, coterie.report.run_tables\n"
        "bad = ('torch', 'coterie.runtime.', 'coterie.methods', 'coterie.clients.rules')\n"
        "files = {'coterie.runtime.leftovers'}\n"
        "sys.exit(any(name.startswith(bad) for name in sys.modules.keys() - files))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
