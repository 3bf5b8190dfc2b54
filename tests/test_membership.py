"""The attack on membership: scores and their strength by planted numbers, and what a promise changes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import membership
from benchmarks.membership import (
    EPSILONS,
    UNITS,
    MembershipCell,
    attack,
    measure_strength,
    score_by_likelihood,
    score_by_loss,
)


def test_strength_is_that_of_the_curve() -> None:
    member = np.arange(400) < 200
    assert measure_strength(np.where(member, 1.0, 0.0), member) == (1, 1)
    assert measure_strength(np.where(member, 0.0, 1.0), member) == (0, 0)
    # Who cannot be told apart is found as often as others are accused, also where all are alike.
    assert measure_strength(np.zeros(400), member) == pytest.approx((0.5, 0.01))
    # Of 200 outside, 2 may be accused: 50 of those inside lie above the third.
    scores = np.concatenate([np.repeat([10.0, 0.0], [50, 150]), [12.0, 11.0, 9.0], np.full(197, -1.0)])
    auc, hits = measure_strength(scores, member)
    assert hits == pytest.approx(0.25)
    assert auc == pytest.approx((50 * 198 + 150 * 197) / 200**2)


def test_likelihoods_find_what_a_threshold_does_not() -> None:
    """Some samples are hard: even with them in training, the model is less sure of them than of any other."""
    rng = np.random.default_rng(0)
    member = rng.random((40, 200)) < 0.5
    confidence = rng.normal(0, 10, 200) + 1.5 * member + rng.normal(0, 0.5, (40, 200))
    by_loss = measure_strength(score_by_loss(confidence), member)
    by_likelihood = measure_strength(score_by_likelihood(confidence, member), member)
    assert by_loss.auc < 0.6
    assert by_likelihood.auc > 0.95
    nothing = measure_strength(score_by_likelihood(confidence - 1.5 * member, member), member)
    assert nothing.auc == pytest.approx(0.5, abs=0.02)


def test_the_committed_tables_are_those_of_the_committed_cells() -> None:
    rows = membership.read_kept()
    assert set(rows) == {cell.place for cell in membership.cells(list(UNITS))}
    assert len(rows) == len(UNITS) * len(EPSILONS)
    page = membership.PAGE.read_text("utf-8")
    for unit in UNITS:
        assert membership.table(unit, rows) in page


@pytest.mark.slow
def test_what_a_model_learnt_by_heart_is_found_and_what_is_hidden_is_not() -> None:
    overfitted = attack(MembershipCell("example", None).experiment(), runs=16)
    private = attack(MembershipCell("example", 0.5).experiment(), runs=16)
    for found in ("loss", "lira"):
        assert overfitted[found]["auc"] > 0.6
        assert private[found]["auc"] < 0.55
