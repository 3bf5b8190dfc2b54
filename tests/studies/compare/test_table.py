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

from coterie.studies.compare.table import SUMMARY, interval, summarise

from .by_hand import comparison, frames

NAN = math.nan


def rows(found: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """The rows by method, of a summary of one setting."""
    assert found.schema == SUMMARY
    return {row["method"]: row for row in found.to_dicts()}


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


@pytest.mark.parametrize("measure", ["loss", "std"])
def test_of_a_loss_less_is_better(measure: str) -> None:
    plan = comparison(["fedavg", "ifca"], measure=measure)
    found = rows(summarise(plan, frames(plan, {"fedavg": [1.0, 2.0, 3.0], "ifca": [0.5, 2.0, 1.0]})))
    assert found["ifca"]["difference"] == pytest.approx(-2.5 / 3)
    assert found["ifca"]["wins"] == 2
    assert found["ifca"]["rank"] == pytest.approx(3.5 / 3)
    assert (found["fedavg"]["best"], found["ifca"]["best"]) == (False, True)


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
    begun = rows(summarise(plan, frames(plan, {})))
    assert {name: (row["n"], row["best"]) for name, row in begun.items()} == dict.fromkeys(begun, (0, False))
    found = rows(summarise(plan, frames(plan, {"ifca": [0.6, 0.9, 0.3], "local-only": [None, NAN, None]})))
    assert list(found) == list(begun) == ["fedavg", "ifca", "local-only"]
    for name, finished in (("fedavg", 0), ("local-only", 1)):
        row = found[name]
        assert (row["finished"], row["n"], row["best"]) == (finished, 0, False)
        assert (row["macro_accuracy_mean"], row["difference"], row["rank"]) == (None, None, None)
    # Without the baseline there is no difference, and a mean and a rank still.
    assert (found["ifca"]["difference"], found["ifca"]["wins"], found["ifca"]["pairs"]) == (None, None, None)
    assert (found["ifca"]["rank"], found["ifca"]["best"]) == (1, True)


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
