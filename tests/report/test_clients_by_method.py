"""Clients by name on a comparison's page: who loses, by which method each does best, and how sure that is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from coterie.randomness import stream
from coterie.report.comparison.client_gains import count_by_method, pair_clients
from coterie.report.comparison.each_client import ClientsByMethod, describe_clients
from coterie.report.comparison.findings import headline
from coterie.report.comparison.page import build
from coterie.report.comparison.table import to_markdown
from coterie.report.comparison.view import View, views
from coterie.report.gains import MOST_CLIENTS
from coterie.report.uncertainty import join_intervals, wilson_interval
from coterie.runs.folder.metrics import CLASSIFICATION, ClientScores, RunMetrics
from coterie.studies.compare.measures import Frames, cells_schema, clients_schema, curves_schema
from coterie.studies.compare.spec import Comparison
from coterie.studies.compare.table import summarise

from .test_page import Reader

RMSE = RunMetrics.named(["rmse"])

Scores = Mapping[str, Sequence[Sequence[float] | NDArray[np.float64]]]
"""By method, for every seed, of each client."""

THREE = {
    "fedavg": [[0.50, 0.80, 0.60, 0.70]],
    "ifca": [[0.50, 0.90, 0.50, 0.70]],
    "fesem": [[0.95, 0.70, 0.90, 0.70]],
}
"""FeSEM is best on average, and the second client loses by it."""


def compare(
    scores: Scores,
    samples: Sequence[int],
    *,
    metrics: RunMetrics = CLASSIFICATION,
    half: float | None = None,
    name: str = "client {}",
    **more: Any,
) -> tuple[Comparison, Frames]:
    """What runs of one round with these scores measure; with `half`, intervals of them are twice as wide."""
    tables = {"name": "own", "methods": list(scores), "adapted": {}, **more}
    plan = Comparison.from_tables({**tables, "seeds": len(next(iter(scores.values())))})
    rows: dict[str, list[dict[str, Any]]] = {"cells": [], "curves": [], "clients": []}
    for cell in plan.cells():
        values = np.array(scores[cell.method][plan.seeds.index(cell.seed)])
        of = {metric.name: values for metric in metrics.of}
        found = metrics.summarise(ClientScores(of, np.zeros(len(values)), np.array(samples, float)))
        row = {"setting": "", "method": cell.method, "seed": cell.seed, "groups": 1, "passes": 1.0, **found}
        counts = dict.fromkeys(("rounds", "up_bytes", "down_bytes", "simulated_seconds", "seconds", "failed"), 1)
        rows["cells"].append({**row, **counts, "key": cell.key, "diverged": False})
        rows["curves"].append({**row, "round": 1, "bytes": 2})
        ends = {} if half is None else {"low": values - half, "high": values + half}
        for client, value in enumerate(values.tolist()):
            own = {"client": client, "name": name.format(client), "group": 0, "true_group": 0}
            own |= {metrics.deciding.name: value, "test_samples": samples[client]}
            rows["clients"].append({**row, **own, **{end: float(of[client]) for end, of in ends.items()}})
    schemas = {"cells": cells_schema(metrics), "curves": curves_schema(metrics), "clients": clients_schema(metrics)}
    tables = {
        part: pl.DataFrame([{key: row.get(key) for key in schema} for row in rows[part]], schema).fill_nan(None)
        for part, schema in schemas.items()
    }
    return plan.measured_by(metrics), Frames(**tables, metrics=metrics)


def view_of(*args: Any, **options: Any) -> View:
    plan, frames = compare(*args, **options)
    (found,) = views(plan, frames, summarise(plan, frames))
    return found


def describe(view: View) -> ClientsByMethod:
    found = describe_clients(view, MOST_CLIENTS)
    assert found is not None
    return found


def interval_of(cell: str) -> tuple[float, float]:
    found = re.search(r"\(([+-][\d.]+)\u00a0to\u00a0([+-][\d.]+)\)", cell)
    assert found is not None, cell
    return float(found[1]), float(found[2])


def test_who_loses_by_the_best_method_comes_first_and_the_interval_is_newcombes() -> None:
    found = describe(view_of(THREE, [20, 20, 20, 40]))
    named = [name for head in found.table.header for name in ("fesem", "fedavg") if name in head]
    assert named == ["fedavg", "fesem", "fedavg"]
    loser, equal, *_ = found.table.rows
    assert loser[0] == "client 1"
    assert loser[2:] == ["70.0%", "80.0%", "ifca", "90.0%", "20"]
    low, high = join_intervals(0.7, *wilson_interval(0.7, 20), 0.8, *wilson_interval(0.8, 20))
    assert interval_of(loser[1]) == (round(100 * float(low)), round(100 * float(high)))
    # Where several are as good, the method of the page is named.
    assert (equal[0], equal[1].split(" ")[0], equal[4]) == ("client 3", "0", "fesem and 2 more")
    assert [choice.method for choice in found.choices] == ["fesem", "ifca"]
    assert re.search(r"fedavg\D+ 2 \D+ 1 \D+ 1 .* 1 of 4 \D+ fesem, for none", found.choices[0].says)
    # Another method's cells are of the same clients in the same order.
    by_ifca = {row[0]: cells for row, cells in zip(found.table.rows, found.choices[1].cells, strict=True)}
    assert by_ifca["client 1"][1:] == ["90.0%", "80.0%"]
    assert by_ifca["client 2"][0].startswith("-10.0 (")


def test_of_an_error_the_lower_is_the_gain() -> None:
    errors = {"fedavg": [[5.0, 2.0, 3.0]], "ifca": [[4.0, 1.0, 3.5]], "fesem": [[1.0, 3.0, 2.0]]}
    found = describe(view_of(errors, [30] * 3, metrics=RMSE, half=0.1))
    loser, *_, winner = found.table.rows
    assert (loser[0], loser[2], loser[4], loser[5]) == ("client 1", "3.00", "ifca", "1.00")
    assert (winner[0], winner[4]) == ("client 0", "fesem")
    low, high = join_intervals(2.0, 1.9, 2.1, 3.0, 2.9, 3.1)
    assert interval_of(loser[1]) == pytest.approx((float(low), float(high)), abs=0.01)
    assert re.search(r" 2 \D+ 1 .* 1 of them", found.choices[0].says)
    assert "RMSE" in found.cautions[0]


def test_scores_without_intervals_say_why() -> None:
    errors = {"fedavg": [[5.0, 2.0]], "fesem": [[1.0, 3.0]]}
    view = view_of(errors, [30] * 2, metrics=RMSE)
    found = describe(view)
    assert len(found.table.header) == 5  # with one method beside the baseline, none is the best of many
    assert found.table.rows[0][:4] == ["client 1", "-1", "3.00", "2.00"]
    assert any("RMSE" in sentence for sentence in found.cautions)
    assert view.worst_tenth == {}


def test_the_same_people_are_averaged_and_their_interval_is_that_of_one_seed() -> None:
    scores = {"fedavg": [[0.5, 0.6], [0.7, 0.6]], "fesem": [[0.9, 0.6], [0.8, 0.4]]}
    found = describe(view_of(scores, [20, 20], name="ward {}"))
    rows = {row[0]: row for row in found.table.rows}
    assert list(rows) == ["ward 1", "ward 0"]
    assert rows["ward 0"][1:4] == [rows["ward 0"][1], "85.0%", "60.0%"]
    assert rows["ward 0"][1].startswith("+25.0 ")
    mine, theirs = (np.mean(wilson_interval(of, 20), axis=1) for of in ([0.9, 0.8], [0.5, 0.7]))
    low, high = join_intervals(0.85, mine[0], mine[1], 0.6, theirs[0], theirs[1])
    assert interval_of(rows["ward 0"][1]) == (round(100 * float(low)), round(100 * float(high)))
    assert "one seed" in " ".join(found.cautions)


def test_clients_that_every_seed_draws_anew_have_a_row_a_seed() -> None:
    scores = {"fedavg": [[0.5, 0.6], [0.7, 0.6]], "fesem": [[0.9, 0.6], [0.8, 0.4]]}
    found = describe(view_of(scores, [20, 20]))
    assert [row[0] for row in found.table.rows][:2] == ["client 1, seed 1", "client 1, seed 0"]
    assert len(found.table.rows) == 4


def test_the_clients_who_lose_most_are_listed() -> None:
    found = describe_clients(view_of(THREE, [20] * 4), 2)
    assert found is not None
    assert [row[0] for row in found.table.rows] == ["client 1", "client 3"]
    assert [len(choice.cells) for choice in found.choices] == [2, 2]
    assert found.left_out == 2


def test_where_nobody_gains_or_loses_there_is_no_table() -> None:
    view = view_of({"fedavg": [[0.5, 0.6]], "fesem": [[0.5, 0.6]]}, [20] * 2)
    assert describe_clients(view, MOST_CLIENTS) is None


@pytest.mark.parametrize("measure", ["macro_accuracy", "worst10"])
def test_the_worst_tenth_has_an_interval(tmp_path: Path, measure: str) -> None:
    rng = stream(0, "worst tenth of a comparison")
    drawn = [[rng.binomial(30, share, 20) / 30 for share in shares] for shares in ((0.6, 0.5), (0.8, 0.9))]
    scores = dict(zip(("fedavg", "fesem"), drawn, strict=True))
    plan, frames = compare(scores, [30] * 20, measure=measure)
    summary = summarise(plan, frames)
    (view,) = views(plan, frames, summary)
    for method, true in (("fedavg", 0.55), ("fesem", 0.85)):  # all clients are alike, so the worst are as good
        low, high = view.worst_tenth[method]
        worst = np.mean([np.sort(of)[:2].mean() for of in scores[method]])
        assert low - 1e-9 <= worst < high
        assert low < true < high + 0.02
    text = Reader(build(tmp_path, plan, frames, summary, []).read_text("utf-8")).text
    low, high = view.worst_tenth["fesem"]
    row = summary.row(by_predicate=pl.col("method") == "fesem", named=True)
    value = f"{100 * row['worst10_mean']:.2f}"
    sd = f" ± {100 * row['worst10_sd']:.2f}" if measure == "worst10" else ""
    assert f"{value}{sd} ({100 * low:.0f} to {100 * high:.0f})" in text.replace("\u00a0", " ")
    assert (f"{100 * low:.2f}% to {100 * high:.2f}%" in headline(view)) == (measure == "worst10")
    assert "\u00a0to\u00a0" not in to_markdown(summary, plan, frames.metrics)


def test_a_method_is_not_held_against_itself_over_other_seeds() -> None:
    """FedAvg lacks the third seed, in which FeSEM is better than before."""
    scores = {"fedavg": [[0.5] * 4] * 3, "ifca": [[0.4] * 4] * 3, "fesem": [[0.6] * 4, [0.7] * 4, [0.9] * 4]}
    plan, frames = compare(scores, [20] * 4, name="ward {}")
    there = ~((pl.col("method") == "fedavg") & (pl.col("seed") == 2))
    frames = replace(
        frames, **{part: getattr(frames, part).filter(there) for part in ("cells", "curves", "clients")}
    )
    (view,) = views(plan, frames, summarise(plan, frames))
    found = describe(view)
    by_method = {choice.method: choice.says for choice in found.choices}
    assert "4 of 4" not in by_method["fesem"]
    assert "4 of 4" in by_method["ifca"]
    assert [row[4:6] for row in found.table.rows] == [["fesem", "65.0%"]] * 4
    assert " 0 and 1" in " ".join(found.cautions)


def test_a_gain_that_is_not_known_is_no_gain(tmp_path: Path) -> None:
    """All models diverged for the first client, and one of three for the second."""
    inf = float("inf")
    errors = {"fedavg": [[inf, inf, 3.0]], "ifca": [[inf, 2.0, 3.5]], "fesem": [[inf, 1.0, 2.0]]}
    view = view_of(errors, [30] * 3, metrics=RMSE)
    counts = {row["method"]: row for row in count_by_method(pair_clients(view)).to_dicts()}
    assert [counts["fesem"][of] for of in ("gained", "lost", "same", "clients")] == [2, 0, 0, 3]
    found = describe(view)
    rows = {row[0]: row for row in found.table.rows}
    assert rows["client 0"][1:6] == ["–", "∞", "∞", "–", "–"]
    assert rows["client 1"][1:6] == ["+∞", "2.00", "∞", "fesem", "1.00"]
    assert re.search(r" 1 \D+ 1 \D+ 1 \D+ 2 of 3 .*ifca", found.choices[0].says)
    build(tmp_path, *compare(errors, [30] * 3, metrics=RMSE), view.summary, [])


def test_the_script_of_a_page_asks_no_selector_that_some_browsers_lack(tmp_path: Path) -> None:
    """Where a browser knows no `:has`, the script would end before any chart is drawn."""
    plan, frames = compare(THREE, [20] * 4)
    text = build(tmp_path, plan, frames, summarise(plan, frames), []).read_text("utf-8")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert any(".by-method" in script for script in scripts)
    assert not any(":has(" in script for script in scripts)


@pytest.mark.medium
def test_a_page_of_many_clients_and_methods_stays_light(tmp_path: Path) -> None:
    rng, clients = stream(0, "many clients by method"), 400
    methods = ["fedavg", *(f"fesem(clusters={k})" for k in range(2, 10))]
    scores = {method: [rng.binomial(20, 0.4 + 0.01 * i, clients) / 20] for i, method in enumerate(methods)}
    plan, frames = compare(scores, [20] * clients)
    assert build(tmp_path, plan, frames, summarise(plan, frames), []).stat().st_size < 3e6
