"""The test that spares a matching: what it passes is what the matching finds, and it passes what is near."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from coterie.grouping import matching
from coterie.grouping.aggregate import group_means
from coterie.grouping.matching import (
    align_units,
    average_matched,
    hidden_layers,
    in_order,
    stays_in_order,
)
from coterie.models.layout import Layout
from coterie.models.networks import build


def chain() -> tuple[Layout, Tensor]:
    network, layout = build("cnn", {"channels": "6,8", "hidden": "16"}, (12, 12, 1), 4, 0)
    return layout, layout.flatten(network)


def around(model: Tensor, count: int, noise: float) -> Tensor:
    return model + noise * torch.randn(count, len(model), generator=torch.Generator().manual_seed(0))


def swapped(model: Tensor, layout: Layout, layer: int) -> Tensor:
    """The first two units of a hidden layer in each other's place, and what the next layer has for them too."""
    hidden, found = hidden_layers(layout)[layer], model.clone()
    places = np.arange(hidden.width)
    places[:2] = 1, 0
    return matching.reorder_units(found, layout, hidden, places)


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.02, 0.1, 0.4])
def test_what_is_in_order_is_what_an_assignment_leaves_where_it_is(noise: float) -> None:
    layout, centre = chain()
    hidden, models = hidden_layers(layout), around(centre, 30, noise)
    sure = in_order(models, centre, hidden)
    for number, layer in enumerate(hidden):
        wanted = layer.units(centre).astype(np.float64)
        for i in np.flatnonzero(sure[:, number]):
            _, places = linear_sum_assignment(layer.units(models[i]).astype(np.float64) @ wanted.T, maximize=True)
            assert places.tolist() == list(range(layer.width))
    assert sure.all() == (noise <= 0.1)


def test_units_in_another_order_are_not_in_order() -> None:
    layout, centre = chain()
    for layer in range(3):
        sure = in_order(swapped(centre, layout, layer)[None], centre, hidden_layers(layout))[0]
        assert not sure[layer]
    assert not in_order((centre * torch.nan)[None], centre, hidden_layers(layout)).any()


def test_models_in_order_are_aligned_without_a_copy() -> None:
    layout, centre = chain()
    near = around(centre, 5, 0.003)
    assert align_units(near, centre, layout) is near
    moved = torch.cat([near, swapped(near[0], layout, 1)[None]])
    found = align_units(moved, centre, layout)
    torch.testing.assert_close(found, torch.cat([near, near[:1]]), rtol=0, atol=0)
    assert not torch.equal(moved[5], found[5])  # what was given is as it was


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Matching without the test in front of it."""
    return lambda: monkeypatch.setattr(matching, "stays_in_order", lambda *_: False)


@pytest.mark.parametrize("noise", [0.003, 0.02, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_means_are_to_the_bit_those_of_a_whole_matching(
    noise: float, weighted: bool, whole: Callable[[], None]
) -> None:
    layout, centre = chain()
    models = torch.cat([around(centre, 7, noise), around(-centre, 4, noise)])
    groups = np.array([0, 0, 1, 0, 1, 0, -1, 2, 2, 2, 2])
    weights = np.arange(1, 12) if weighted else None

    def found() -> tuple[Tensor, float]:
        rng = np.random.default_rng(5)
        previous = models[[0, 1, 7, 8]]
        return average_matched(models, groups, previous, layout, rng, 5, weights), rng.random()

    fast, spared = found(), [stays_in_order([models[i] for i in (0, 1, 3, 5)], h) for h in hidden_layers(layout)]
    whole()
    assert torch.equal(fast[0], found()[0])
    assert fast[1] == found()[1]  # and the random numbers that follow
    assert any(spared) == (noise <= 0.02)
    if all(spared):
        assert torch.equal(fast[0][:2], group_means(models, groups, models[:2], weights)[:2])
