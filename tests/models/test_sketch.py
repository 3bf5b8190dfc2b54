"""Sketches keep distances, and are each model's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.grouping.affinity import squared_distances
from coterie.models.sketch import SKETCH, Sketch


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


def test_sketches_of_a_model_do_not_depend_on_the_others() -> None:
    some = torch.randn(150, 70_000, generator=torch.Generator().manual_seed(0))
    sketch = Sketch(70_000, 1)
    whole = sketch(some)
    for picked in (torch.tensor([149]), torch.arange(3, 80), torch.randperm(150)):
        assert torch.equal(sketch(some[picked]), whole[picked])
    wider = torch.cat([torch.ones(150, 9), some, torch.ones(150, 9)], 1)
    assert torch.equal(sketch(wider[:, 9:-9]), whole)


@pytest.mark.parametrize("period", [32, 64, 512])
def test_sketches_keep_distances_of_which_a_few_channels_are_the_most(period: int) -> None:
    """As where a layer's width is a power of 2: 3 columns of every `period` are thirty times the others."""
    size, rng = 80_000, torch.Generator().manual_seed(period)
    some = torch.randn(6, size, generator=rng) * torch.where(torch.arange(size) % period < 3, 30.0, 1.0)
    exact, pairs = squared_distances(some, some), np.triu_indices(6, 1)
    sketched = (Sketch(size, seed)(some) for seed in range(40))
    ratios = np.array([(squared_distances(s, s) / np.where(exact > 0, exact, 1))[pairs] for s in sketched])
    assert ratios.mean() == pytest.approx(1.0, abs=0.02)
    assert np.sqrt(np.square(ratios - 1).mean()) < 1.25 * math.sqrt(2 / SKETCH)


def test_wider_sketches_keep_inner_products_better() -> None:
    """The deviation of the inner product of two directions is about 1 / sqrt(width)."""
    some = torch.nn.functional.normalize(torch.randn(20, 50_000, generator=torch.Generator().manual_seed(0)))
    exact = (some @ some.T).numpy()
    for width in (512, 4096):
        sketched = Sketch(50_000, 3, width)(some)
        assert sketched.shape == (20, width)
        off = ((sketched @ sketched.T).numpy() - exact)[np.triu_indices(20, 1)]
        assert 0.7 < off.std() * math.sqrt(width) < 1.3
