"""Mixtures that are least by a quadratic form."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, minimize

from coterie.grouping.simplex import minimise_on_simplex


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_it_is_what_a_general_solver_finds(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(6, 4))
    form = factor @ factor.T + np.diag(rng.random(6) / 10)
    found = minimise_on_simplex(scale * form)
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0

    def value(a: NDArray[np.float64]) -> float:
        return float(a @ form @ a)

    whole = LinearConstraint(np.ones((1, 6)), 1, 1)
    other = minimize(value, np.full(6, 1 / 6), bounds=[(0, 1)] * 6, constraints=whole, tol=1e-12)
    assert found @ form @ found <= other.fun + 1e-9
    np.testing.assert_allclose(found, other.x, atol=1e-4)


def test_some_weights_are_nothing_and_one_alone_is_all() -> None:
    assert minimise_on_simplex(np.array([[1.0, 2.0], [2.0, 9.0]])).tolist() == [1.0, 0.0]
    assert minimise_on_simplex(np.array([[3.0]])).tolist() == [1.0]


def test_a_form_of_nothing_gives_a_mixture() -> None:
    assert minimise_on_simplex(np.zeros((3, 3))).sum() == 1
