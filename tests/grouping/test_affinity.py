"""Affinities against slow obvious references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import jensenshannon

from coterie.grouping.affinity import (
    SKETCH,
    Sketch,
    cosines,
    gram_coordinates,
    js_divergences,
    pairwise_distances,
    scaled_l1,
    squared_distances,
)

numbers = st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)


@st.composite
def models(draw: Any, most: int = 6, width: int | None = None) -> torch.Tensor:
    shape = (draw(st.integers(1, most)), width or draw(st.integers(1, 7)))
    return torch.from_numpy(draw(arrays(np.float32, shape, elements=numbers)))


@given(st.data())
def test_squared_distances(data: Any) -> None:
    some = data.draw(models())
    centres = data.draw(models(width=some.shape[1]))
    expected = [[sum((float(a) - float(b)) ** 2 for a, b in zip(w, c, strict=True)) for c in centres] for w in some]
    found = squared_distances(some, centres)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    alone = squared_distances(some[-1:], centres)
    assert found[-1].tolist() == alone[0].tolist()  # whoever else is in the matrix


@given(models())
def test_gram_coordinates_keep_distances(some: torch.Tensor) -> None:
    points = gram_coordinates(some)
    assert points.shape == (len(some), min(some.shape))
    wide = some.double().numpy()
    expected = [[math.dist(a, b) for b in wide] for a in wide]
    scale = max(1.0, float(np.abs(wide).max()))
    np.testing.assert_allclose(pairwise_distances(points), expected, atol=1e-5 * scale)
    np.testing.assert_allclose(points.mean(0), 0.0, atol=1e-6 * scale)
    assert (np.diff(np.square(points).sum(0)) <= 1e-6 * scale**2).all()  # the first axis is the longest


@given(models())
def test_gram_coordinates_move_with_the_models(some: torch.Tensor) -> None:
    """Moving every model by the same vector changes nothing but digits."""
    near, far = gram_coordinates(some), gram_coordinates(some.double() + 1000.0)
    np.testing.assert_allclose(pairwise_distances(near), pairwise_distances(far), atol=1e-3)


@given(models())
def test_cosines(some: torch.Tensor) -> None:
    found = cosines(some)
    for i, a in enumerate(some.double().numpy()):
        for j, b in enumerate(some.double().numpy()):
            size = math.sqrt(a @ a) * math.sqrt(b @ b)
            assert found[i, j] == pytest.approx(a @ b / size if size else 0.0, abs=1e-12)
    assert np.abs(found).max() <= 1.0


@given(models(), st.floats(0.01, 100))
def test_cosines_do_not_depend_on_length(some: torch.Tensor, factor: float) -> None:
    np.testing.assert_allclose(cosines(some.double() * factor), cosines(some), atol=1e-12)


@given(models(), st.lists(st.tuples(st.floats(0.01, 100), st.floats(-10, 10)), min_size=6, max_size=6))
def test_scaled_l1(some: torch.Tensor, maps: list[tuple[float, float]]) -> None:
    """By hand; and a positive affine map of any one model changes nothing."""
    scaled = []
    for row in some.double().numpy():
        span = row.max() - row.min()
        scaled.append((row - row.min()) / span if span else np.zeros_like(row))
    expected = [[np.abs(a - b).mean() for b in scaled] for a in scaled]
    found = scaled_l1(some)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert found.min() >= 0
    assert found.max() <= 1
    spans = some.amax(1) - some.amin(1)
    assume(bool(((spans == 0) | (spans > 0.1)).all()))
    mapped = torch.stack([a * row + b for (a, b), row in zip(maps, some.double(), strict=False)])
    mapped = torch.where(spans[:, None] > 0, mapped, some.double())
    np.testing.assert_allclose(scaled_l1(mapped), found, atol=1e-9)


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


def test_sketches_of_small_models_are_the_models() -> None:
    some = torch.randn(4, SKETCH)
    found = Sketch(SKETCH, 0)(some)
    assert torch.equal(found, some)
    found[0, 0] = 9.0
    assert some[0, 0] != 9.0


@pytest.mark.parametrize("size", [SKETCH + 1, 20_000])
def test_sketches_keep_distances(size: int) -> None:
    """The squared distance has a relative deviation of sqrt(2 / SKETCH), 6 %; this is four times that."""
    rng = torch.Generator().manual_seed(size)
    some = torch.randn(8, size, generator=rng) * torch.rand(size, generator=rng)
    exact = squared_distances(some, some)
    off = ~np.eye(8, dtype=bool)
    ratios = []
    for seed in range(10):
        sketched = Sketch(size, seed)(some)
        assert sketched.shape == (8, SKETCH)
        ratio = (squared_distances(sketched, sketched) / np.where(off, exact, 1))[off]
        assert np.abs(ratio - 1).max() < 0.25
        ratios.append(ratio.mean())
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.03)


def test_a_sketch_is_linear_and_of_the_seed_alone() -> None:
    some = torch.randn(2, 3000)
    sketch = Sketch(3000, 5)
    torch.testing.assert_close(sketch(some[:1] + some[1:]), sketch(some[:1]) + sketch(some[1:]), atol=1e-4, rtol=0)
    assert torch.equal(Sketch(3000, 5)(some), sketch(some))
    assert not torch.equal(Sketch(3000, 6)(some), sketch(some))
    assert torch.equal(sketch(some)[1:], sketch(some[1:]))
