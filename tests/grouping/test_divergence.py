"""Jensen-Shannon divergences against SciPy's, and the low-rank ones against the exact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import jensenshannon

from coterie.grouping.divergence import Kernel, js_divergences


@st.composite
def outputs(draw: Any) -> torch.Tensor:
    """Softmax outputs `[n, samples, classes]`, some of them exactly 0 or 1."""
    shape = (draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(2, 4)))
    logits = draw(arrays(np.float64, shape, elements=st.sampled_from([-1e9, -3.0, -0.5, 0.0, 0.7, 2.0])))
    return torch.from_numpy(logits).softmax(2)


@given(outputs(), st.randoms())
def test_js_divergences(q: torch.Tensor, chance: Any) -> None:
    found = js_divergences(q)
    wide = q.numpy()
    for i in range(len(wide)):
        for j in range(len(wide)):
            pairs = zip(wide[i], wide[j], strict=True)
            root = [jensenshannon(a, b) if not np.array_equal(a, b) else 0.0 for a, b in pairs]
            assert found[i, j] == pytest.approx(np.mean(np.square(root)), abs=1e-9)
            assert (found[i, j] < 1e-12) == np.allclose(wide[i], wide[j], atol=1e-6)
    assert np.array_equal(found, found.T)
    assert np.diag(found).tolist() == [0.0] * len(wide)
    assert found.min() >= 0
    assert found.max() <= math.log(2) + 1e-12
    order = list(range(q.shape[1]))
    chance.shuffle(order)
    np.testing.assert_allclose(js_divergences(q[:, order]), found, atol=1e-12)
    np.testing.assert_allclose(js_divergences(q.repeat(1, 3, 1)), found, atol=1e-12)


def test_js_divergence_of_disjoint_outputs_is_ln_2() -> None:
    q = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    assert js_divergences(q)[0, 1] == pytest.approx(math.log(2), abs=1e-12)


def _drawn(n: int, samples: int, classes: int, spread: float, seed: int = 0) -> torch.Tensor:
    logits = torch.randn(n, samples, classes, generator=torch.Generator().manual_seed(seed))
    return (spread * logits).softmax(2)


@pytest.mark.parametrize(("n", "samples"), [(3, 1), (21, 300), (150, 20)])
def test_js_divergences_of_many_outputs(n: int, samples: int) -> None:
    """More rows and columns than are in work at a time."""
    q = _drawn(n, samples, 10, 3.0)
    wide = q.double().numpy()
    found = js_divergences(q)
    for i in (0, n // 2, n - 1):
        expected = [np.square(jensenshannon(wide[i], row, axis=1)).mean() for row in wide]
        np.testing.assert_allclose(found[i], np.nan_to_num(expected), atol=1e-9)
    assert np.array_equal(found, found.T)
    np.testing.assert_allclose(js_divergences(q[:2], q), found[:2], atol=1e-15)
    np.testing.assert_allclose(js_divergences(q, q[:2]), found[:, :2], atol=1e-15)
    some = np.arange(0, n, 3)
    assert np.array_equal(js_divergences(q[some]), found[np.ix_(some, some)])  # whoever else is in the matrix


@pytest.mark.parametrize("spread", [0.01, 0.3, 2.0, 6.0, 100.0])
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_low_rank_divergences_are_near_the_exact(classes: int, spread: float) -> None:
    """Also from outputs that are all but uniform to outputs that are all but certain."""
    q, r = _drawn(40, 7, classes, spread), _drawn(9, 7, classes, 3.0, seed=1)
    q[-1] = q[0]
    near = js_divergences(q, kernel="low-rank")
    np.testing.assert_allclose(near, js_divergences(q), atol=1e-4)
    assert near[0, -1] < 1e-6
    assert np.array_equal(near, near.T)
    assert not np.diag(near).any()
    assert near.min() >= 0
    between = js_divergences(q, r, kernel="low-rank")
    np.testing.assert_allclose(between, js_divergences(q, r), atol=1e-4)


def test_low_rank_divergences_are_not_the_exact() -> None:
    q = _drawn(40, 7, 10, 2.0)
    assert (js_divergences(q, kernel="low-rank") != js_divergences(q)).any()


@pytest.mark.parametrize("kernel", ["exact", "low-rank"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_are_left_alone(kernel: Kernel, dtype: torch.dtype) -> None:
    q = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.0, 1.0]]], dtype=dtype)
    before = q.clone()
    js_divergences(q, kernel=kernel)
    js_divergences(q, q, kernel=kernel)
    assert torch.equal(q, before)
