"""Runs that are measured by something else than accuracy: every table, chart and sentence follows their metrics.

The made runs of `good` and `poor` differ as two accuracies do; the metric turns them into errors where it falls. So
what is better is known, and must come out better whatever the direction.
"""

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from coterie.errors import BadInput
from coterie.report import run_page, run_tables
from coterie.report.comparison import table
from coterie.report.comparison.charts import draw_cost, draw_curves
from coterie.report.comparison.client_gains import count_by_method, gains_table, pair_clients
from coterie.report.comparison.findings import headline
from coterie.report.comparison.view import View, views
from coterie.report.drawing.figure import rows
from coterie.report.drawing.saving import specification
from coterie.report.numbers import measured, versus
from coterie.runs.folder.metrics import ACCURACY, CLASSIFICATION, F1, ClientScores, RunMetric, RunMetrics
from coterie.runs.folder.reading import RunResults
from coterie.runs.folder.run_folder import RunFolder
from coterie.studies.compare.folder import ComparisonFolder
from coterie.studies.compare.measures import Frames, measure_cells
from coterie.studies.compare.spec import Comparison
from coterie.studies.compare.table import summarise
from coterie.studies.papers.quantities import Quantity, built_in, known_measures

from .drawing import charts_of
from .synthesis import synthesise
from .test_compare import printed
from .test_page import Reader

RMSE = RunMetric("rmse", "RMSE", "the root of the mean squared error", False, True)
MAE = RunMetric("mae", "MAE", "the mean absolute error", False, True)
R2 = RunMetric("r2", "R²", "the share of the variance that is explained", False)
AUROC = RunMetric("auroc", "AUROC", "the chance that a positive sample is ranked above a negative one")

FALLING = RunMetrics((RMSE, MAE, R2))
METRICS = {
    "falling": FALLING,
    "rising share": RunMetrics((AUROC, ACCURACY)),
    "rising number": RunMetrics((R2, RMSE)),
    "one": RunMetrics((RMSE,)),
}
each = pytest.mark.parametrize("metrics", METRICS.values(), ids=METRICS)


def run(parent: Path, name: str, metrics: RunMetrics, *, good: bool = True, rounds: int = 6) -> RunFolder:
    ceiling = 0.9 if good else 0.6
    return synthesise(parent, name, clients=8, rounds=rounds, ceiling=ceiling, measured=metrics, failing=False)


def text_of(path: Path) -> str:
    """What a reader sees of a page."""
    return Reader(path.read_text(encoding="utf-8")).text


def test_a_classifier_has_the_columns_that_it_always_had() -> None:
    assert CLASSIFICATION == RunMetrics((ACCURACY, F1)) == RunMetrics.named(["accuracy", "f1"])
    assert [*CLASSIFICATION.columns] == [
        *("accuracy", "macro_accuracy", "f1", "macro_f1", "worst10", "std", "loss")
    ]
    assert CLASSIFICATION.client_columns == ("accuracy", "loss", "f1")
    assert CLASSIFICATION.falling == ("std", "loss", "adapted_std", "adapted_loss")
    assert "samples" in CLASSIFICATION.columns["accuracy"].meaning
    assert "clients" in CLASSIFICATION.columns["macro_f1"].explanation


def test_columns_follow_from_the_metrics_and_the_first_decides() -> None:
    assert [*FALLING.columns] == [
        *("rmse", "macro_rmse", "mae", "macro_mae", "r2", "macro_r2", "worst10", "std", "loss")
    ]
    assert FALLING.client_columns == ("rmse", "loss", "mae", "r2")
    assert {"rmse", "macro_rmse", "macro_mae", "worst10", "std", "loss"} <= set(FALLING.falling)
    assert "macro_r2" not in FALLING.falling
    assert not FALLING.columns["worst10"].is_share
    assert "less" in FALLING.columns["macro_rmse"].explanation


def summarised(
    metrics: RunMetrics, values: list[float], loss: list[float], samples: list[float]
) -> dict[str, float]:
    each_metric = {metric.name: np.array(values) for metric in metrics.of}
    return metrics.summarise(ClientScores(each_metric, np.array(loss), np.array(samples)))


def test_a_client_for_which_a_metric_is_not_defined_does_not_count() -> None:
    found = summarised(RunMetrics((AUROC,)), [0.5, np.nan, 1.0], [0.1, 0.2, 0.3], [10, 50, 30])
    assert found["macro_auroc"] == 0.75
    assert found["auroc"] == pytest.approx((0.5 * 10 + 1.0 * 30) / 40)
    assert found["worst10"] == 0.5
    assert found["loss"] == pytest.approx((0.1 * 10 + 0.2 * 50 + 0.3 * 30) / 90)


def test_a_model_that_gives_no_numbers_is_not_left_out_of_the_mean() -> None:
    found = summarised(RunMetrics((RMSE,)), [1.0, np.nan], [0.1, np.nan], [10, 10])
    assert all(np.isnan(found[name]) for name in ("rmse", "macro_rmse", "worst10", "std", "loss"))
    untested = summarised(RunMetrics((RMSE,)), [1.0, np.nan], [0.1, np.nan], [10, 0])
    assert untested["macro_rmse"] == untested["worst10"] == 1.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0.2, "0.200"), (12.345, "12.3"), (31250.4, "31,250"), (0.0, "0.00"), (-0.084, "-0.0840")],
        *[(np.inf, "∞"), (-np.inf, "-∞"), (np.nan, "–"), (None, "–"), (1.94e28, "1.94e+28")],
    ],
)
def test_every_value_of_an_error_can_be_written(value: float | None, text: str) -> None:
    assert measured(RMSE, value) == text


@pytest.mark.parametrize(
    ("unit", "value", "other", "text"),
    [
        *[(RMSE, 0.88, 1.0, "12% lower"), (RMSE, 1.12, 1.0, "12% higher"), (RMSE, 3.0, 1.0, "3 times")],
        *[(RMSE, 1.0, 1.0, "as high"), (RMSE, np.inf, 1.0, "higher"), (R2, 0.5, -0.1, "+0.6")],
        *[(AUROC, 0.75, 0.7, "+5.0 points"), (RMSE, 0.985, 1.0, "1.5% lower")],
    ],
)
def test_a_difference_is_said_in_the_metric(unit: RunMetric, value: float, other: float, text: str) -> None:
    assert text in versus(unit, value, other)


def test_infinite_values_have_no_spread_and_no_place_in_a_chart() -> None:
    found = summarised(RunMetrics((RMSE,)), [1.0, np.inf], [0.1, np.inf], [10, 10])
    assert found["macro_rmse"] == found["worst10"] == np.inf
    assert np.isnan(found["std"])
    assert rows(pl.DataFrame({"x": [1.0, np.inf, -np.inf, np.nan]})).values == [{"x": 1.0}, *[{"x": None}] * 3]


@each
def test_a_run_folder_says_what_it_is_measured_by(tmp_path: Path, metrics: RunMetrics) -> None:
    folder = RunFolder(run(tmp_path, "own", metrics).path)
    assert folder.metrics == metrics
    assert {*metrics.columns} <= {*folder.rounds().columns}
    assert {*metrics.client_columns} <= {*folder.clients().columns}
    values = folder.rounds()[metrics.headline]
    end = RunResults(folder, "own").summary
    assert end[metrics.best] == (values.min() if metrics.deciding.less_is_better else values.max())
    # The worst tenth is worse than the mean, whatever that means.
    worse = end["worst10"] - end[metrics.headline]
    assert worse > 0 if metrics.deciding.less_is_better else worse < 0


def test_folders_of_other_metrics_are_no_damaged_ones(tmp_path: Path) -> None:
    folder = run(tmp_path, "own", FALLING)
    (folder.path / "environment.json").unlink()
    with pytest.raises(BadInput, match="round, rmse, macro_rmse"):
        RunFolder(folder.path).rounds()


@pytest.mark.medium
@pytest.mark.parametrize("metrics", [METRICS["falling"], METRICS["rising share"]], ids=["falling", "rising share"])
def test_the_page_of_a_run_speaks_of_its_metric(tmp_path: Path, metrics: RunMetrics) -> None:
    good, poor = run(tmp_path, "good", metrics), run(tmp_path, "poor", metrics, good=False)
    metric, end = metrics.deciding, RunResults(good, "good").summary
    said = text_of(run_page.build(good, [poor]))
    if ACCURACY not in metrics.of:
        assert "ccuracy" not in said
    written = f"{end[metrics.headline]:.1%}" if metric.is_share else f"{end[metrics.headline]:#.3g}"
    assert re.search(rf"{metric.title}\D+{written}", said)
    assert bool(re.search("% lower .*poor", said)) == metric.less_is_better
    assert bool(re.search("points .*poor", said)) == metric.is_share
    twin = run(tmp_path / "twin", "good", metrics, good=False)  # of the same clients
    assert re.search(r": 8 gain, 0 lose", text_of(run_page.build(good, [twin])))
    assert ("Lower" in said) == metric.less_is_better
    assert f"further {'left' if metric.less_is_better else 'right'}" in said
    for other in metrics.of[1:]:
        assert other.title.lower() in said.lower()
    drawn = json.dumps([specification(chart) for chart in charts_of(good, [poor]).values()])
    assert f'"field": "{metric.name}"' in drawn
    assert ("~%" in json.dumps(specification(charts_of(good)[metric.name]))) == metric.is_share


@pytest.mark.medium
def test_runs_of_different_metrics_share_no_axis(tmp_path: Path) -> None:
    errors, rights = run(tmp_path, "errors", FALLING), run(tmp_path, "rights", CLASSIFICATION)
    said = text_of(run_page.build(errors, [rights]))
    assert "than rights" not in said
    assert "do better" not in said
    assert "rights" not in json.dumps(specification(charts_of(errors, [rights])["rmse"]))
    shown = printed(run_tables.render([errors, rights], 200))
    assert "RMSE" in shown
    assert "accuracy" in shown


@each
def test_show_has_every_metric_and_the_best_is_bold(tmp_path: Path, metrics: RunMetrics) -> None:
    good, poor = run(tmp_path, "good", metrics), run(tmp_path, "poor", metrics, good=False)
    one = printed(run_tables.show(good))
    assert all(f" {metric.title} " in one for metric in metrics.of)
    assert f"best {metrics.deciding.title} " in one
    found = run_tables.last_rounds([poor, good])
    assert {metric.title for metric in metrics.of} <= {*found.header}
    assert {row for row, _ in found.strong} == {1}
    assert len(found.strong) == len(metrics.of) + 1


def compared(parent: Path, metrics: RunMetrics, **more: object) -> tuple[Comparison, Frames]:
    """A comparison of a poor baseline and a good method over two seeds."""
    tables = {"name": "own", "methods": ["fedavg", "fesem"], "seeds": 2, "adapted": {}, **more}
    comparison = Comparison.from_tables(tables)
    folder = ComparisonFolder(parent / "own")
    done = {
        cell.key: run(folder.pool, cell.key, metrics, good=cell.method == "fesem") for cell in comparison.cells()
    }
    comparison = comparison.measured_by(metrics)
    return comparison, measure_cells(comparison, done)


def view_of(parent: Path, metrics: RunMetrics) -> View:
    comparison, frames = compared(parent, metrics)
    (found,) = views(comparison, frames, summarise(comparison, frames))
    return found


@pytest.mark.medium
@each
def test_a_comparison_finds_the_better_method_whatever_the_direction(tmp_path: Path, metrics: RunMetrics) -> None:
    comparison, frames = compared(tmp_path, metrics)
    assert comparison.measure == metrics.headline
    summary = summarise(comparison, frames)
    row = summary.row(by_predicate=pl.col("method") == "fesem", named=True)
    falls = metrics.deciding.less_is_better
    assert row["best"]
    assert row["wins"] == 2
    assert row["rank"] == 1.0
    assert (row["difference"] < 0) == falls
    view = view_of(tmp_path / "again", metrics)
    gains = pair_clients(view)
    assert (gains["gain"] > 0).all()  # a gain is positive where it is better
    assert count_by_method(gains).row(0, named=True)["lost"] == 0
    assert gains_table(view).rows[0][4].startswith("+")
    said = headline(view)
    assert re.match(f"fesem .*{metrics.deciding.title}", said)
    assert ("% lower, -" in said) == falls
    assert ("points" in said) == metrics.deciding.is_share
    assert "beyond chance" in said
    assert f"{'down' if falls else 'up'} and left" in draw_cost(view).caption
    first = draw_curves(view)
    assert first.name == metrics.deciding.name
    assert first.chart is not None
    assert ("~%" in json.dumps(specification(first.chart))) == metrics.deciding.is_share
    shown = printed(table.to_rich(summary, metrics=metrics))
    assert all(metric.title in shown for metric in metrics.of)
    assert ("less" in shown) == falls
    assert ("per cent" in shown) == metrics.deciding.is_share
    for text in (table.to_markdown(summary, comparison, metrics), table.to_latex(summary, comparison, metrics)):
        assert re.search(r"(\*\*|textbf\{)[\d.]+ ", text)


@pytest.mark.medium
@pytest.mark.parametrize(("metrics", "target", "reached"), [(FALLING, 6.0, True), (FALLING, 1.0, False)])
def test_a_target_of_an_error_is_reached_from_above(
    tmp_path: Path, metrics: RunMetrics, target: float, reached: bool
) -> None:
    _, frames = compared(tmp_path, metrics, target=target, experiment={"data": {"name": "./own.npz"}})
    good = frames.cells.filter(pl.col("method") == "fesem").row(0, named=True)
    first = good["rounds_to_target"]
    assert (first is not None) == reached
    if reached:
        values = RunFolder(tmp_path / "own" / "cells" / good["key"]).rounds()["macro_rmse"].to_list()
        assert values[first - 1] <= target
        assert all(value > target for value in values[: first - 1])


def test_a_measure_that_the_runs_do_not_have_is_refused() -> None:
    named = Comparison.from_tables({"methods": ["fedavg"], "measure": "macro_f1"})
    with pytest.raises(BadInput, match=r"measure = 'macro_f1'.*rmse, macro_rmse"):
        named.measured_by(FALLING)
    aimed = Comparison.from_tables(
        {"methods": ["fedavg"], "target": 40, "experiment": {"data": {"name": "./own.npz"}}}
    )
    assert aimed.measured_by(FALLING).target == 40
    with pytest.raises(BadInput, match="target = 40"):
        aimed.measured_by(CLASSIFICATION)


def test_runs_of_different_metrics_are_not_compared(tmp_path: Path) -> None:
    comparison = Comparison.from_tables({"methods": ["fedavg", "fesem"], "seeds": 1, "adapted": {}})
    one, other = comparison.cells()
    done = {one.key: run(tmp_path, one.key, FALLING), other.key: run(tmp_path, other.key, CLASSIFICATION)}
    with pytest.raises(BadInput, match=r"rmse, mae, r2.*accuracy, f1"):
        measure_cells(comparison, done)


def test_published_quantities_have_the_unit_and_the_direction_of_their_metric(tmp_path: Path) -> None:
    given = built_in(FALLING)
    assert given["macro_rmse"].unit == ""
    assert "RMSE" in given["macro_rmse"].meaning
    assert built_in(RunMetrics((AUROC,)))["worst10"].unit == "%"
    folder = run(tmp_path, "own", FALLING)
    values = folder.rounds()["macro_rmse"].to_list()
    until = Quantity(rounds_to=6.0)
    assert until.read(folder, "macro_rmse", len(values)) == 1 + next(i for i, v in enumerate(values) if v <= 6.0)
    assert "at 6 or below" in until.describe(FALLING.falling, "macro_rmse")
    assert "at 6 or above" in until.describe(FALLING.falling, "macro_r2")
    assert "macro_mae" in known_measures(FALLING)
    assert "macro_mae" not in known_measures(CLASSIFICATION)
