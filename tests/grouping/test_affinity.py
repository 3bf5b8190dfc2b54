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
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.grouping.affinity import (
    cosines,
    gram,
    gram_coordinates,
    layer_discrepancies,
    model_distances,
    pairwise_distances,
    scaled_l1,
    squared_distances,
)
from coterie.models.layout import Part

numbers = st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)


@st.composite
def models(draw: Any, most: int = 6, width: int | None = None) -> torch.Tensor:
    shape = (draw(st.integers(1, most)), width or draw(st.integers(1, 7)))
    return torch.from_numpy(draw(arrays(np.float32, shape, elements=numbers)))


@pytest.mark.medium
@given(st.data())
def test_squared_distances(data: Any) -> None:
    some = data.draw(models())
    centres = data.draw(models(width=some.shape[1]))
    expected = [[sum((float(a) - float(b)) ** 2 for a, b in zip(w, c, strict=True)) for c in centres] for w in some]
    found = squared_distances(some, centres)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    alone = squared_distances(some[-1:], centres)
    assert found[-1].tolist() == alone[0].tolist()  # whoever else is in the matrix


@pytest.mark.parametrize("size", [3, 700, 9_000, 40_000])
@pytest.mark.parametrize("n", [1, 2, 9, 130])
def test_squared_distances_of_a_client_do_not_depend_on_the_others(n: int, size: int) -> None:
    rng = torch.Generator().manual_seed(n)
    some, centres = torch.randn(n, size, generator=rng), torch.randn(3, size, generator=rng)
    whole = squared_distances(some, centres)
    for seed in range(5):
        picked = torch.randperm(n, generator=rng.manual_seed(seed))[: 1 + seed * n // 5]
        assert np.array_equal(squared_distances(some[picked], centres), whole[picked.numpy()])
        assert np.array_equal(squared_distances(some[picked], centres[1:2]), whole[picked.numpy(), 1:2])
    expected = (some[:, None].double() - centres.double()).square().sum(2).numpy()
    np.testing.assert_allclose(whole, expected, rtol=1e-13)


@pytest.mark.parametrize(("n", "sizes"), [(1, [5]), (63, [1, 9]), (130, [2500, 3])])
def test_gram(n: int, sizes: list[int]) -> None:
    rng = torch.Generator().manual_seed(n)
    tiles = [torch.randn(n, size, generator=rng, dtype=torch.float64) for size in sizes]
    found, whole = gram(tiles, n), torch.cat(tiles, 1).numpy()
    np.testing.assert_allclose(found, whole @ whole.T, atol=1e-10)
    assert np.array_equal(found, found.T)
    single = gram([tile.float() for tile in tiles], n)
    np.testing.assert_allclose(single, found, atol=1e-6 * sum(sizes))
    assert n == 1 or (single != found).any()


@pytest.mark.medium
@given(models())
def test_model_distances(some: torch.Tensor) -> None:
    found, wide = model_distances(some), some.double().numpy()
    scale = max(1.0, float(np.abs(wide).max()))
    np.testing.assert_allclose(found, [[math.dist(a, b) for b in wide] for a in wide], atol=1e-6 * scale)
    assert np.array_equal(found, found.T)
    assert not np.diag(found).any()


@pytest.mark.parametrize("size", [40, 5_000])
def test_what_all_models_share_costs_no_digits(size: int) -> None:
    """Models a thousand times as long as they are apart; products in float32 would leave nothing of a distance."""
    rng = torch.Generator().manual_seed(size)
    some = 100 * torch.randn(size, generator=rng) + 0.1 * torch.randn(90, size, generator=rng)
    exact = np.sqrt(squared_distances(some, some))
    np.testing.assert_allclose(model_distances(some), exact, rtol=1e-9)
    np.testing.assert_allclose(pairwise_distances(gram_coordinates(some)), exact, rtol=1e-9, atol=1e-6)


def test_gram_coordinates_are_the_same_from_either_side() -> None:
    """With more models than parameters the scatter matrix is decomposed; columns of zeros make them fewer again."""
    some = torch.randn(30, 8, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 9)
    padded = gram_coordinates(torch.cat([some, torch.zeros(30, 30)], 1))
    np.testing.assert_allclose(padded[:, :8], gram_coordinates(some), atol=1e-9)
    np.testing.assert_allclose(padded[:, 8:], 0.0, atol=1e-6)


@pytest.mark.medium
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


@pytest.mark.medium
@given(models())
def test_cosines(some: torch.Tensor) -> None:
    found = cosines(some)
    for i, a in enumerate(some.double().numpy()):
        for j, b in enumerate(some.double().numpy()):
            size = math.sqrt(a @ a) * math.sqrt(b @ b)
            assert found[i, j] == pytest.approx(a @ b / size if size else 0.0, abs=1e-12)
    assert np.abs(found).max() <= 1.0


def test_cosines_of_wide_updates() -> None:
    some = torch.randn(70, 3_000, generator=torch.Generator().manual_seed(0))
    wide = some.double().numpy()
    units = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines(some), units @ units.T, atol=1e-13)


@given(models(), st.floats(0.01, 100))
def test_cosines_do_not_depend_on_length(some: torch.Tensor, factor: float) -> None:
    np.testing.assert_allclose(cosines(some.double() * factor), cosines(some), atol=1e-12)


@pytest.mark.medium
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


PARTS = [Part.of([(0, 700), (750, 760)]), Part.of([(760, 761)]), Part.of([(900, 2_000)])]


def _scaled(some: torch.Tensor, part: Part, low: float | None = None, high: float | None = None) -> Any:
    rows = part.take(some).double().numpy()
    least = rows.min(1, keepdims=True) if low is None else low
    span = (rows.max(1, keepdims=True) if high is None else high) - least
    return (rows - least) / np.where(span > 0, span, 1.0)


@pytest.mark.parametrize("common", [False, True])
def test_scaled_l1_of_parts(common: bool) -> None:
    some, total = torch.randn(9, 2_000), np.zeros((9, 9))
    for part in PARTS:
        seen = part.take(some).double()
        ends = (float(seen.min()), float(seen.max())) if common else (None, None)
        scaled = _scaled(some, part, *ends)
        total += np.abs(scaled[:, None] - scaled).sum(2)
    found = scaled_l1(some, parts=PARTS, common=common)
    np.testing.assert_allclose(found, total / (710 + 1 + 1_100), atol=1e-13)
    assert np.array_equal(found, found.T)
    assert not np.diag(found).any()


def test_layer_discrepancies_of_wide_layers() -> None:
    some, centres, groups = torch.randn(7, 2_000), torch.randn(3, 2_000), np.array([0, 2, 0, 0, 2, 2, 2])
    found = layer_discrepancies(some, groups, centres, PARTS)
    for layer, part in enumerate(PARTS):
        apart = np.abs(_scaled(some, part) - _scaled(centres, part)[groups]).mean(1)
        for group in (0, 2):
            assert found[group, layer] == pytest.approx(apart[groups == group].mean(), abs=1e-13)
    assert np.isnan(found[1]).all()


class Widest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most numbers in any tensor of float64 that an operation returned."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.dtype == torch.float64:
            self.numbers = max(self.numbers, found.numel())
        return found


@pytest.mark.parametrize(
    "measure",
    [
        gram_coordinates,
        model_distances,
        cosines,
        scaled_l1,
        lambda some: squared_distances(some, some[:3]),
        lambda some: layer_discrepancies(some, np.zeros(len(some), np.int64), some[:1], [Part.of([(5, 40_000)])]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_models_are_left_alone_and_never_copied_whole(measure: Any, dtype: torch.dtype) -> None:
    some = torch.randn(60, 40_000, dtype=dtype)
    before, widest = some.clone(), Widest()  # type: ignore[no-untyped-call]
    with widest:
        measure(some)
    assert torch.equal(some, before)
    assert dtype == torch.float64 or 0 < widest.numbers <= some.numel() / 8
