"""A part is a set of columns: its algebra is that of boolean masks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.models.layout import Part

P = 24

ranges = st.lists(st.tuples(st.integers(0, P), st.integers(0, P)), max_size=6)
parts = ranges.map(Part.of)


def mask(part: Part) -> Tensor:
    found = torch.zeros(P, dtype=torch.bool)
    for start, stop in part.ranges:
        found[start:stop] = True
    return found


def numbered(rows: int) -> Tensor:
    return torch.arange(rows * P, dtype=torch.float32).view(rows, P)


@given(ranges)
def test_of_is_the_union_of_ranges_in_canonical_form(given_ranges: list[tuple[int, int]]) -> None:
    wanted = torch.zeros(P, dtype=torch.bool)
    for start, stop in given_ranges:
        wanted[start:stop] = True
    part = Part.of(given_ranges)
    assert torch.equal(mask(part), wanted)
    assert all(start < stop for start, stop in part.ranges)
    assert all(a[1] < b[0] for a, b in zip(part.ranges, part.ranges[1:], strict=False))


@given(parts, parts)
def test_algebra_is_that_of_masks(a: Part, b: Part) -> None:
    assert torch.equal(mask(a | b), mask(a) | mask(b))
    assert torch.equal(mask(a & b), mask(a) & mask(b))
    assert torch.equal(mask(a - b), mask(a) & ~mask(b))


@given(parts)
def test_size_and_truth(part: Part) -> None:
    assert part.size == int(mask(part).sum())
    assert bool(part) == (part.size > 0)


@given(parts, st.integers(1, 3))
def test_take_is_indexing(part: Part, rows: int) -> None:
    values = numbered(rows)
    assert torch.equal(part.take(values), values[:, mask(part)])
    assert torch.equal(part.take(values[0]), values[0][mask(part)])


def test_take_of_one_range_is_a_view() -> None:
    values = numbered(2)
    Part(((3, 7),)).take(values).zero_()
    assert values[:, 3:7].abs().sum() == 0


@given(parts, st.integers(1, 3))
def test_put_writes_what_take_reads(part: Part, rows: int) -> None:
    target, values = numbered(rows), -1 - torch.arange(rows * part.size, dtype=torch.float32).view(rows, -1)
    wanted = numbered(rows)
    wanted[:, mask(part)] = values
    assert part.put(target, values) is target
    assert torch.equal(target, wanted)
    assert torch.equal(part.take(target), values)


@given(parts, st.integers(1, 3))
def test_copy_overwrites_the_part_and_nothing_else(part: Part, rows: int) -> None:
    target, source = numbered(rows), -1 - numbered(rows)
    assert part.copy(target, source) is target
    assert torch.equal(target, torch.where(mask(part), -1 - numbered(rows), numbered(rows)))


def test_one_row_is_copied_to_every_row() -> None:
    target, source = numbered(3), -numbered(1)[0]
    Part(((0, 2), (5, 6))).copy(target, source)
    assert torch.equal(target[:, [0, 1, 5]], source[[0, 1, 5]].expand(3, 3))


@pytest.mark.parametrize("columns", [1, 4, 6])
def test_put_refuses_another_number_of_columns(columns: int) -> None:
    with pytest.raises(ValueError, match=f"{columns} .* 5"):
        Part(((0, 2), (5, 8))).put(numbered(1), torch.zeros(1, columns))
