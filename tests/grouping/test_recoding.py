"""Whether groups code the outcome in another way: the same classes under other names."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coterie.grouping.recoding import find_recoding

WIDTH = 40


def profiles(classes: int, clients: int, seed: int, each: int = 15, spread: float = 1.0) -> NDArray[np.float64]:
    """Profiles `[clients, 2, classes, 1 + WIDTH]` of clients whose classes have the same inputs."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).normal(0, 0.3, (classes, WIDTH))
    counts = np.full((clients, 2, classes, 1), float(each))
    sums = each * means + rng.normal(0, spread * np.sqrt(each / 2), (clients, 2, classes, WIDTH))
    return np.concatenate([counts, sums], 3)


def test_classes_under_other_names_are_found() -> None:
    for classes in (2, 3, 10):
        order = np.roll(np.arange(classes), 1)
        whole = profiles(classes, 8, seed=classes)
        whole[:3] = whole[:3][:, :, order]  # the group's class k is what others call order[k]
        group = np.arange(8) < 3
        found = find_recoding(whole, group, ~group)
        assert found is not None
        assert np.array_equal(found, order)


def test_the_same_names_are_no_recoding() -> None:
    for seed in range(50):
        whole, group = profiles(2, 8, seed), np.arange(8) < 3
        assert find_recoding(whole, group, ~group) is None


def test_classes_of_other_inputs_are_no_recoding() -> None:
    rng = np.random.default_rng(0)
    for seed in range(50):
        whole, group = profiles(4, 8, seed), np.arange(8) < 3
        whole[:3, ..., 1:] += 15 * rng.normal(0, 0.3, (4, WIDTH))  # the group's classes are others altogether
        whole[:3, ..., 1:] -= 15 * np.random.default_rng(99).normal(0, 0.3, (4, WIDTH))
        assert find_recoding(whole, group, ~group) is None


def test_too_few_samples_say_nothing() -> None:
    whole, group = profiles(2, 2, 0, each=1)[:, :, ::1], np.array([True, False])
    whole[:1] = whole[:1][:, :, ::-1]
    assert find_recoding(whole, group, ~group) is None
