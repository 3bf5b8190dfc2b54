import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from coterie.randomness import stream
from coterie.report.each_client import describe_clients
from coterie.report.gains import bound_worst_tenth
from coterie.report.run_page import build
from coterie.report.uncertainty import (
    join_intervals,
    wilson_interval,
    worst_tenth_interval,
    worst_tenth_of_intervals,
)
from coterie.runs.folder.baselines import TUNED
from coterie.runs.folder.metrics import RunMetrics
from coterie.runs.folder.reading import RunResults, read_runs
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import FEDERATION
from coterie.runs.loop import run
from coterie.runs.schema.experiment import Experiment

from .synthesis import synthesise

SAMPLES = np.full(20, 30)

METRICS = {metric.name: metric for metric in RunMetrics.named(["auroc", "rmse"]).of}


def test_intervals_are_those_of_their_sources() -> None:
    low, high = wilson_interval([81 / 263, 15 / 148, 0 / 20], [263, 148, 20])
    np.testing.assert_allclose(low, [0.2553, 0.0624, 0], atol=5e-5)
    np.testing.assert_allclose(high, [0.3662, 0.1605, 0.1611], atol=5e-5)
    one, two = ([56 / 70, 9 / 10, 0], [70, 10, 0]), ([48 / 80, 3 / 10, 0], [80, 10, 5])
    low, high = join_intervals(one[0], *wilson_interval(*one), two[0], *wilson_interval(*two))
    np.testing.assert_allclose(low, [0.0524, 0.1705, np.nan], atol=5e-5)
    np.testing.assert_allclose(high, [0.3339, 0.8090, np.nan], atol=5e-5)


@pytest.mark.medium
@pytest.mark.parametrize(("clients", "a", "b"), [(20, 20, 5), (40, 1, 1)])
def test_the_interval_of_the_worst_tenth_covers_it(clients: int, a: int, b: int) -> None:
    rng, times, covered, naive = stream(0, "coverage"), 40, 0, 0
    for _ in range(times):
        talent, samples = rng.beta(a, b, clients), rng.integers(10, 40, clients)
        share = rng.binomial(samples, talent) / samples
        true = np.sort(talent)[: clients // 10].mean()
        low, high = worst_tenth_interval(share, samples)
        covered += low <= true <= high
        naive += bool(np.sort(share)[: clients // 10].mean() < true)
    assert covered >= 0.85 * times
    assert naive > 0.6 * times  # the tenth that did worst had bad luck, too


@pytest.mark.medium
@pytest.mark.parametrize(("clients", "std", "error"), [(20, 0.1, 0.05), (40, 0.0, 0.1)])
def test_the_interval_of_the_worst_tenth_covers_it_by_other_metrics(clients: int, std: float, error: float) -> None:
    rng, times, covered = stream(0, "coverage of others"), 60, 0
    for _ in range(times):
        talent, errors = rng.normal(0, std, clients), error * rng.uniform(0.7, 1.3, clients)
        score = talent + errors * rng.standard_normal(clients)
        low, high = worst_tenth_of_intervals(score, score - 1.96 * errors, score + 1.96 * errors)
        covered += low <= np.sort(talent)[: clients // 10].mean() <= high
    assert covered >= 0.85 * times


def test_the_worst_tenth_of_an_error_is_the_highest() -> None:
    errors = np.linspace(1, 2, 20)
    low, high = bound_worst_tenth(METRICS["rmse"], errors, SAMPLES, errors - 0.1, errors + 0.1)
    assert 1.8 < low < errors[-2:].mean() < high < 2.3
    low, high = bound_worst_tenth(
        METRICS["auroc"], errors / 2, SAMPLES, errors / 2 - 0.3, np.minimum(errors / 2 + 0.3, 1)
    )
    assert 0 <= low < 0.5125 < high <= 1


def test_one_client_and_none_have_an_interval() -> None:
    low, high = worst_tenth_of_intervals([0.5], [0.4], [0.7])
    assert low < 0.5 < high
    low, high = worst_tenth_interval([0.5], [10])
    assert 0 <= low < 0.5 < high <= 1
    none = np.zeros(0)
    for metric in METRICS.values():
        assert np.isnan(bound_worst_tenth(metric, none, none.astype(int), none, none)).all()


def test_who_loses_comes_first_and_the_majority_class_is_a_line(tmp_path: Path) -> None:
    one = synthesise(tmp_path / "a", "one", clients=10, rounds=2, picture=False)
    two = synthesise(tmp_path / "b", "one", clients=10, rounds=2, picture=False, ceiling=0.5)
    other = synthesise(tmp_path, "other", clients=10, rounds=2, picture=False)
    people = {"client": range(10), "name": [f"ward {i}" for i in range(10)], "train": [100] * 10, "test": [20] * 10}
    people |= {"labels": [[100, 0]] * 4 + [[60, 40]] * 6, "validation": [0] * 10}
    people |= {column: [None] * 10 for column in ("true_group", "few_shot")}
    one.write_federation(pl.DataFrame(people, FEDERATION))
    run, *others = read_runs([one, two, other])
    found = describe_clients(run, others)
    assert found is not None
    _, over_run, over_class, *_ = found.table.header
    assert found.sorted_by == 1
    assert "one (2)" in over_run
    assert "majority class" in over_class
    said = " ".join([*found.sentences, *found.cautions])
    assert "4 clients of 10" in said
    assert re.search(r"one \(2\)\D+ 10 \D+ 0 ", said)
    assert "other," in said
    scores = dict(run.last.select("client", "accuracy").iter_rows())
    over = {row[0]: float(row[2].split(" ")[0]) for row in found.table.rows}
    assert over["ward 0"] == pytest.approx(100 * (scores[0] - 1), abs=0.051)
    assert over["ward 9"] == pytest.approx(100 * (scores[9] - 0.6), abs=0.051)
    gains = [float(row[1].split(" ")[0]) for row in found.table.rows]
    assert gains == sorted(gains)
    assert "fine-tuned" not in said
    tuned = describe_clients(run, [RunResults(two, TUNED), RunResults(two, "local-only")])
    assert tuned is not None
    assert re.search(r"FedAvg \+ FT.*fine-tuned.*local-only", tuned.cautions[-1])


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_the_page_of_runs_that_diverged_is_written(tmp_path: Path) -> None:
    """Scores without end have no interval, and what they gain has none, or is not known."""
    rows = enumerate(np.random.default_rng(0).normal(size=(240, 2)))
    lines = ["site,a,b,y", *(f"site {i % 6},{a:.3f},{b:.3f},{100 * a:.3f}" for i, (a, b) in rows)]
    (tmp_path / "sites.csv").write_text("\n".join(lines))
    folders = [
        run(
            Experiment(
                data={"name": str(tmp_path / "sites.csv"), "client": "site", "label": "y"},
                method="fedavg",
                task={"name": "regression"},
                training={"lr": lr},
                run={"rounds": 2, "folder": str(tmp_path / "runs")},
            )
        ).folder
        for lr in (1e6, 1e-6, 1e6)
    ]
    first, *others = map(RunFolder, folders)
    assert "∞" in build(first, others).read_text("utf-8")
