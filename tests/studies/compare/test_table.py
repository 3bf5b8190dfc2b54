"""What the summary says of methods: means, paired differences, wins and ranks, against SciPy and by hand."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coterie.randomness import stream
from coterie.studies.compare.spec import Comparison
from coterie.studies.compare.table import SUMMARY, interval, summarise

from .by_hand import comparison, frames

NAN = math.nan
SHARES = st.floats(0, 1, allow_nan=False)


def rows(found: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """The rows by method, of a summary of one setting."""
    assert found.schema == SUMMARY
    return {row["method"]: row for row in found.to_dicts()}


def test_an_interval_by_hand() -> None:
    # Mean 2, standard deviation 1, and 4.3027 is the 97.5 % point of Student's t with 2 degrees of freedom.
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert (low, high) == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), abs=1e-6)


@given(st.lists(st.floats(-1, 1, allow_nan=False), min_size=2, max_size=30))
def test_an_interval_is_scipys(values: list[float]) -> None:
    mean, low, high = interval(values)
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    reference = np.array(stats.t.interval(0.95, len(values) - 1)) * error + np.mean(values)
    np.testing.assert_allclose([mean, low, high], [np.mean(values), *reference], rtol=1e-9, atol=1e-12)


def test_an_interval_of_few_values() -> None:
    assert np.isnan(interval([])).all()
    assert np.isnan(interval([NAN, NAN])).all()
    mean, low, high = interval([0.25])
    assert mean == 0.25
    assert math.isnan(low)
    assert math.isnan(high)
    assert interval([0.0, 0.0, 0.0]) == (0, 0, 0)
    assert interval([1.0, NAN, 2.0, 3.0]) == interval([1.0, 2.0, 3.0])
    assert interval([1.0, math.inf])[0] == math.inf


def test_means_and_deviations_are_over_seeds() -> None:
    plan = comparison(["fedavg", "ifca"])
    found = rows(
        summarise(
            plan,
            frames(
                plan,
                {"fedavg": [0.5, 0.6, 0.7], "ifca": [0.9, None, 0.8]},
                up_bytes={"fedavg": [10, 20, 60], "ifca": [1, 0, 2]},
                ari={"fedavg": [None, None, None], "ifca": [0.25, None, 0.75]},
            ),
        )
    )
    fedavg, ifca = found["fedavg"], found["ifca"]
    assert (fedavg["n"], ifca["n"], ifca["seeds"]) == (3, 2, 3)
    assert fedavg["macro_accuracy_mean"] == pytest.approx(0.6)
    assert fedavg["macro_accuracy_sd"] == pytest.approx(0.1)
    assert fedavg["up_bytes_mean"] == 30
    assert fedavg["up_bytes_sd"] == pytest.approx(math.sqrt((400 + 100 + 900) / 2))
    assert (fedavg["ari_mean"], fedavg["ari_sd"]) == (None, None)
    assert ifca["ari_mean"] == 0.5
    assert ifca["ari_sd"] == pytest.approx(math.sqrt(0.125))


def test_one_seed_has_no_deviation_and_no_interval() -> None:
    plan = comparison(["fedavg", "ifca"], seeds=1)
    ifca = rows(summarise(plan, frames(plan, {"fedavg": [0.5], "ifca": [0.75]})))["ifca"]
    assert ifca["macro_accuracy_mean"] == 0.75
    assert ifca["macro_accuracy_sd"] is None
    assert ifca["difference"] == 0.25
    assert (ifca["difference_low"], ifca["difference_high"]) == (None, None)
    assert (ifca["n"], ifca["pairs"], ifca["wins"]) == (1, 1, 1)


def test_a_difference_is_paired_by_seed() -> None:
    plan = comparison(["fedavg", "ifca"], seeds=4)
    values = {"fedavg": [0.50, 0.60, 0.70, None], "ifca": [0.52, None, 0.75, 0.10]}
    ifca = rows(summarise(plan, frames(plan, values)))["ifca"]
    # Seeds 0 and 2 have both. The difference of the means would be -0.14, for seed 3 alone.
    assert ifca["pairs"] == 2
    assert ifca["n"] == 3
    assert ifca["difference"] == pytest.approx(0.035)
    # Standard deviation 0.03 / √2, over √2, times 12.7062 with one degree of freedom.
    assert ifca["difference_low"] == pytest.approx(0.035 - 12.706205 * 0.015, abs=1e-7)
    assert ifca["difference_high"] == pytest.approx(0.035 + 12.706205 * 0.015, abs=1e-7)
    assert ifca["wins"] == 2


@pytest.mark.slow
@given(st.lists(st.tuples(SHARES, SHARES), min_size=2, max_size=8))
def test_a_difference_is_that_of_scipys_paired_test(pairs: list[tuple[float, float]]) -> None:
    first, second = np.array(pairs).T
    plan = comparison(["fedavg", "ifca"], seeds=len(pairs))
    found = rows(summarise(plan, frames(plan, {"fedavg": first.tolist(), "ifca": second.tolist()})))["ifca"]
    d = second - first
    if d.std() > 1e-9:  # else SciPy warns that all differences are the same
        reference = stats.ttest_rel(second, first).confidence_interval(0.95)
        assert found["difference_low"] == pytest.approx(reference.low, abs=1e-9)
        assert found["difference_high"] == pytest.approx(reference.high, abs=1e-9)
    assert found["difference"] == pytest.approx(d.mean(), abs=1e-12)
    assert found["wins"] == sum(b > a for a, b in pairs)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = stream(0, "coverage")
    truth, trials = 0.02, 4000
    bounds = [interval(row)[1:] for row in rng.normal(truth, 0.05, (trials, 5))]
    covered = sum(low <= truth <= high for low, high in bounds) / trials
    # Four standard errors of a share of 4,000.
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / trials)


def test_the_baseline_has_no_difference_to_itself() -> None:
    plan = comparison(["fedavg", "ifca"], baseline="ifca")
    found = rows(summarise(plan, frames(plan, {"fedavg": [0.5, 0.6, 0.7], "ifca": [0.6, 0.6, 0.6]})))
    for column in ("pairs", "difference", "difference_low", "difference_high", "wins"):
        assert found["ifca"][column] is None
    assert found["fedavg"]["difference"] == pytest.approx(0.0)
    assert found["fedavg"]["wins"] == 1  # one below, one equal, one above
    assert found["fedavg"]["baseline"] == "ifca"


def test_ranks_share_places_and_leave_out_who_is_missing() -> None:
    plan = comparison(["fedavg", "ifca", "local-only"])
    values = {"fedavg": [0.5, 0.6, None], "ifca": [0.9, 0.6, 0.7], "local-only": [0.5, 0.3, 0.8]}
    found = rows(summarise(plan, frames(plan, values)))
    # Seed 0: 2.5, 1, 2.5; seed 1: 1.5, 1.5, 3; seed 2: -, 2, 1.
    assert found["fedavg"]["rank"] == 2
    assert found["ifca"]["rank"] == 1.5
    assert found["local-only"]["rank"] == pytest.approx(6.5 / 3)


@pytest.mark.slow
@given(st.lists(st.tuples(*[st.sampled_from([0.1, 0.2, 0.3, 0.4])] * 4), min_size=1, max_size=5))
def test_ranks_are_scipys(by_seed: list[tuple[float, ...]]) -> None:
    methods = ["fedavg", "ifca", "local-only", "fedsgd"]
    plan = comparison(methods, seeds=len(by_seed))
    values = {name: [accuracies[i] for accuracies in by_seed] for i, name in enumerate(methods)}
    found = rows(summarise(plan, frames(plan, values)))
    reference = stats.rankdata(-np.array(by_seed), axis=1).mean(0)
    np.testing.assert_allclose([found[name]["rank"] for name in methods], reference)


@pytest.mark.parametrize("measure", ["loss", "std"])
def test_of_a_loss_less_is_better(measure: str) -> None:
    plan = comparison(["fedavg", "ifca"], measure=measure)
    found = rows(summarise(plan, frames(plan, {"fedavg": [1.0, 2.0, 3.0], "ifca": [0.5, 2.0, 1.0]})))
    assert found["ifca"]["difference"] == pytest.approx(-2.5 / 3)
    assert found["ifca"]["wins"] == 2
    assert found["ifca"]["rank"] == pytest.approx(3.5 / 3)
    assert (found["fedavg"]["best"], found["ifca"]["best"]) == (False, True)


def test_the_measure_is_the_comparisons() -> None:
    plan = comparison(["fedavg", "ifca"], measure="worst10")
    found = rows(summarise(plan, frames(plan, {"fedavg": [0.1, 0.2, 0.3], "ifca": [0.3, 0.4, 0.5]})))
    assert found["ifca"]["measure"] == "worst10"
    assert found["ifca"]["worst10_mean"] == pytest.approx(0.4)
    assert found["ifca"]["macro_accuracy_mean"] == 0.5  # made up, and the same for all
    assert found["ifca"]["difference"] == pytest.approx(0.2)


def test_a_cell_without_a_value_counts_as_missing() -> None:
    plan = comparison(["fedavg", "ifca"])
    found = rows(summarise(plan, frames(plan, {"fedavg": [0.5, NAN, 0.7], "ifca": [0.6, 0.9, NAN]})))
    assert (found["fedavg"]["finished"], found["fedavg"]["n"]) == (3, 2)
    assert found["fedavg"]["macro_accuracy_mean"] == pytest.approx(0.6)
    assert found["ifca"]["pairs"] == 1
    assert found["ifca"]["difference"] == pytest.approx(0.1)
    assert found["fedavg"]["rank"] == pytest.approx(1.5)


def test_a_method_that_never_finished_has_a_row() -> None:
    plan = comparison(["fedavg", "ifca", "local-only"])
    found = rows(summarise(plan, frames(plan, {"ifca": [0.6, 0.9, 0.3], "local-only": [None, NAN, None]})))
    assert list(found) == ["fedavg", "ifca", "local-only"]
    for name, finished in (("fedavg", 0), ("local-only", 1)):
        row = found[name]
        assert (row["finished"], row["n"], row["best"]) == (finished, 0, False)
        assert (row["macro_accuracy_mean"], row["difference"], row["rank"]) == (None, None, None)
    # Without the baseline there is no difference, and a mean and a rank still.
    assert (found["ifca"]["difference"], found["ifca"]["wins"], found["ifca"]["pairs"]) == (None, None, None)
    assert (found["ifca"]["rank"], found["ifca"]["best"]) == (1, True)


def test_a_comparison_that_has_not_begun_has_its_rows() -> None:
    plan = comparison()
    found = summarise(plan, frames(plan, {}))
    assert found.schema == SUMMARY
    assert found["n"].to_list() == [0, 0, 0]
    assert not found["best"].any()


def test_settings_are_apart() -> None:
    settings = {"β = 0.2": {"data": {"split": "dirichlet(0.2)"}}, "IID": {"data": {"split": "iid"}}}
    plan = comparison(["fedavg", "ifca"], settings=settings)
    values = {
        "β = 0.2": {"fedavg": [0.1, 0.2, 0.3], "ifca": [0.4, 0.4, 0.4]},
        "IID": {"fedavg": [0.9, 0.9, 0.9], "ifca": [0.8, 0.8, 0.8]},
    }
    found = summarise(plan, frames(plan, values))
    assert found.select("setting", "method").rows() == list(product(settings, ["fedavg", "ifca"]))
    assert found["difference"].to_list() == [None, pytest.approx(0.2), None, pytest.approx(-0.1)]
    assert found["rank"].to_list() == [2, 1, 1, 2]
    assert found["best"].to_list() == [False, True, True, False]


def test_equal_means_are_both_the_best() -> None:
    plan = comparison(["fedavg", "ifca", "local-only"], seeds=2)
    values = {"fedavg": [0.25, 0.75], "ifca": [0.75, 0.25], "local-only": [0.5, 0.25]}
    assert summarise(plan, frames(plan, values))["best"].to_list() == [True, True, False]


def test_the_way_to_the_target_is_over_those_that_reached_it() -> None:
    plan = comparison(["fedavg", "ifca"], seeds=5)
    found = rows(
        summarise(
            plan,
            frames(
                plan,
                {"fedavg": [0.5] * 5, "ifca": [0.6, 0.6, 0.6, 0.6, None]},
                target={"fedavg": [0.5] * 5, "ifca": [0.5, 0.5, 0.5, None, None]},
                rounds_to_target={"fedavg": [None] * 5, "ifca": [4, None, 9, None, None]},
                bytes_to_target={"fedavg": [None] * 5, "ifca": [100, None, 500, None, None]},
            ),
        )
    )
    fedavg, ifca = found["fedavg"], found["ifca"]
    assert (ifca["aimed"], ifca["reached"]) == (3, 2)
    assert (ifca["rounds_to_target_mean"], ifca["rounds_to_target_median"]) == (6.5, 6.5)
    assert ifca["bytes_to_target_mean"] == 300
    assert ifca["bytes_to_target_sd"] == pytest.approx(400 / math.sqrt(2))
    assert (fedavg["aimed"], fedavg["reached"]) == (5, 0)
    assert (fedavg["rounds_to_target_mean"], fedavg["rounds_to_target_median"]) == (None, None)


def test_the_order_of_the_cells_does_not_matter() -> None:
    plan: Comparison = comparison(seeds=4)
    rng = stream(1, "values")
    values = {variant.name: rng.random(4).tolist() for variant in plan.methods}
    given = frames(plan, values)
    first = summarise(plan, given)
    shuffled = type(given)(given.cells[rng.permutation(12).tolist()], given.curves, given.clients)
    again = summarise(plan, shuffled)
    assert again.select(pl.exclude(pl.Float64)).equals(first.select(pl.exclude(pl.Float64)))
    np.testing.assert_allclose(
        again.select(pl.col(pl.Float64)).fill_null(-1).to_numpy(),
        first.select(pl.col(pl.Float64)).fill_null(-1).to_numpy(),
        rtol=1e-12,
    )
