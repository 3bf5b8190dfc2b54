import math
import subprocess
import sys
import time
from itertools import permutations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import BadInput
from coterie.grouping.labels import relabel
from coterie.runs.folder import metrics
from coterie.runs.folder.tables import ROUNDS


def test_f1_by_hand() -> None:
    # Class 0: 2 hits, 3 labels, 2 predictions: 4/5. Class 1: 1 hit, 1 label, 2 predictions: 2/3.
    # Class 2 occurs nowhere and does not count.
    assert metrics.client_f1([3, 1, 0], [2, 2, 0], [2, 1, 0]) == pytest.approx((4 / 5 + 2 / 3) / 2)


def test_f1_of_a_client_without_test_samples_is_unknown() -> None:
    assert math.isnan(metrics.client_f1([0, 0], [0, 0], [0, 0]))


def test_f1_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(3)
    labels, predictions = rng.integers(0, 6, 40), rng.integers(2, 9, 40)
    counts = [np.bincount(x, minlength=12) for x in (labels, predictions, labels[labels == predictions])]
    assert metrics.client_f1(*counts) == pytest.approx(f1_score(labels, predictions, average="macro"))


def test_f1_of_many_clients_is_that_of_each() -> None:
    rng = np.random.default_rng(4)
    actual, predicted = rng.poisson(0.7, (2, 50, 12))
    actual[0] = predicted[0] = 0
    correct = np.minimum(actual, predicted)
    each = [metrics.client_f1(*counts) for counts in zip(actual, predicted, correct, strict=True)]
    assert np.isnan(each[0])
    np.testing.assert_array_equal(metrics.client_f1(actual, predicted, correct), each)


def test_micro_and_macro() -> None:
    assert metrics.micro([0.5, 1.0], [30, 10]) == pytest.approx(0.625)
    assert metrics.macro([0.5, 1.0]) == pytest.approx(0.75)
    assert math.isnan(metrics.micro([0.5], [0]))


def test_worst_tenth_and_std() -> None:
    values = np.arange(20) / 20
    assert metrics.worst10(values) == pytest.approx((0 + 0.05) / 2)
    assert metrics.worst10([0.9, 0.3, 0.6]) == pytest.approx(0.3)
    assert metrics.std([0.2, 0.4]) == pytest.approx(0.1)
    assert math.isnan(metrics.worst10([]))


def test_agreement_by_hand() -> None:
    assert metrics.agreement([1, 1, 0, 0], [0, 0, 1, 1]) == (1.0, 1.0)
    # Pairs together in both: 1; in the found groups: 2; in the planted: 3; of 6.
    # ARI = (1 - 2*3/6) / ((2 + 3)/2 - 1) = 0.
    ari, nmi = metrics.agreement([0, 0, 1, 1], [0, 0, 0, 1])
    assert ari == pytest.approx(0.0)
    assert nmi is not None
    assert 0 < nmi < 1
    assert metrics.agreement([0, 0, -1], [0, 0, 1]) == (1.0, 1.0)
    assert metrics.agreement([0, 1], None) == (None, None)
    assert metrics.agreement([-1, -1], [0, 1]) == (None, None)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-1, 5), max_size=30))
def test_canonical_keeps_the_partition(groups: list[int]) -> None:
    found = relabel(groups)
    assert relabel(found).tolist() == found.tolist()
    assert metrics.count_moved(groups, found) == 0
    assert sorted({int(g) for g in found if g >= 0}) == list(range(len({g for g in groups if g >= 0})))
    firsts = [found.tolist().index(g) for g in range(found.max(initial=-1) + 1)]
    assert firsts == sorted(firsts)


def test_moved_counts_clients_and_not_names() -> None:
    assert metrics.count_moved(None, [0, 1]) == 0
    assert metrics.count_moved([0, 0, 1, 1], [1, 1, 0, 0]) == 0
    assert metrics.count_moved([0, 0, 1, 1], [0, 1, 1, 1]) == 1
    assert metrics.count_moved([0] * 10, [0] * 7 + [1] * 3) == 3
    assert metrics.count_moved([-1, -1, 0], [0, -1, 0]) == 1


@pytest.mark.medium
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4)), max_size=30))
def test_moved_is_the_fewest_over_all_ways_to_rename(pairs: list[tuple[int, int]]) -> None:
    old, new = np.array(pairs, np.int64).reshape(-1, 2).T
    renamed = [np.array([*names, -1])[old] for names in permutations(range(5))]
    assert metrics.count_moved(old, new) == min(int((name != new).sum()) for name in renamed)


@pytest.mark.medium
def test_moved_is_quick_where_many_small_groups_are_torn_apart() -> None:
    rng = np.random.default_rng(0)
    pairs = np.arange(20_000) // 2
    start = time.thread_time()
    assert metrics.count_moved(pairs, (np.arange(20_000) + 1) // 2) == 10_000  # each pair loses one to the next
    assert metrics.count_moved(pairs, np.arange(20_000)) == 10_000
    torn = metrics.count_moved(pairs, rng.permutation(pairs))
    assert 9_900 < torn <= 10_000
    assert time.thread_time() - start < 2


def test_summary() -> None:
    row = dict.fromkeys(ROUNDS, 0) | {"ari": None, "nmi": None, "train_loss": None}
    rounds = pl.DataFrame(
        [
            row | {"round": 1, "macro_accuracy": 0.4, "up_bytes": 5, "seconds": 1.5},
            row | {"round": 2, "macro_accuracy": 0.9, "up_bytes": 7, "seconds": 2.0},
            row | {"round": 3, "macro_accuracy": 0.8, "up_bytes": 1, "seconds": 0.5, "ari": 0.25},
        ],
        schema=ROUNDS,
    )
    found = metrics.summary(rounds)
    assert (found["rounds"], found["round"], found["best_round"]) == (3, 3, 2)
    assert (found["macro_accuracy"], found["best_macro_accuracy"]) == (0.8, 0.9)
    assert (found["up_bytes"], found["seconds"], found["ari"]) == (13, 4.0, 0.25)
    over_two = metrics.summary(rounds, last_rounds=2)
    assert over_two == found | {"macro_accuracy": pytest.approx(0.85)}
    with pytest.raises(BadInput, match=r"no .*round"):
        metrics.summary(rounds.clear())


@pytest.mark.medium
def test_importing_metrics_and_runs_loads_no_torch() -> None:
    script = "import sys; from coterie.runs.folder import metrics, run_folder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
