"""The tree of clusters: gates, separation, and what a split does to the leaves (docs/methods/layercfl.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie.grouping.affinity import gap
from coterie.grouping.cluster import bipartition
from coterie.grouping.split_tree import Gates, Leaves, norms, row_of, separation, split
from coterie.models.layout import Part


def test_thresholds() -> None:
    """A tenth of the greatest norm so far, and r times that of the tensors that are compared (D4 to D6)."""
    assert Gates(0.1, 4.0, None, None).thresholds(20.0, 5.0, 9.0) == (2.0, 2.0)
    assert Gates(0.5, 3.0, None, 7.0).thresholds(20.0, 5.0, 9.0) == (10.0, 7.0)
    assert Gates(0.1, 4.0, 0.4, None).thresholds(20.0, 5.0, 9.0) == (0.4, 1.6)  # CFL's code
    assert Gates(0.1, 4.0, 0.4, 1.6).thresholds(20.0, 5.0, 9.0) == (0.4, 1.6)
    # Without any, what every pair of thresholds of this ratio asks: the longest of now is r times the mean.
    assert Gates(None, 3.0, None, None).thresholds(20.0, 5.0, 9.0) == (3.0, 0.0)
    assert Gates(None, 0.0, None, 2.0).thresholds(20.0, 5.0, 9.0) == (float("inf"), 2.0)


def test_norms() -> None:
    updates = torch.tensor([[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]])
    found = norms(updates, [Part.of([(0, 2)]), Part.of([(0, 1), (2, 3)]), Part.of([(0, 3)])])
    np.testing.assert_allclose(found, [[5.0, 153.0**0.5, 13.0], [0.0, 1.0, 1.0]], rtol=1e-15)


@pytest.mark.parametrize(("across", "expected"), [(1.0, 0.0), (0.5, 0.5), (-1.0, 1.0), (0.0, 0.5**0.5)])
def test_separation(across: float, expected: float) -> None:
    """4.4: sqrt((1 - a) / 2), from the most similar pair of the two sides."""
    similarities = np.array([[1.0, across, -1.0], [across, 1.0, 0.9], [-1.0, 0.9, 1.0]])
    assert separation(similarities, np.array([0, 1, 1])) == pytest.approx(expected)


def test_rounding_does_not_make_a_separation_of_nothing() -> None:
    assert separation(np.full((2, 2), 1.0 + 1e-12), np.array([0, 1])) == 0.0


@given(st.integers(2, 9), st.integers(0, 10**6))
def test_layercfl_4_8_9_gap_above_0_is_found_by_every_linkage(n: int, seed: int) -> None:
    """Whenever every pair inside the groups is more alike than every pair across, the bipartition is the truth."""
    rng = np.random.default_rng(seed)
    truth = np.append([0, 1], rng.integers(0, 2, n))
    alike = truth[:, None] == truth
    drawn = np.where(alike, rng.uniform(0.3, 1.0, alike.shape), rng.uniform(-1.0, 0.3, alike.shape))
    similarities = np.minimum(drawn, drawn.T)
    np.fill_diagonal(similarities, 1.0)
    assert gap(similarities, truth) > 0
    for linkage in ("single", "complete", "average"):
        assert bipartition(1.0 - similarities, linkage).tolist() == truth.tolist()


def one_leaf(n: int, width: int = 3) -> Leaves:
    return Leaves(
        models=torch.zeros(1, width + 1),
        groups=np.zeros(n, np.int64),
        nodes=np.zeros(1, np.int64),
        tops=np.full((1, 2), 7.0),
        until=np.full(1, 5),
        splits=np.zeros((0, 2), np.int64),
        before=torch.zeros(0, width + 1),
        means=torch.zeros(0, 2, width),
    )


def test_a_split() -> None:
    leaves = one_leaf(6)
    means = torch.arange(6.0).view(2, 3)
    first = split(leaves, 0, np.array([0, 1, 0, 1, 1, 0]), means, 9)
    assert first.groups.tolist() == [0, 1, 0, 1, 1, 0]
    assert first.nodes.tolist() == [1, 2]
    assert first.splits.tolist() == [[0, 9]]
    assert first.tops.tolist() == [[0.0, 0.0]] * 2  # children start with fresh running maxima
    assert first.until.tolist() == [0, 0]
    assert torch.equal(first.means[0], means)
    assert leaves.groups.tolist() == [0] * 6
    first.models[:] = torch.tensor([[1.0], [2.0]])
    second = split(first, 0, np.array([0, 1, 1]), means, 12)
    # The leaf of client 1 comes before that of clients 2 and 5: leaves are numbered by their smallest member.
    assert second.groups.tolist() == [0, 1, 2, 1, 1, 2]
    assert second.nodes.tolist() == [3, 2, 4]
    assert second.models[:, 0].tolist() == [1.0, 2.0, 1.0]
    assert second.splits.tolist() == [[0, 9], [1, 12]]
    assert torch.equal(second.before, torch.cat([leaves.models, first.models[:1]]))
    assert [row_of(second, node) for node in (3, 2, 4)] == [0, 1, 2]


@pytest.mark.medium
@given(st.integers(2, 12), st.data())
def test_layercfl_4_8_8_splits_are_nested(n: int, data: Any) -> None:
    """Whatever is split: every client is in one leaf, leaves are numbered by their smallest member, and each leaf's
    members are those that the tree's splits left there."""
    leaves = one_leaf(n)
    members: dict[int, NDArray[np.int64]] = {0: np.arange(n)}
    while True:
        wide = [row for row in range(len(leaves.nodes)) if (leaves.groups == row).sum() > 1]
        if not wide or data.draw(st.booleans()):
            break
        row = data.draw(st.sampled_from(wide))
        size = int((leaves.groups == row).sum())
        sides = np.array([0, *data.draw(st.lists(st.integers(0, 1), min_size=size - 1, max_size=size - 1))])
        if not sides.any():
            sides[-1] = 1
        own = members.pop(int(leaves.nodes[row]))
        leaves = split(leaves, row, sides, torch.zeros(2, 3), 1)
        made = 2 * len(leaves.splits)
        members |= {made - 1: own[sides == 0], made: own[sides == 1]}
        smallest = [int(np.flatnonzero(leaves.groups == k)[0]) for k in range(len(leaves.nodes))]
        assert smallest == sorted(smallest)
        assert set(leaves.nodes.tolist()) == set(members)
        for node, expected in members.items():
            assert np.flatnonzero(leaves.groups == row_of(leaves, node)).tolist() == expected.tolist()
